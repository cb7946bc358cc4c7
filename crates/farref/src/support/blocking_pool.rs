//! Threads for plain functions.
//!
//! A remote `fn` may block, so it runs on a thread of its own kind. A thread that blocks in
//! [`Call::wait`](crate::Call::wait) makes no progress until another worker answers, and that one may
//! need a thread here in turn: such a thread does not count, and another takes its place. So nested
//! calls cannot use the pool up.
//!
//! # Invariants
//!
//! - **BP-1** No more than `limit` threads run functions without waiting for a call.
//! - **BP-2** While a job is queued and fewer than `limit` threads run, some thread is on its way to it,
//!   and to no other job: a sleeping thread is claimed by the job that wakes it, before it is awake.
//!   Of those that sleep it is the one that has slept least: its stack and what it has computed with are still at hand, and
//!   threads that are too many sleep until they end.
//! - **BP-3** When the pool is dropped its threads end, after the job that each is at, or after all jobs
//!   that there are if it was made to [finish](BlockingPool::finishing) them.
//! - **BP-4** Where all jobs need something that [only one thread has](OneAtATime), a thread takes jobs only while it has that,
//!   and one job after the other; of the others one is on its way to it, if there are jobs left. So BP-2 holds for the first
//!   of the queued jobs: whoever keeps what all need keeps them from running, and nothing else does.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::support::lock::lock;
use crate::support::mutation::mutated;
#[cfg(feature = "simulation")]
use crate::support::simulation;
use crate::support::sync::{Condvar, Mutex, MutexGuard, thread};

/// How long a thread with nothing to do stays.
const IDLE: Duration = Duration::from_secs(10);

/// A job.
pub(crate) type PoolJob = Box<dyn FnOnce() + Send>;

/// Something that all plain functions of a program need, and that one thread has at a time: the lock of an interpreter. For
/// programs whose functions are written in another language, one for the whole program.
///
/// A thread that has it carries out one call after the other, instead of handing it to the next thread after each.
///
/// ```standalone_crate
/// use std::sync::{Mutex, PoisonError};
///
/// static INTERPRETER: Mutex<()> = Mutex::new(());
///
/// fn with_interpreter(then: &mut dyn FnMut()) {
///     let _have = INTERPRETER.lock().unwrap_or_else(PoisonError::into_inner);
///     then()
/// }
///
/// farref::__private::inventory::submit! {
///     farref::functions::OneAtATime { enter: with_interpreter }
/// }
///
/// #[farref::remote]
/// fn has_interpreter() -> bool {
///     INTERPRETER.try_lock().is_err()
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// assert!(has_interpreter::on(&peer).await?);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Debug)]
pub struct OneAtATime {
    /// Gets it, calls what it is given, once, and gives it back. If it cannot be had any more it calls nothing: the functions
    /// run without, and see to that themselves.
    pub enter: fn(&mut dyn FnMut()),
}

inventory::collect!(OneAtATime);

/// A pool of threads that grows while its threads wait for calls.
pub(crate) struct BlockingPool(Arc<PoolShared>);

struct PoolShared {
    limit: usize,
    /// BP-4
    gate: Option<fn(&mut dyn FnMut())>,
    /// Whether jobs are done even if the pool is dropped before.
    finishes: bool,
    /// Where jobs are done in a simulation, which has no threads (SM-1).
    #[cfg(feature = "simulation")]
    simulated: Option<tokio::runtime::Handle>,
    state: Mutex<PoolState>,
}

#[derive(Default)]
struct PoolState {
    tasks: VecDeque<PoolJob>,
    /// Threads that are not waiting for a call: running a job, or about to look for one.
    running: usize,
    /// Of those, the ones that sleep and that no job has claimed, in the order that they went to sleep in: what wakes each.
    sleeping: Vec<Arc<Condvar>>,
    /// Whether a thread is on its way through the gate, if there is one (BP-4).
    coming: bool,
    closed: bool,
}

thread_local! {
    static POOL: RefCell<Option<Arc<PoolShared>>> = const { RefCell::new(None) };
}

impl BlockingPool {
    /// A pool for the functions of this program.
    pub(crate) fn of_program(limit: usize) -> Self {
        let gate = inventory::iter::<OneAtATime>().next();
        Self::make(limit, false, gate.map(|gate| gate.enter))
    }

    #[cfg(test)]
    pub(crate) fn new(limit: usize) -> Self {
        Self::make(limit, false, None)
    }

    /// A pool whose jobs are all done, even if it is dropped before (BP-3).
    pub(crate) fn finishing(limit: usize) -> Self {
        Self::make(limit, true, None)
    }

    fn make(limit: usize, finishes: bool, gate: Option<fn(&mut dyn FnMut())>) -> Self {
        Self(Arc::new(PoolShared {
            limit: limit.max(1),
            gate,
            finishes,
            #[cfg(feature = "simulation")]
            simulated: simulation::is_on().then(tokio::runtime::Handle::current),
            state: Mutex::default(),
        }))
    }

    /// Runs a job on some thread, as soon as there is one.
    pub(crate) fn submit(&self, task: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        state.tasks.push_back(Box::new(task));
        self.0.attend(state);
    }

    /// Runs several jobs, which nothing comes between.
    pub(crate) fn submit_all(&self, tasks: impl ExactSizeIterator<Item = PoolJob>) {
        let threads = tasks.len().min(self.0.limit);
        self.0.lock().tasks.extend(tasks);
        (0..threads).for_each(|_| self.0.attend(self.0.lock()));
    }

    /// Threads that run a job or wait for one.
    #[cfg(test)]
    pub(crate) fn threads(&self) -> usize {
        self.0.lock().running
    }

    /// Jobs that no thread has begun.
    pub(crate) fn queued(&self) -> usize {
        self.0.lock().tasks.len()
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        let tasks = match self.0.finishes {
            true => VecDeque::new(),
            false => std::mem::take(&mut state.tasks),
        };
        // Not taken out: no job has claimed them.
        let sleeping = state.sleeping.clone();
        drop(state);
        sleeping.iter().for_each(|thread| thread.notify_one());
        // Their destructors answer whoever asked.
        drop(tasks);
    }
}

impl fmt::Debug for BlockingPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockingPool")
            .field("limit", &self.0.limit)
            .finish_non_exhaustive()
    }
}

impl PoolShared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }

    /// BP-2: wakes a thread, or starts one.
    fn attend(self: &Arc<Self>, mut state: MutexGuard<'_, PoolState>) {
        // BP-4: who comes next finds all of them.
        if state.tasks.is_empty() || state.coming {
            return;
        }
        #[cfg(feature = "simulation")]
        if let Some(runtime) = &self.simulated {
            drop(state);
            drop(runtime.spawn(simulation::unsteady(Arc::clone(self).simulate())));
            return;
        }
        let claimed = match mutated!(NoClaim) {
            true => state.sleeping.last().cloned(),
            false => state.sleeping.pop(),
        };
        if let Some(thread) = claimed {
            state.coming = self.gate.is_some();
            drop(state);
            thread.notify_one();
        } else if state.running < self.limit {
            state.running += 1;
            state.coming = self.gate.is_some();
            drop(state);
            let pool = Arc::clone(self);
            let spawned = thread::Builder::new()
                .name("farref-blocking".to_owned())
                .spawn(move || pool.work());
            if let Err(error) = spawned {
                // The job stays queued for the threads there are.
                tracing::error!(%error, "no thread could be started for a remote function");
                let mut state = self.lock();
                state.running -= 1;
                state.coming = false;
            }
        }
    }

    /// Runs what there is by then: in the order in which it came, as one thread would.
    #[cfg(feature = "simulation")]
    async fn simulate(self: Arc<Self>) {
        self.run_all();
    }

    fn work(self: Arc<Self>) {
        POOL.set(Some(Arc::clone(&self)));
        let me = Arc::new(Condvar::new());
        let mut state = self.lock();
        loop {
            // A thread that came back from waiting may be one too many.
            // What a closed pool still has is there to be finished.
            let over = state.closed && state.tasks.is_empty();
            if state.running > self.limit || over {
                break;
            }
            if !state.tasks.is_empty() {
                drop(state);
                self.run();
                state = self.lock();
                continue;
            }
            // Others were faster.
            state.coming = false;
            let claimed;
            (state, claimed) = sleep(&me, state);
            if !claimed {
                break;
            }
        }
        state.coming = false;
        state.running -= 1;
        // Whoever is left over finds its thread.
        self.attend(state);
    }

    /// Runs jobs until there are none.
    fn run(self: &Arc<Self>) {
        let mut has_run = false;
        if let Some(gate) = self.gate {
            gate(&mut || {
                has_run = true;
                self.run_all();
            });
        }
        if !has_run {
            self.run_all();
        }
    }

    fn run_all(self: &Arc<Self>) {
        let mut state = self.lock();
        state.coming = false;
        // A thread that came back from waiting may be one too many.
        while state.running <= self.limit {
            let Some(task) = state.tasks.pop_front() else {
                return;
            };
            match self.gate {
                // The job may take as long as it likes (BP-4).
                Some(_) => self.attend(state),
                None => drop(state),
            }
            // Jobs see to their panics themselves. One that slips through must not take the
            // thread's place in the count along (BP-2).
            if catch_unwind(AssertUnwindSafe(task)).is_err() {
                tracing::error!("a remote function panicked after its end");
            }
            state = self.lock();
        }
    }
}

/// Sleeps until a job claims this thread. Says whether one did: not if there is none for long, or the pool is closed.
fn sleep<'a>(
    me: &Arc<Condvar>,
    mut state: MutexGuard<'a, PoolState>,
) -> (MutexGuard<'a, PoolState>, bool) {
    state.sleeping.push(Arc::clone(me));
    loop {
        let (woken, timeout) = me
            .wait_timeout(state, IDLE)
            .unwrap_or_else(PoisonError::into_inner);
        state = woken;
        // Whatever has woken it: who is not there any more was claimed.
        let place = state.sleeping.iter().position(|at| Arc::ptr_eq(at, me));
        let Some(place) = place else {
            return (state, true);
        };
        if timeout.timed_out() || state.closed {
            state.sleeping.remove(place);
            return (state, false);
        }
    }
}

/// To be held while this thread waits for a call. If it is a thread of a pool, the pool does without it
/// meanwhile.
pub(crate) struct BlockedThread(Option<Arc<PoolShared>>);

impl BlockedThread {
    pub(crate) fn begin() -> Self {
        let pool = POOL.with_borrow(Clone::clone);
        if let Some(pool) = &pool {
            let mut state = pool.lock();
            state.running -= 1;
            pool.attend(state);
        }
        Self(pool)
    }
}

impl Drop for BlockedThread {
    fn drop(&mut self) {
        if let Some(pool) = &self.0 {
            pool.lock().running += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use farref_testkit::TEST_TIMEOUT;

    use super::*;
    use std::sync::{Barrier, mpsc};

    /// PyTorch #26362: as many nested calls as there are threads, and a few more.
    #[test]
    fn threads_that_wait_for_calls_do_not_use_the_pool_up() {
        let pool = Arc::new(BlockingPool::new(2));
        let (done, all_done) = mpsc::channel();
        fn nest(pool: &Arc<BlockingPool>, depth: usize, done: mpsc::Sender<()>) {
            let (inner, finished) = mpsc::channel();
            if depth > 0 {
                let below = Arc::clone(pool);
                pool.submit(move || nest(&below, depth - 1, inner));
                let waiting = BlockedThread::begin();
                finished.recv().unwrap();
                drop(waiting);
            }
            done.send(()).unwrap();
        }
        let below = Arc::clone(&pool);
        pool.submit(move || nest(&below, 40, done));
        all_done.recv_timeout(TEST_TIMEOUT).unwrap();
    }

    /// BP-2: one idle thread is one thread, however many jobs come before it is awake.
    #[test]
    fn jobs_that_wait_for_each_other_all_get_a_thread() {
        const JOBS: usize = 8;
        for round in 0..50 {
            let pool = BlockingPool::new(JOBS);
            pool.submit(|| {});
            while pool.0.lock().sleeping.is_empty() {
                thread::yield_now();
            }
            let barrier = Arc::new(Barrier::new(JOBS));
            let (done, all_done) = mpsc::channel();
            for _ in 0..JOBS {
                let (barrier, done) = (Arc::clone(&barrier), done.clone());
                pool.submit(move || {
                    barrier.wait();
                    done.send(()).unwrap();
                });
            }
            for _ in 0..JOBS {
                let ended = all_done.recv_timeout(TEST_TIMEOUT);
                assert!(ended.is_ok(), "in round {round} a job has no thread");
            }
        }
    }

    /// BP-2
    #[test]
    fn a_job_wakes_the_thread_that_has_slept_least() {
        const THREADS: usize = 3;
        let pool = BlockingPool::new(THREADS);
        let until_asleep = |number| {
            while pool.0.lock().sleeping.len() < number {
                thread::yield_now();
            }
        };
        let (done, all_done) = mpsc::channel();
        // All at once, so that each has a thread; then they go to sleep one after the other.
        let release: Vec<_> = (0..THREADS)
            .map(|_| {
                let (release, held) = mpsc::channel::<()>();
                let done = done.clone();
                pool.submit(move || {
                    let _ = held.recv();
                    done.send(thread::current().id()).unwrap();
                });
                release
            })
            .collect();
        let mut latest = None;
        for (number, release) in release.into_iter().enumerate() {
            drop(release);
            latest = Some(all_done.recv_timeout(TEST_TIMEOUT).unwrap());
            until_asleep(number + 1);
        }
        for _ in 0..10 {
            let done = done.clone();
            pool.submit(move || done.send(thread::current().id()).unwrap());
            let ran = all_done.recv_timeout(TEST_TIMEOUT).unwrap();
            assert_eq!(Some(ran), latest);
            until_asleep(THREADS);
        }
    }

    static GATE: Mutex<()> = Mutex::new(());

    fn through_gate(then: &mut dyn FnMut()) {
        let _entered = lock(&GATE);
        then();
    }

    /// BP-4
    #[test]
    fn jobs_that_need_what_one_thread_has_are_run_by_who_has_it() {
        let pool = BlockingPool::make(64, false, Some(through_gate));
        let (done, all_done) = mpsc::channel();
        let entered = lock(&GATE);
        for _ in 0..100 {
            let done = done.clone();
            pool.submit(move || {
                let has_gate = GATE.try_lock().is_err();
                done.send((has_gate, thread::current().id())).unwrap();
            });
        }
        assert_eq!(pool.threads(), 1, "one waits at the gate for all of them");
        drop(entered);
        for _ in 0..100 {
            let (has_gate, _) = all_done.recv_timeout(TEST_TIMEOUT).unwrap();
            assert!(has_gate);
        }
        assert!(pool.threads() <= 2, "{} threads", pool.threads());
    }

    static FLAPS: Mutex<()> = Mutex::new(());

    /// Lets the thread in, but does not keep it to itself: as an interpreter whose functions wait.
    fn through_flaps(then: &mut dyn FnMut()) {
        drop(lock(&FLAPS));
        then();
    }

    /// BP-2, BP-4
    #[test]
    fn jobs_that_give_the_gate_up_while_they_wait_for_each_other_all_get_a_thread() {
        const JOBS: usize = 8;
        for round in 0..50 {
            let pool = BlockingPool::make(JOBS, false, Some(through_flaps));
            let barrier = Arc::new(Barrier::new(JOBS));
            let (done, all_done) = mpsc::channel();
            for _ in 0..JOBS {
                let (barrier, done) = (Arc::clone(&barrier), done.clone());
                pool.submit(move || {
                    barrier.wait();
                    done.send(()).unwrap();
                });
            }
            for _ in 0..JOBS {
                let ended = all_done.recv_timeout(TEST_TIMEOUT);
                assert!(ended.is_ok(), "in round {round} a job has no thread");
            }
        }
    }

    fn closed(_: &mut dyn FnMut()) {}

    /// BP-4: they answer, if only to say that they cannot run.
    #[test]
    fn jobs_run_also_where_what_they_need_cannot_be_had_any_more() {
        let pool = BlockingPool::make(2, false, Some(closed));
        let (done, all_done) = mpsc::channel();
        pool.submit(move || done.send(()).unwrap());
        all_done.recv_timeout(TEST_TIMEOUT).unwrap();
    }

    /// BP-1
    #[test]
    fn no_more_threads_run_than_allowed() {
        let pool = BlockingPool::new(3);
        let counts = Arc::new(Mutex::new((0, 0)));
        let (done, all_done) = mpsc::channel();
        for _ in 0..30 {
            let counts = Arc::clone(&counts);
            let done = done.clone();
            pool.submit(move || {
                {
                    let mut counts = counts.lock().unwrap();
                    counts.0 += 1;
                    counts.1 = counts.1.max(counts.0);
                }
                thread::sleep(Duration::from_millis(2));
                counts.lock().unwrap().0 -= 1;
                done.send(()).unwrap();
            });
        }
        for _ in 0..30 {
            all_done.recv_timeout(TEST_TIMEOUT).unwrap();
        }
        let most = counts.lock().unwrap().1;
        assert!((1..=3).contains(&most), "{most}");
    }

    /// BP-3
    #[test]
    fn a_pool_that_finishes_its_jobs_does_so_on_its_own_threads_after_it_was_dropped() {
        let pool = BlockingPool::finishing(1);
        let (release, held) = mpsc::channel::<()>();
        pool.submit(move || {
            let _ = held.recv();
        });
        let (done, result) = mpsc::channel();
        for number in 0..3 {
            let done = done.clone();
            pool.submit(move || done.send((number, thread::current().id())).unwrap());
        }
        drop(pool);
        drop(release);
        for number in 0..3 {
            let (ran, thread) = result.recv_timeout(TEST_TIMEOUT).unwrap();
            assert_eq!(ran, number);
            assert_ne!(thread, thread::current().id());
        }
    }

    /// BP-3
    #[test]
    fn jobs_that_never_ran_are_dropped_with_the_pool() {
        let pool = BlockingPool::new(1);
        let (release, held) = mpsc::channel::<()>();
        pool.submit(move || {
            let _ = held.recv();
        });
        let (done, result) = mpsc::channel::<()>();
        pool.submit(move || drop(done));
        drop(pool);
        drop(release);
        let outcome = result.recv_timeout(TEST_TIMEOUT);
        assert_eq!(outcome, Err(mpsc::RecvTimeoutError::Disconnected));
    }
}
