//! What the interpreter keeps for a thread: made once, and not for every function that the thread runs.
//!
//! Python makes it when a thread of another system attaches, and takes it apart when that detaches: `threading.local()` and
//! the thread's name would be new in every call, and a call would pay for both.
//!
//! # Invariants
//!
//! - **TS-1** Only states that would go when the thread detaches are kept: Python sees to those of its own threads.
//! - **TS-2** A thread that has kept its state gives it back when it ends, unless the interpreter has ended before.

use std::cell::OnceCell;

use pyo3::ffi;
use pyo3::prelude::*;

use crate::interpreter;

thread_local! {
    static KEPT: OnceCell<Kept> = const { OnceCell::new() };
}

struct Kept;

/// Runs `f` with the interpreter, on a thread of this package's, which keeps its state. `None` if the interpreter is ending.
pub(crate) fn attach<T>(f: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let is_new = is_none();
    interpreter::attach_for_once(|py| {
        if is_new {
            keep(py);
        }
        f(py)
    })
}

/// Whether the interpreter has nothing for this thread.
fn is_none() -> bool {
    // SAFETY: It looks into the thread's own storage, and needs no interpreter.
    unsafe { ffi::PyGILState_GetThisThreadState() }.is_null()
}

/// Keeps the state of this thread from now on.
fn keep(_attached: Python<'_>) {
    KEPT.with(|kept| {
        kept.get_or_init(|| {
            // SAFETY: The thread is attached. This counts one use of its state more, which `Kept` gives back (TS-2).
            let former = unsafe { ffi::PyGILState_Ensure() };
            debug_assert!(matches!(former, ffi::PyGILState_STATE::PyGILState_LOCKED));
            Kept
        });
    });
}

impl Drop for Kept {
    fn drop(&mut self) {
        interpreter::attach_for_once(|_| {
            // SAFETY: The thread is attached, by a use of its own, and this is the use that `keep` has counted: the state
            // is taken apart when the other is over, and not here.
            unsafe { ffi::PyGILState_Release(ffi::PyGILState_STATE::PyGILState_LOCKED) }
        });
    }
}
