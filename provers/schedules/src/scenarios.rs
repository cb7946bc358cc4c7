//! What threads do at the same time, and what must come of it. Each is about an invariant of the file that it uses.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use farref_proto::{NodeId, Time};
use shuttle::future::block_on;
use shuttle::sync::mpsc;
use shuttle::thread;
use tokio::sync::Notify;

use crate::native::endpoint::{Config, Endpoint};
use crate::native::link::timer::{Alarm, Timed, Timer};
use crate::native::link::writer_lock::WriterLock;
use crate::runtime::reply::reply_channel;
use crate::support::blocking_pool::BlockingPool;
use crate::support::clock::{self, Instant};
use crate::support::deadlines::{Clock, HasDeadlines};
use crate::support::lock::lock;
use crate::support::patience;
use crate::support::signal::CancelSignal;
use crate::support::sync::{AtomicU64, Handle, Mutex, Ordering};
use crate::support::task_pool::TaskPool;
use crate::support::waiting_threads::WaitingThreads;

/// Something that threads do at the same time.
#[derive(Clone, Copy, Debug)]
pub struct Scenario {
    /// The law that it holds.
    pub name: &'static str,
    /// Does it once, within shuttle.
    pub run: fn(),
}

impl Scenario {
    /// Tries so many schedules: half of them at random, half with few preemptions. Panics if the law does not hold.
    pub fn check(&self, schedules: usize) {
        shuttle::check_random(self.anew(), schedules.div_ceil(2));
        shuttle::check_pct(self.anew(), schedules / 2, 3);
    }

    /// Follows a schedule that a failure has printed.
    pub fn replay(&self, schedule: &str) {
        shuttle::replay(self.anew(), schedule);
    }

    /// The scenario from its first moment on.
    fn anew(&self) -> impl Fn() + Send + Sync + 'static {
        let run = self.run;
        move || {
            clock::reset();
            patience::reset();
            run();
        }
    }
}

/// All of them.
pub const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "sd_1_what_is_queued_is_written",
        run: what_is_queued_is_written,
    },
    Scenario {
        name: "d4_who_watches_hears_of_the_cancellation",
        run: who_watches_hears,
    },
    Scenario {
        name: "d4_who_watched_before_hears_of_it_too",
        run: who_watched_before_hears,
    },
    Scenario {
        name: "rp_1_who_waits_gets_the_reply_or_learns_of_none",
        run: who_waits_is_told,
    },
    Scenario {
        name: "tp_1_each_call_has_a_task",
        run: each_call_has_a_task,
    },
    Scenario {
        name: "tp_2_a_call_is_carried_out_or_dropped",
        run: calls_are_carried_out_or_dropped,
    },
    Scenario {
        name: "tp_2_a_task_that_is_gone_gets_no_call",
        run: no_call_for_the_gone,
    },
    Scenario {
        name: "bp_2_each_job_has_its_thread",
        run: each_job_has_its_thread,
    },
    Scenario {
        name: "bp_3_all_jobs_of_a_finishing_pool_are_done",
        run: finishing_pools_finish,
    },
    Scenario {
        name: "wt_1_each_waiting_job_has_its_thread",
        run: each_waiting_job_has_its_thread,
    },
    Scenario {
        name: "ti_1_the_timer_looks_when_the_moment_comes",
        run: the_timer_looks,
    },
    Scenario {
        name: "dl_1_late_calls_are_ended",
        run: late_calls_are_ended,
    },
];

/// A stream as `sending` uses it: what is queued, and how much of it is written.
struct Stream {
    lock: WriterLock,
    queued: Mutex<u64>,
    written: AtomicU64,
    /// Nobody writes while somebody else does (SD-2).
    writers: AtomicU64,
    all: u64,
    done: Notify,
}

enum Driven {
    Done,
    QuotaSpent,
}

impl Stream {
    /// As `SendStream::drive`, which takes one frame at a time here.
    fn drive(&self, quota: u32) -> Driven {
        assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "SD-2");
        let mut emptied = false;
        let mut batches = 0;
        loop {
            if emptied {
                self.writers.fetch_sub(1, Ordering::SeqCst);
                if self.lock.try_release() {
                    return Driven::Done;
                }
                assert_eq!(self.writers.fetch_add(1, Ordering::SeqCst), 0, "SD-2");
            }
            if batches == quota {
                self.writers.fetch_sub(1, Ordering::SeqCst);
                return Driven::QuotaSpent;
            }
            batches += 1;
            self.lock.clear_mark();
            let frames = {
                let mut queued = lock(&self.queued);
                let frames = (*queued).min(1);
                *queued -= frames;
                emptied = *queued == 0;
                frames
            };
            if self.written.fetch_add(frames, Ordering::SeqCst) + frames == self.all {
                self.done.notify_one();
            }
        }
    }

    /// As `SendStream::write_pending`.
    fn write_pending(&self, is_burst: bool) {
        if !self.lock.acquire_or_mark() {
            return;
        }
        if is_burst || matches!(self.drive(1), Driven::QuotaSpent) {
            self.lock.hand_over_to_task();
        }
    }

    /// As `SendStream::run`.
    async fn run(self: Arc<Self>) {
        loop {
            self.lock.handed_over().await;
            while self.lock.take_over() {
                match self.drive(2) {
                    Driven::Done => break,
                    Driven::QuotaSpent => {
                        self.lock.hand_over();
                        shuttle::future::yield_now().await;
                    }
                }
            }
        }
    }
}

/// SD-1, SD-2
fn what_is_queued_is_written() {
    let stream = Arc::new(Stream {
        lock: WriterLock::default(),
        queued: Mutex::new(0),
        written: AtomicU64::new(0),
        writers: AtomicU64::new(0),
        all: 4,
        done: Notify::new(),
    });
    let task = shuttle::future::spawn(Arc::clone(&stream).run());
    let callers: Vec<_> = (0..3)
        .map(|number| {
            let stream = Arc::clone(&stream);
            thread::spawn(move || {
                *lock(&stream.queued) += 1;
                match number {
                    0 => stream.write_pending(true),
                    1 => stream.lock.hand_over_or_mark(),
                    _ => {
                        stream.write_pending(false);
                        *lock(&stream.queued) += 1;
                        stream.write_pending(false);
                    }
                }
            })
        })
        .collect();
    callers
        .into_iter()
        .for_each(|caller| caller.join().unwrap());
    block_on(stream.done.notified());
    task.abort();
}

/// Waits for a signal as the task of a call does.
async fn cancelled(signal: &CancelSignal) {
    poll_fn(|context| match signal.watch(context.waker()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

fn who_watches_hears() {
    let signal = Arc::new(CancelSignal::default());
    let canceller = Arc::clone(&signal);
    let cancelling = thread::spawn(move || canceller.cancel());
    block_on(cancelled(&signal));
    cancelling.join().unwrap();
}

fn who_watched_before_hears() {
    let signal = Arc::new(CancelSignal::default());
    let canceller = Arc::clone(&signal);
    let cancelling = thread::spawn(move || canceller.cancel());
    let mut polls = 0;
    block_on(poll_fn(|context| {
        polls += 1;
        if signal.watch(context.waker()) {
            return Poll::Ready(());
        }
        if polls == 1 {
            // Somebody else watches for a while, who hears nothing.
            let instead = signal.instead();
            instead.watch(std::task::Waker::noop());
        }
        Poll::Pending
    }));
    cancelling.join().unwrap();
}

/// RP-1, also in places that were used before
fn who_waits_is_told() {
    for round in 0..3 {
        let (sender, receiver) = reply_channel();
        let answering = thread::spawn(move || match round {
            1 => drop(sender),
            _ => assert!(sender.send(round, Instant::now()).is_ok()),
        });
        let told = block_on(receiver).map(|(reply, _)| reply);
        assert_eq!(told, (round != 1).then_some(round), "RP-1");
        answering.join().unwrap();
    }
}

/// A call that says what became of it.
struct Call {
    number: u64,
    answers: mpsc::Sender<(u64, bool)>,
    is_done: bool,
}

impl Call {
    async fn carry_out(mut self) {
        shuttle::future::yield_now().await;
        self.is_done = true;
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let _ = self.answers.send((self.number, self.is_done));
    }
}

/// TP-1: calls that wait for each other all get on.
fn each_call_has_a_task() {
    let pool = Arc::new(TaskPool::<(u64, Arc<Notify>, mpsc::Sender<u64>)>::new(1));
    let (done, all_done) = mpsc::channel();
    let met = Arc::new(Notify::new());
    let carry_out = |(number, met, done): (u64, Arc<Notify>, mpsc::Sender<u64>)| async move {
        match number % 2 {
            0 => met.notified().await,
            _ => met.notify_one(),
        }
        done.send(number).unwrap();
    };
    for round in 0..2 {
        let calling: Vec<_> = (0..2)
            .map(|number| {
                let (pool, call) = (Arc::clone(&pool), (number, Arc::clone(&met), done.clone()));
                thread::spawn(move || pool.run(&Handle, 0, call, carry_out))
            })
            .collect();
        calling
            .into_iter()
            .for_each(|calling| calling.join().unwrap());
        let mut numbers = [all_done.recv().unwrap(), all_done.recv().unwrap()];
        numbers.sort_unstable();
        assert_eq!(numbers, [0, 1], "{round}");
    }
    pool.close();
}

/// TP-2, TP-3: also while the pool is closed.
fn calls_are_carried_out_or_dropped() {
    let pool = Arc::new(TaskPool::<Call>::new(1));
    let (answers, all_answers) = mpsc::channel();
    let calling: Vec<_> = (0..2)
        .map(|thread_number| {
            let (pool, answers) = (Arc::clone(&pool), answers.clone());
            thread::spawn(move || {
                for number in 0..2 {
                    let number = 2 * thread_number + number;
                    let call = Call {
                        number,
                        answers: answers.clone(),
                        is_done: false,
                    };
                    pool.run(&Handle, 0, call, Call::carry_out);
                }
            })
        })
        .collect();
    pool.close();
    let mut numbers: Vec<_> = (0..4).map(|_| all_answers.recv().unwrap().0).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2, 3], "TP-2");
    calling
        .into_iter()
        .for_each(|calling| calling.join().unwrap());
}

/// TP-2
fn no_call_for_the_gone() {
    let pool = TaskPool::<Call>::new(1);
    let (answers, all_answers) = mpsc::channel();
    let call = |number| Call {
        number,
        answers: answers.clone(),
        is_done: false,
    };
    pool.run(&Handle, 0, call(0), Call::carry_out);
    assert_eq!(all_answers.recv().unwrap(), (0, true));
    pool.end_idle_tasks();
    pool.run(&Handle, 0, call(1), Call::carry_out);
    assert_eq!(all_answers.recv().unwrap(), (1, true), "TP-2");
    pool.close();
}

/// BP-1, BP-2: two jobs of which the first waits for the second, in a pool for two whose threads may sleep.
fn each_job_has_its_thread() {
    let pool = BlockingPool::of_program(2);
    let (done, all_done) = mpsc::channel();
    let first = done.clone();
    pool.submit(move || first.send(0).unwrap());
    assert_eq!(all_done.recv().unwrap(), 0);
    let (tell, told) = mpsc::channel();
    let waiting = done.clone();
    pool.submit(move || {
        told.recv().unwrap();
        waiting.send(1).unwrap();
    });
    pool.submit(move || {
        tell.send(()).unwrap();
        done.send(1).unwrap();
    });
    assert_eq!(all_done.recv().unwrap() + all_done.recv().unwrap(), 2);
}

/// BP-3
fn finishing_pools_finish() {
    let pool = BlockingPool::finishing(1);
    let (done, all_done) = mpsc::channel();
    for number in 0..3 {
        let done = done.clone();
        pool.submit(move || done.send(number).unwrap());
    }
    drop(pool);
    drop(done);
    assert_eq!(all_done.iter().collect::<Vec<_>>(), [0, 1, 2], "BP-3");
}

/// WT-1
fn each_waiting_job_has_its_thread() {
    let threads = Arc::new(WaitingThreads::new());
    for _ in 0..2 {
        let (done, all_done) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let waiting = done.clone();
        let other = Arc::clone(&threads);
        let asking = thread::spawn(move || {
            let accepted = other.run(move || {
                told.recv().unwrap();
                waiting.send(()).unwrap();
            });
            assert_eq!(accepted, Ok(()));
        });
        let accepted = threads.run(move || {
            tell.send(()).unwrap();
            done.send(()).unwrap();
        });
        assert_eq!(accepted, Ok(()));
        asking.join().unwrap();
        all_done.recv().unwrap();
        all_done.recv().unwrap();
    }
    patience::end();
}

/// A link of which nothing is known but what the timer asks.
struct TimedLink {
    peer: NodeId,
    alarm: Alarm,
    due: Mutex<VecDeque<Time>>,
    looked: Arc<Notify>,
    left: Arc<AtomicU64>,
}

impl Timed for TimedLink {
    fn peer(&self) -> NodeId {
        self.peer
    }

    fn alarm(&self) -> &Alarm {
        &self.alarm
    }

    fn handle_timeout(self: &Arc<Self>, now: Time) -> Option<Time> {
        let mut due = lock(&self.due);
        while due.front().is_some_and(|at| *at <= now) {
            due.pop_front();
            if self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
                self.looked.notify_one();
            }
        }
        due.front().copied()
    }
}

/// TI-1
fn the_timer_looks() {
    let timer = Arc::new(Timer::<TimedLink>::default());
    let endpoint = Arc::new(Endpoint {
        config: Config {
            peer_timeout: Duration::from_secs(1),
        },
        epoch: Instant::now(),
    });
    let (looked, left) = (Arc::new(Notify::new()), Arc::new(AtomicU64::new(4)));
    let link = |number| {
        Arc::new(TimedLink {
            peer: NodeId::new(number, 1),
            alarm: Alarm::default(),
            due: Mutex::default(),
            looked: Arc::clone(&looked),
            left: Arc::clone(&left),
        })
    };
    let links = [link(0), link(1)];
    let task = shuttle::future::spawn(Arc::clone(&timer).run(endpoint));
    let arming: Vec<_> = links
        .iter()
        .map(|link| {
            let (timer, link) = (Arc::clone(&timer), Arc::clone(link));
            thread::spawn(move || {
                // Later first, so that the second is earlier than what the timer keeps.
                for at in [20, 10] {
                    let at = Time(at * 1_000_000);
                    let first = {
                        let mut due = lock(&link.due);
                        due.push_front(at);
                        due.front().copied()
                    };
                    timer.arm(&link, first);
                }
            })
        })
        .collect();
    arming.into_iter().for_each(|arming| arming.join().unwrap());
    // Two moments: what the first look has kept is looked at again.
    for _ in 0..2 {
        clock::advance(Duration::from_millis(10));
        shuttle::future::block_on(shuttle::future::yield_now());
    }
    block_on(looked.notified());
    task.abort();
}

/// Calls of which nothing is known but when their time is up.
struct Caller {
    clock: Clock,
    open: Mutex<Vec<Instant>>,
    ended: Notify,
    left: AtomicU64,
}

impl HasDeadlines for Caller {
    fn end_late_calls(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut open = lock(&self.open);
        let before = open.len();
        open.retain(|at| *at > now);
        let ended = (before - open.len()) as u64;
        if ended > 0 && self.left.fetch_sub(ended, Ordering::SeqCst) == ended {
            self.ended.notify_one();
        }
        open.iter().min().copied()
    }
}

/// DL-1: also of a call that is made while the clock looks.
fn late_calls_are_ended() {
    let caller = Arc::new(Caller {
        clock: Clock::new(Instant::now()),
        open: Mutex::default(),
        ended: Notify::new(),
        left: AtomicU64::new(3),
    });
    let task = shuttle::future::spawn(caller.clock.run(Arc::downgrade(&caller)));
    let calling: Vec<_> = (0..3)
        .map(|number| {
            let caller = Arc::clone(&caller);
            thread::spawn(move || {
                let at = Instant::now() + Duration::from_millis(number);
                lock(&caller.open).push(at);
                caller.clock.note(at);
            })
        })
        .collect();
    calling
        .into_iter()
        .for_each(|calling| calling.join().unwrap());
    // A clock that neither sleeps nor is told of a call never looks again.
    block_on(async {
        tokio::select! {
            biased;
            () = caller.ended.notified() => {}
            never = clock::pass(Duration::from_millis(1)) => match never {},
        }
    });
    task.abort();
}
