//! Looks at the workers again and again, whatever becomes of them.

use std::time::Duration;

use farref::observe::{GroupView, Observer};
use tokio::sync::mpsc::Sender;
use tokio::time::MissedTickBehavior;

use super::seen::Seen;
use super::text::clean;

/// So many updates may wait to be taken: whoever takes them slowly looks less often, and nothing piles up.
pub(crate) const WAITING: usize = 2;

/// What happened.
pub(crate) enum Update {
    /// The workers were looked at.
    Seen(Vec<Seen>),
    /// Nobody can be found, for this reason.
    Lost(String),
    /// The system wants this to end.
    End,
}

/// Looks until nobody wants to know.
pub(crate) async fn watch(
    observer: Observer,
    address: String,
    group: GroupView,
    interval: Duration,
    updates: Sender<Update>,
) {
    let mut group = Some(group);
    let mut ticks = tokio::time::interval(interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let update = match &mut group {
            Some(found) => {
                let seen: Vec<Seen> = found.look().await.into_iter().map(Seen::from).collect();
                // All are gone: perhaps others meet at the same place.
                if seen.iter().all(|seen| seen.snapshot.is_err()) {
                    group = None;
                }
                Update::Seen(seen)
            }
            None => match observer.group(&address).await {
                Ok(found) => {
                    group = Some(found);
                    continue;
                }
                Err(error) => Update::Lost(clean(&error.to_string())),
            },
        };
        if updates.send(update).await.is_err() {
            return;
        }
    }
}

/// Tells of the first signal to end: without this, the terminal would stay as it is.
pub(crate) async fn signals(updates: Sender<Update>) {
    use tokio::signal::unix::{SignalKind, signal};
    let kinds = [
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
    ];
    let [Ok(mut terminate), Ok(mut hangup), Ok(mut interrupt)] = kinds.map(signal) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
        _ = interrupt.recv() => {}
    }
    let _ = updates.send(Update::End).await;
}
