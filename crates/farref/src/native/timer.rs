//! One timer for all sessions of an agent.
//!
//! It sleeps until the earliest moment at which a session wants to be woken, as far as it has been
//! told. Sessions move their moments with nearly every frame, mostly away; those that move away are
//! not reported. The timer then wakes for nothing, looks at all sessions and sleeps again.
//!
//! # Invariants
//!
//! - **TI-1** When a session's moment comes the timer looks at it: the timer announces that it knows
//!   of no moment before it looks, so whatever it might overlook wakes it again.
//! - **TI-2** No peer is blamed for a sleep of this process, whatever ended the timer's own.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use farref_proto::Time;
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until};

use super::shared::Shared;

/// A timer that fires so much too late shows that this process slept. What arrived meanwhile is to be
/// read before peers are blamed for the silence.
const OVERSLEPT: Duration = Duration::from_millis(250);
/// The least and the most time that is given then, to read what came and to make the connections anew
/// that peers have closed meanwhile. In between it is a part of what a peer may be silent for.
const GRACE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How often it is given in a row, if even this comes too late: a machine that is as busy as that still
/// has to give signs of life.
const GRACES: u32 = 3;

/// When the timer fires, and how to make it earlier.
#[derive(Debug)]
pub(super) struct Timer {
    until: AtomicU64,
    earlier: Notify,
}

impl Default for Timer {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(u64::MAX),
            earlier: Notify::new(),
        }
    }
}

impl Timer {
    /// Whether the timer looks at the sessions by then anyway.
    pub(super) fn fires_by(&self, at: Time) -> bool {
        self.until.load(Ordering::SeqCst) <= at.0
    }

    /// Sees to it that the timer looks at the sessions by then.
    pub(super) fn arm(&self, at: Option<Time>) {
        let Some(Time(at)) = at else { return };
        // Most moments are later than the one that the timer waits for: do not write for those.
        if at < self.until.load(Ordering::SeqCst) && at < self.until.fetch_min(at, Ordering::SeqCst)
        {
            self.earlier.notify_one();
        }
    }
}

/// The timer's task.
pub(super) async fn run(shared: Arc<Shared>) {
    let timer = &shared.timer;
    let mut now = shared.now();
    loop {
        // TI-1
        timer.until.store(u64::MAX, Ordering::SeqCst);
        let next = shared
            .links()
            .iter()
            .filter_map(|link| link.handle_timeout(now))
            .min();
        if let Some(Time(next)) = next {
            timer.until.fetch_min(next, Ordering::SeqCst);
        }
        let until = Time(timer.until.load(Ordering::SeqCst));
        if until == Time(u64::MAX) {
            timer.earlier.notified().await;
            now = shared.now();
            continue;
        }
        tokio::select! {
            () = sleep_until(shared.instant(until)) => {}
            () = timer.earlier.notified() => {}
        }
        now = awake(&shared, until).await;
    }
}

/// The present, when what arrived while this process slept has been read (TI-2). `due` is when it
/// should have woken at the latest.
async fn awake(shared: &Shared, mut due: Time) -> Time {
    let (least, most) = GRACE;
    let grace = (shared.config.peer_timeout / 4).clamp(least, most);
    for _ in 0..GRACES {
        let now = shared.now();
        if now.since(due) <= OVERSLEPT {
            return now;
        }
        due = now + grace;
        sleep(grace).await;
    }
    shared.now()
}
