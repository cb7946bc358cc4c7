//! Turns that were dropped before they were ended: what is left to do for them, and who is at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use tokio::sync::watch;

/// What is left to do for turns that were not ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Abandoned {
    /// Whether the list has this worker by its own doing.
    pub(super) listed: Arc<AtomicBool>,
    pub(super) removals: Arc<AtomicU32>,
    /// How many tasks are at it. Nobody who waits for them owns them: they are not given up with it.
    pub(super) tasks: Arc<watch::Sender<usize>>,
}

/// A task that gives a turn up.
pub(super) struct Task(Arc<watch::Sender<usize>>);

impl Abandoned {
    pub(super) fn begin(&self) -> Task {
        self.tasks.send_modify(|tasks| *tasks += 1);
        Task(Arc::clone(&self.tasks))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.send_modify(|tasks| *tasks -= 1);
    }
}
