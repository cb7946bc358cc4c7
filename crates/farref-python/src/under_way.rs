//! Calls that have been begun and are not answered: the end of a group waits for them.
//!
//! # Invariants
//!
//! - **CW-1** A call is under way until it is answered or has failed, whether anybody waits for it or not.
//! - **CW-2** Who waits until none is under way sees to it that those are heard of for which nobody else waits.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use pyo3::prelude::*;

use crate::errors::alive;

/// How long who waits for all calls sleeps before it looks for signals, and for calls that nobody waits for (CW-2).
const LOOK: Duration = Duration::from_millis(50);

/// A call that hears of its end by itself from now on, if nobody waits for it (CW-2).
pub(crate) trait Heard: Send + Sync {
    fn hear(self: Arc<Self>);
}

struct Calls {
    number: u64,
    open: Option<HashMap<u64, Option<Weak<dyn Heard>>>>,
}

static CALLS: Mutex<Calls> = Mutex::new(Calls {
    number: 0,
    open: None,
});
static NONE_LEFT: Condvar = Condvar::new();

fn calls() -> MutexGuard<'static, Calls> {
    CALLS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call that is under way, until this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay(u64);

impl UnderWay {
    /// One that somebody waits for.
    pub(crate) fn begin() -> Self {
        Self::entered(None)
    }

    /// One that this knows of.
    pub(crate) fn of(call: Weak<dyn Heard>) -> Self {
        Self::entered(Some(call))
    }

    fn entered(call: Option<Weak<dyn Heard>>) -> Self {
        let mut calls = calls();
        let number = calls.number;
        calls.number += 1;
        calls.open.get_or_insert_default().insert(number, call);
        Self(number)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut calls = calls();
        let open = calls.open.get_or_insert_default();
        let call = open.remove(&self.0);
        let is_last = open.is_empty();
        drop(calls);
        drop(call);
        if is_last {
            NONE_LEFT.notify_all();
        }
    }
}

fn count() -> usize {
    calls().open.as_ref().map_or(0, HashMap::len)
}

/// How many calls are under way.
#[pyfunction]
pub(crate) fn calls_under_way() -> usize {
    hear_of_all();
    count()
}

/// CW-2
fn hear_of_all() {
    let open: Vec<_> = match &calls().open {
        Some(open) => open.values().flatten().filter_map(Weak::upgrade).collect(),
        None => Vec::new(),
    };
    open.into_iter().for_each(Heard::hear);
}

/// Waits until no call is under way.
#[pyfunction]
pub(crate) fn wait_until_answered(py: Python<'_>) -> PyResult<()> {
    alive()?;
    loop {
        py.detach(|| {
            hear_of_all();
            let calls = calls();
            if calls.open.as_ref().is_some_and(|open| !open.is_empty()) {
                drop(NONE_LEFT.wait_timeout(calls, LOOK));
            }
        });
        if count() == 0 {
            return Ok(());
        }
        py.check_signals()?;
    }
}
