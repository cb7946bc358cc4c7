//! What is one for all processes of a pretended machine.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::state::State;

/// How long anything may take before it counts as hanging.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// What all processes of a machine share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    pub(super) changed: Condvar,
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
