//! Finding out what workers are called that have joined.

use std::sync::Arc;
use std::time::Duration;

use farref_proto::NodeId;

use crate::runtime::core::Core;
use crate::support::simulation::unsteady;

/// How long to wait before a newcomer is looked up again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

impl Core {
    /// Finds out what a newcomer is called.
    pub(crate) fn learn_name(self: &Arc<Self>, node: NodeId) {
        let unknown = self.names.of(node).is_none();
        let Some(directory) = self.names.directory().filter(|_| unknown).cloned() else {
            return self.names.changed.notify_waiters();
        };
        let weak = Arc::downgrade(self);
        let lookups = Arc::clone(&self.names.lookups);
        self.runtime.spawn(unsteady(async move {
            let mut pause = FIRST_PAUSE;
            loop {
                // Nobody closes it.
                let turn = lookups.acquire().await;
                // Its own greeting may have said who it is, and it may be gone again.
                let is_wanted = |core: &Arc<Self>| {
                    core.names.of(node).is_none()
                        && core.look(|own| own.membership().view().is_member(node))
                };
                if weak.upgrade().filter(is_wanted).is_none() {
                    return;
                }
                let found = directory.lookup(node).await;
                drop(turn);
                let Some(core) = weak.upgrade().filter(is_wanted) else {
                    return;
                };
                match found {
                    Ok(card) => return core.learned(card),
                    Err(error) => {
                        tracing::debug!(%node, %error, "a newcomer is not found in the store");
                    }
                }
                drop(core);
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }));
    }
}
