//! What a process of the workload is told when it is started: as JSON, in an argument.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::history::Life;

/// Which worker it is, and of which run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) worker: String,
    pub(super) life: Life,
    pub(super) seed: u64,
    /// Where the histories are.
    pub(super) folder: PathBuf,
    /// Where the workers meet.
    pub(super) rendezvous: String,
    /// Where it listens, and where it says that it does. None: where it likes.
    pub(super) route: Option<Route>,
    pub(super) peer_timeout_ms: u64,
    /// The time limit of its calls.
    pub(super) limit_ms: u64,
    /// How long each of its lanes waits before an operation, on average.
    pub(super) pause_us: u64,
}

/// The way to a worker by way of the proxy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Route {
    /// Where the worker listens.
    pub(super) listen: u16,
    /// Where the proxy does, for it.
    pub(super) advertise: u16,
}

impl Settings {
    pub(super) fn peer_timeout(&self) -> Duration {
        Duration::from_millis(self.peer_timeout_ms)
    }

    pub(super) fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms)
    }

    pub(super) fn pause(&self) -> Duration {
        Duration::from_micros(self.pause_us)
    }
}

impl FromStr for Settings {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text).map_err(|_| "this argument is for `farref-chaos` itself")
    }
}

/// How many things a worker does side by side.
pub(super) const LANES: u32 = 3;

/// What Rust workers are called, and Python workers: with their numbers behind it.
pub(super) const RUST: &str = "worker";
pub(super) const PYTHON: &str = "python";
