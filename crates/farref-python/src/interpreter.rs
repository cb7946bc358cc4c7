//! Whether there is an interpreter, and getting it.
//!
//! # Invariants
//!
//! - **IN-1** When the interpreter ends, no thread of this package has it or asks for it: [`close`] shuts the door, and
//!   waits for those who are inside, but not for ever. A thread that asks an ending interpreter for anything is ended by it, in
//!   the middle of Rust code: what becomes of those is in [`user_code`](crate::user_code).
//! - **IN-2** In a process that was forked off from a worker nothing of the worker is touched: its threads are not there, and
//!   its connections belong to the other process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

/// Threads of this package that have the interpreter, or are about to; none any more if it is closed.
static INSIDE: Mutex<Inside> = Mutex::new(Inside {
    threads: 0,
    closed: false,
});
static LEFT: Condvar = Condvar::new();
static FORKED: AtomicBool = AtomicBool::new(false);

struct Inside {
    threads: usize,
    closed: bool,
}

struct Guest;

impl Drop for Guest {
    fn drop(&mut self) {
        INSIDE
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .threads -= 1;
        LEFT.notify_all();
    }
}

/// Runs `f` with the interpreter, on a thread of this package's that does not come back ([`thread_state`](crate::thread_state)
/// has it for those that do). `None` if the interpreter is ending (IN-1).
pub(crate) fn attach_for_once<T>(f: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    if has_forked() {
        return None;
    }
    let _guest = {
        let mut inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
        if inside.closed {
            return None;
        }
        inside.threads += 1;
        Guest
    };
    Python::try_attach(f)
}

/// Whether nothing can be done with the interpreter any more, or with a worker.
pub(crate) fn is_over() -> bool {
    has_forked() || INSIDE.lock().unwrap_or_else(PoisonError::into_inner).closed
}

/// Whether this process was forked off from one with a worker (IN-2).
pub(crate) fn has_forked() -> bool {
    FORKED.load(Ordering::Relaxed)
}

/// Called in the new process after a fork.
pub(crate) fn forked() {
    FORKED.store(true, Ordering::Relaxed);
}

/// Lets nobody in any more, and waits until those are out who are in, but not for ever: a function of the program's may take
/// as long as it likes. Called without the interpreter.
pub(crate) fn close(patience: Duration) {
    let until = Instant::now() + patience;
    let mut inside = INSIDE.lock().unwrap_or_else(PoisonError::into_inner);
    inside.closed = true;
    while inside.threads > 0 {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        (inside, _) = LEFT
            .wait_timeout(inside, left)
            .unwrap_or_else(PoisonError::into_inner);
    }
}
