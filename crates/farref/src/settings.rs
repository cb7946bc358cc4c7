//! What a running worker has to know of how it was set up.

use std::time::Duration;

/// The settings of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The time limit of calls that do not say. None: unlimited.
    pub(crate) call_timeout: Option<Duration>,
    /// How long a graceful shutdown may take.
    pub(crate) shutdown_timeout: Duration,
    /// How long references that nothing but the program holds may outlive everything else.
    pub(crate) leak_grace: Duration,
    /// Whether such references make the shutdown fail.
    pub(crate) fail_on_leaks: bool,
    /// Threads for plain functions that are not waiting for calls of their own.
    pub(crate) blocking_threads: usize,
    /// Calls of one peer that are accepted at once.
    pub(crate) max_calls: u32,
}

impl Settings {
    /// After how many calls whose results stay their caller is told that there is room again.
    pub(crate) fn credit_lot(&self) -> u32 {
        (self.max_calls / 4).clamp(1, 16)
    }
}
