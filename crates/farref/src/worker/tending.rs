//! What goes on as long as a worker runs: its clock, and the group's store.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::hosting::HostedStore;
use crate::rendezvous::RendezvousError;
use crate::runtime::{Core, WorkerStage};

/// When the store is gone, or a worker that may have been its host: hosts the store if this worker may, and
/// tells the new one what the group knows, so that others, the former host among them, can join again (S3).
pub(super) async fn keep_store(core: Weak<Core>, hosted: Weak<HostedStore>) {
    const RETRY: Duration = Duration::from_millis(250);
    loop {
        let Some(strong) = core.upgrade() else {
            return;
        };
        let Some(directory) = strong.names.directory() else {
            return;
        };
        tokio::select! {
            () = strong.store_lost.notified() => {}
            () = directory.store_lost() => {}
        }
        while strong.is_member() {
            if let Some(hosted) = hosted.upgrade() {
                hosted.take_over().await;
            }
            match directory.republish().await {
                Ok(()) => break,
                Err(error @ RendezvousError::OtherGroup { .. }) => {
                    tracing::warn!(worker = %strong.name, %error, "nobody can join this group any more");
                    break;
                }
                Err(error) => tracing::debug!(%error, "the group's store is not back yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Ends the worker if its runtime goes first: nobody would answer any more, and no clock would run.
pub(super) async fn watch_runtime(core: Weak<Core>) {
    struct Watch(Weak<Core>);

    impl Drop for Watch {
        fn drop(&mut self) {
            if let Some(core) = self.0.upgrade()
                && !core.is_over()
            {
                core.stranded();
            }
        }
    }

    let Some(mut stage) = core.upgrade().map(|core| core.stage.subscribe()) else {
        return;
    };
    let watch = Watch(core);
    // An error: the worker is gone with all its handles.
    drop(stage.wait_for(|stage| *stage > WorkerStage::Member).await);
    drop(watch);
}

/// Does what the clock says and sends what has gathered, until the worker is gone. On the thread that no
/// program can keep from running.
pub(super) async fn pump(core: Weak<Core>) {
    let patience = Duration::from_secs(1);
    let mut measured = None;
    loop {
        let Some(strong) = core.upgrade() else {
            return;
        };
        strong.tick();
        // Dropped references wake the pump as often as they come; the instruments look once in a while.
        if measured.is_none_or(|at: Instant| at.elapsed() >= patience) {
            strong.measure();
            measured = Some(Instant::now());
        }
        let due = strong.next_tick();
        // Borrowed from `strong`, which must not be kept while waiting for long.
        let woken = strong.pump.notified();
        match due {
            Some(at) => drop(tokio::time::timeout_at(at.into(), woken).await),
            None => drop(tokio::time::timeout(patience, woken).await),
        }
    }
}
