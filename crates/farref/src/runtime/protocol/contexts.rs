//! Releasing contexts of this worker's.

use std::sync::Arc;

use farref_proto::{ContextError, ContextId};
use tokio::sync::oneshot;

use super::work::Work;
use crate::error::Result;
use crate::runtime::core::{Core, ProtocolState};

impl Core {
    /// Releases a context that this worker opened, or joins those who wait for that already. None: it
    /// has been released, and everybody knows.
    pub(crate) fn release_context(
        self: &Arc<Self>,
        context: ContextId,
    ) -> Result<Option<oneshot::Receiver<()>>> {
        let mut state = self.lock();
        let ProtocolState { node, out, .. } = &mut *state;
        let released = match node.release_context(context, out) {
            Ok(()) => Ok(Some(state.releases.entry(context).or_default())),
            // Closed here; until all others have said so too there is a list of who waits for that.
            Err(ContextError::Closed { .. }) => Ok(state.releases.get_mut(&context)),
            Err(other) => Err(other.into()),
        };
        let released = released.map(|waiters| {
            waiters.map(|waiters| {
                let (sender, receiver) = oneshot::channel();
                waiters.push(sender);
                receiver
            })
        });
        self.finish_input(state, Work::new());
        released
    }
}
