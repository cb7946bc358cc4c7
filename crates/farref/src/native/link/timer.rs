//! One timer for all sessions of an agent.
//!
//! For each link it keeps the moment at which the link's session wants to be woken, as far as it has been
//! told. Sessions move their moments with nearly every frame, mostly away; those that move away are not
//! reported. The timer then looks at that link for nothing, and keeps the new moment.
//!
//! # Invariants
//!
//! - **TI-1** When a session's moment comes the timer looks at it: the timer clears what it has kept for the
//!   link before it looks, so whatever it might overlook is reported again.
//! - **TI-2** No peer is blamed for a sleep of this process, whatever ended the timer's own.
//! - **TI-3** The timer looks at no link before the moment that it keeps for it.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farref_proto::{NodeId, Time};
use tokio::sync::Notify;

use crate::native::endpoint::Endpoint;
use crate::support::clock::{sleep, sleep_until};
use crate::support::lock::lock;
use crate::support::mutation::mutated;
use crate::support::sync::{AtomicU64, Mutex, Ordering};

/// A timer that fires so much too late shows that this process slept. What arrived meanwhile is to be
/// read before peers are blamed for the silence.
const OVERSLEPT: Duration = Duration::from_millis(250);
/// The least and the most time that is given then, to read what came and to make the connections anew
/// that peers have closed meanwhile. In between it is a part of what a peer may be silent for.
const GRACE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// How often it is given in a row, if even this comes too late: a machine that is as busy as that still
/// has to send heartbeats.
const GRACES: u32 = 3;

const NEVER: u64 = u64::MAX;

/// Whoever wants to be woken: a link.
pub(crate) trait Timed: Send + Sync + 'static {
    fn peer(&self) -> NodeId;

    fn alarm(&self) -> &Alarm;

    /// Does what has fallen due. Returns when something falls due next.
    fn handle_timeout(self: &Arc<Self>, now: Time) -> Option<Time>;
}

/// When the timer looks at which link, and how to make it earlier.
#[derive(Debug)]
pub(crate) struct Timer<L> {
    /// The first of them, at most.
    until: AtomicU64,
    earlier: Notify,
    moments: Mutex<BTreeMap<(u64, NodeId), Weak<L>>>,
}

impl<L> Default for Timer<L> {
    fn default() -> Self {
        Self {
            until: AtomicU64::new(NEVER),
            earlier: Notify::new(),
            moments: Mutex::default(),
        }
    }
}

/// The moment that the timer keeps for a link. Changes only while the timer's moments are locked.
#[derive(Debug)]
pub(crate) struct Alarm {
    at: AtomicU64,
    /// How often the timer has looked at the link.
    #[cfg(test)]
    pub(crate) looks: AtomicU64,
}

impl Default for Alarm {
    fn default() -> Self {
        Self {
            at: AtomicU64::new(NEVER),
            #[cfg(test)]
            looks: AtomicU64::new(0),
        }
    }
}

impl Alarm {
    /// Whether the timer looks at the link by then anyway.
    pub(super) fn fires_by(&self, at: Time) -> bool {
        self.at.load(Ordering::SeqCst) <= at.0
    }
}

impl<L: Timed> Timer<L> {
    /// Sees to it that the timer looks at the link by then.
    pub(crate) fn arm(&self, link: &Arc<L>, at: Option<Time>) {
        let Some(Time(at)) = at else { return };
        let alarm = &link.alarm().at;
        // Most moments are later than the one that is kept: do not lock for those.
        if at >= alarm.load(Ordering::SeqCst) {
            return;
        }
        let mut moments = lock(&self.moments);
        let kept = alarm.load(Ordering::SeqCst);
        if at >= kept {
            return;
        }
        moments.remove(&(kept, link.peer()));
        moments.insert((at, link.peer()), Arc::downgrade(link));
        alarm.store(at, Ordering::SeqCst);
        drop(moments);
        if at < self.until.fetch_min(at, Ordering::SeqCst) && !mutated!(TimerNotTold) {
            self.earlier.notify_one();
        }
    }

    /// The links whose moments have come. What was kept for them is cleared (TI-1).
    fn take_due(&self, now: Time) -> Vec<Arc<L>> {
        let mut due = Vec::new();
        let mut moments = lock(&self.moments);
        while let Some(first) = moments.first_entry() {
            if first.key().0 > now.0 {
                break;
            }
            if let Some(link) = first.remove().upgrade() {
                link.alarm().at.store(NEVER, Ordering::SeqCst);
                due.push(link);
            }
        }
        due
    }

    fn first(&self) -> Option<u64> {
        let moments = lock(&self.moments);
        moments.first_key_value().map(|((at, _), _)| *at)
    }

    /// The timer's task.
    pub(crate) async fn run(self: Arc<Self>, endpoint: Arc<Endpoint>) {
        let mut now = endpoint.now();
        loop {
            // Whatever is kept from here on wakes the timer again.
            self.until.store(NEVER, Ordering::SeqCst);
            for link in self.take_due(now) {
                #[cfg(test)]
                link.alarm().looks.fetch_add(1, Ordering::Relaxed);
                let next = link.handle_timeout(now);
                self.arm(&link, next);
            }
            if let Some(first) = self.first() {
                self.until.fetch_min(first, Ordering::SeqCst);
            }
            let until = Time(self.until.load(Ordering::SeqCst));
            if until == Time(NEVER) {
                self.earlier.notified().await;
                now = endpoint.now();
                continue;
            }
            tokio::select! {
                biased;
                () = sleep_until(endpoint.instant(until)) => {}
                () = self.earlier.notified() => {}
            }
            now = awake(&endpoint, until).await;
        }
    }
}

/// The present, when what arrived while this process slept has been read (TI-2). `due` is when it
/// should have woken at the latest.
async fn awake(endpoint: &Endpoint, mut due: Time) -> Time {
    let (least, most) = GRACE;
    let grace = (endpoint.config.peer_timeout / 4).clamp(least, most);
    for _ in 0..GRACES {
        let now = endpoint.now();
        if now.since(due) <= OVERSLEPT {
            return now;
        }
        due = now + grace;
        sleep(grace).await;
    }
    endpoint.now()
}
