//! The time limits of open calls, which one clock keeps for all of them.
//!
//! Nearly every call is answered long before its time is up, so keeping its time has to cost next to nothing:
//! the record of the call says when its time is up, and the clock knows only the first such moment, at most.
//! When that comes the clock looks at all open calls. Limits are mostly alike, so by then those that it set the
//! clock for are long answered, and the next moment is as far away as a whole limit.
//!
//! # Invariants
//!
//! - **DL-1** When the time of a call is up the clock looks at it: the clock forgets the moment that it knows
//!   before it looks, so whatever it might overlook is noted again.
//! - **DL-2** The clock looks at most for a sixteenth of the time, however many calls are open and however
//!   their limits are spread, unless a look takes longer than a sixteenth of [`MOST_REST`]: so long, at most, a call
//!   that is late waits for it.
//! - **DL-3** A look that panics ends nothing but itself.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;

use crate::support::clock::{Instant, sleep, sleep_until};
use crate::support::mutation::mutated;
use crate::support::sync::{AtomicU64, Ordering};

const NEVER: u64 = u64::MAX;

/// How much longer than it looked the clock sleeps (DL-2).
const REST: u32 = 15;
const MOST_REST: Duration = Duration::from_millis(250);

/// After a look that panicked the clock looks again by then (DL-3).
const AGAIN: Duration = Duration::from_secs(1);

/// Whoever has open calls with time limits.
pub(crate) trait HasDeadlines: Send + Sync + 'static {
    /// Ends the calls whose time is up by now. Says when the next one's is.
    fn end_late_calls(self: &Arc<Self>, now: Instant) -> Option<Instant>;
}

/// The first moment at which the time of a call may be up.
#[derive(Debug)]
struct Deadlines {
    epoch: Instant,
    /// In nanoseconds from the epoch.
    first: AtomicU64,
    earlier: Notify,
}

/// Ends the clock when it is dropped.
#[derive(Debug)]
pub(crate) struct Clock(Arc<Deadlines>);

impl Drop for Clock {
    fn drop(&mut self) {
        self.0.earlier.notify_one();
    }
}

impl Clock {
    pub(crate) fn new(epoch: Instant) -> Self {
        Self(Arc::new(Deadlines {
            epoch,
            first: AtomicU64::new(NEVER),
            earlier: Notify::new(),
        }))
    }

    /// The time of a call is up then.
    pub(crate) fn note(&self, at: Instant) {
        self.0.note(at);
    }

    /// What keeps time for a worker, until that is gone.
    pub(crate) fn run(
        &self,
        core: Weak<impl HasDeadlines>,
    ) -> impl Future<Output = ()> + Send + 'static {
        Arc::clone(&self.0).run(core)
    }
}

impl Deadlines {
    fn note(&self, at: Instant) {
        let after = at.saturating_duration_since(self.epoch);
        let at = u64::try_from(after.as_nanos()).unwrap_or(NEVER);
        // Most limits end later than the first one: those write nothing.
        if at < self.first.load(Ordering::SeqCst) && at < self.first.fetch_min(at, Ordering::SeqCst)
        {
            self.earlier.notify_one();
        }
    }

    async fn run(self: Arc<Self>, core: Weak<impl HasDeadlines>) {
        while core.strong_count() > 0 {
            let first = self.first.load(Ordering::SeqCst);
            if first == NEVER {
                self.earlier.notified().await;
                continue;
            }
            let at = self.epoch + Duration::from_nanos(first);
            tokio::select! {
                biased;
                () = sleep_until(at.into()) => {}
                () = self.earlier.notified() => continue,
            }
            let Some(core) = core.upgrade() else { return };
            // DL-1
            if !mutated!(ForgetAfterLooking) {
                self.first.store(NEVER, Ordering::SeqCst);
            }
            let began = Instant::now();
            let looked = catch_unwind(AssertUnwindSafe(|| core.end_late_calls(began)));
            if mutated!(ForgetAfterLooking) {
                self.first.store(NEVER, Ordering::SeqCst);
            }
            drop(core);
            match looked {
                Ok(Some(next)) => self.note(next),
                Ok(None) => {}
                Err(_) => {
                    tracing::error!("looking for calls whose time is up failed");
                    self.note(Instant::now() + AGAIN);
                }
            }
            sleep(rest_after(began.elapsed())).await;
        }
    }
}

/// How long the clock sleeps after a look that took so long (DL-2).
fn rest_after(look: Duration) -> Duration {
    look.saturating_mul(REST).min(MOST_REST)
}

#[cfg(test)]
mod tests {
    use farref_testkit::TEST_TIMEOUT;

    use super::*;
    use std::sync::Mutex;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_secs(3600);
    /// Calls of which nothing is known but when their time is up.
    struct Owner {
        clock: Clock,
        open: Mutex<Vec<Instant>>,
        ended: mpsc::UnboundedSender<Instant>,
    }

    impl HasDeadlines for Owner {
        fn end_late_calls(self: &Arc<Self>, now: Instant) -> Option<Instant> {
            let mut open = self.open.lock().unwrap();
            for late in open.extract_if(.., |at| *at <= now) {
                self.ended.send(late).unwrap();
            }
            open.iter().min().copied()
        }
    }

    impl Owner {
        fn start() -> (
            Arc<Self>,
            mpsc::UnboundedReceiver<Instant>,
            tokio::task::JoinHandle<()>,
        ) {
            let (ended, all_ended) = mpsc::unbounded_channel();
            let owner = Arc::new(Self {
                clock: Clock::new(Instant::now()),
                open: Mutex::default(),
                ended,
            });
            let running = tokio::spawn(owner.clock.run(Arc::downgrade(&owner)));
            (owner, all_ended, running)
        }

        fn open(&self, after: Duration) -> Instant {
            let at = Instant::now() + after;
            self.open.lock().unwrap().push(at);
            self.clock.note(at);
            at
        }
    }

    /// DL-1: whatever order they come in, and after the clock has looked for others.
    #[tokio::test]
    async fn dl_1_each_call_ends_when_its_time_is_up_and_none_before() {
        let (owner, mut ended, running) = Owner::start();
        owner.open(LONG);
        let mut expected: Vec<_> = [30, 10, 50, 20, 40]
            .map(|millis| owner.open(Duration::from_millis(millis)))
            .into();
        expected.sort_unstable();
        // A clock that is held up may find several that are over, in any order.
        let mut late = Vec::new();
        for _ in &expected {
            let at = timeout(TEST_TIMEOUT, ended.recv()).await.unwrap().unwrap();
            assert!(at <= Instant::now());
            late.push(at);
        }
        late.sort_unstable();
        assert_eq!(late, expected);
        let last = owner.open(Duration::ZERO);
        assert_eq!(
            timeout(TEST_TIMEOUT, ended.recv()).await.unwrap(),
            Some(last)
        );
        assert_eq!(owner.open.lock().unwrap().len(), 1);
        drop(owner);
        timeout(TEST_TIMEOUT, running).await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_clock_ends_with_its_owner_whether_it_waits_for_something_or_not() {
        for limit in [None, Some(LONG)] {
            let (owner, _, running) = Owner::start();
            limit.map(|limit| owner.open(limit));
            tokio::task::yield_now().await;
            drop(owner);
            timeout(TEST_TIMEOUT, running).await.unwrap().unwrap();
        }
    }

    /// Does as it is told when the clock looks; is told the clock, and how often it has looked before.
    struct Looks<L> {
        clock: Clock,
        look: L,
        looks: Mutex<usize>,
        looked: mpsc::UnboundedSender<Instant>,
    }

    impl<L> HasDeadlines for Looks<L>
    where
        L: Fn(&Clock, usize) -> Option<Instant> + Send + Sync + 'static,
    {
        fn end_late_calls(self: &Arc<Self>, now: Instant) -> Option<Instant> {
            self.looked.send(now).unwrap();
            let before = {
                let mut looks = self.looks.lock().unwrap();
                *looks += 1;
                *looks - 1
            };
            (self.look)(&self.clock, before)
        }
    }

    /// Until the clock has looked twice: what it did between.
    async fn look_twice(
        look: impl Fn(&Clock, usize) -> Option<Instant> + Send + Sync + 'static,
    ) -> Duration {
        let (looked, mut all_looks) = mpsc::unbounded_channel();
        let owner = Arc::new(Looks {
            clock: Clock::new(Instant::now()),
            look,
            looks: Mutex::default(),
            looked,
        });
        let running = tokio::spawn(owner.clock.run(Arc::downgrade(&owner)));
        owner.clock.note(Instant::now());
        let mut next = async || timeout(TEST_TIMEOUT, all_looks.recv()).await;
        let first = next().await.expect("it looks").expect("it runs");
        let second = next().await.expect("it looks again").expect("it runs");
        drop(owner);
        timeout(TEST_TIMEOUT, running).await.unwrap().unwrap();
        second - first
    }

    #[tokio::test]
    async fn dl_1_a_call_that_is_made_while_the_clock_looks_is_looked_at() {
        look_twice(|clock, before| {
            if before == 0 {
                clock.note(Instant::now());
            }
            None
        })
        .await;
    }

    #[tokio::test]
    async fn dl_3_after_a_look_that_panicked_there_is_another() {
        look_twice(|_, before| match before {
            0 => panic!("on purpose"),
            _ => None,
        })
        .await;
    }

    /// DL-2: the time between is a lower bound, however busy the machine is.
    #[tokio::test]
    async fn dl_2_the_clock_rests_after_a_look() {
        const LOOK: Duration = Duration::from_millis(5);
        let between = look_twice(|_, _| {
            std::thread::sleep(LOOK);
            Some(Instant::now())
        });
        assert!(between.await >= LOOK * (1 + REST));
    }

    #[test]
    fn dl_2_it_rests_in_proportion_and_never_for_long() {
        let millis = Duration::from_millis;
        for (look, rest) in [(0, 0), (1, 15), (10, 150), (17, 250), (3_600_000, 250)] {
            assert_eq!(rest_after(millis(look)), millis(rest));
        }
        assert_eq!(rest_after(Duration::MAX), MOST_REST);
    }
}
