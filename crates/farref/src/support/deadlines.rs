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
//!   their limits are spread.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until};

const NEVER: u64 = u64::MAX;

/// How much longer than it looked the clock sleeps (DL-2).
const REST: u32 = 15;

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
                () = sleep_until(at.into()) => {}
                () = self.earlier.notified() => continue,
            }
            let Some(core) = core.upgrade() else { return };
            // DL-1
            self.first.store(NEVER, Ordering::SeqCst);
            let began = Instant::now();
            let next = core.end_late_calls(began);
            drop(core);
            if let Some(next) = next {
                self.note(next);
            }
            sleep(began.elapsed() * REST).await;
        }
    }
}
