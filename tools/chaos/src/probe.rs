//! The values of the workload: each notes that it came to be, was used, and went.

use std::sync::atomic::{AtomicU64, Ordering};

use super::data::mixed;
use super::history::{self, Event, ran};

static VALUES: AtomicU64 = AtomicU64::new(0);

/// A value whose life is noted.
pub(super) struct Probe {
    value: u64,
    /// How often a method had it to itself.
    changes: u64,
}

impl Drop for Probe {
    fn drop(&mut self) {
        freed(self.value);
    }
}

#[farref::remote(name = "chaos::Probe", python = "chaos.Probe")]
impl Probe {
    pub(super) fn new(value: u64) -> Self {
        made(value);
        Self { value, changes: 0 }
    }

    /// Says that it was here.
    pub(super) async fn mark(&self, call: u64) -> u64 {
        self.note(call, "Probe::mark");
        mixed(self.value, call)
    }

    /// The same, while nobody else uses the value.
    pub(super) async fn change(&mut self, call: u64) -> u64 {
        self.note(call, "Probe::change");
        let before = self.changes;
        tokio::task::yield_now().await;
        self.changes = before + 1;
        mixed(self.value, call)
    }
}

impl Probe {
    fn note(&self, call: u64, function: &str) {
        ran(call, function);
        history::note(Event::Used {
            value: self.value,
            call,
        });
    }

    /// Its number, for whoever has it here.
    pub(super) fn value(&self) -> u64 {
        self.value
    }
}

/// A value has come to be here.
fn made(value: u64) {
    VALUES.fetch_add(1, Ordering::Relaxed);
    history::note(Event::Made { value });
}

/// And has gone.
fn freed(value: u64) {
    history::note(Event::Freed { value });
    VALUES.fetch_sub(1, Ordering::Relaxed);
}

/// How many of them are in this process.
pub(super) fn count() -> u64 {
    VALUES.load(Ordering::Relaxed)
}
