//! Running code of the program's, on threads that an ending interpreter may end.
//!
//! # Invariants
//!
//! - **UC-1** A thread that comes back for an interpreter that has ended stays where it is, for as long as the process lives,
//!   which is not long. Until Python 3.14 the interpreter ends such threads by `pthread_exit`, which takes the stack down
//!   frame by frame; frames of Rust end the whole process then. The lowest one, here, keeps the thread instead, as
//!   Python does from 3.14 on, and as PyO3 does where it asks for the interpreter itself.

use std::hint::black_box;

use pyo3::ffi::PyObject;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

type Call =
    unsafe extern "C-unwind" fn(*mut PyObject, *mut PyObject, *mut PyObject) -> *mut PyObject;

unsafe extern "C-unwind" {
    fn PyObject_Call(
        callable: *mut PyObject,
        args: *mut PyObject,
        kwargs: *mut PyObject,
    ) -> *mut PyObject;
    fn Py_DecRef(object: *mut PyObject);
}

/// Dropped only where the stack is taken down: it never comes to that.
struct Stay;

impl Drop for Stay {
    fn drop(&mut self) {
        loop {
            std::thread::park();
        }
    }
}

/// Calls a function of the program's (UC-1).
pub(crate) fn call<'py>(
    function: &Bound<'py, PyAny>,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    // Others declare the same function as one that never unwinds, and the compiler would believe them.
    let call: Call = black_box(PyObject_Call);
    let kwargs = kwargs.map_or(std::ptr::null_mut(), Bound::as_ptr);
    let stay = Stay;
    // SAFETY: The interpreter is attached, and the objects are alive.
    let returned = unsafe { call(function.as_ptr(), args.as_ptr(), kwargs) };
    std::mem::forget(stay);
    // SAFETY: It is a reference of our own, or none and an exception is set.
    unsafe { Bound::from_owned_ptr_or_err(function.py(), returned) }
}

/// Gives an object back, with its destructor if nobody else has it (UC-1).
pub(crate) fn release(_attached: Python<'_>, object: Py<PyAny>) {
    let release: unsafe extern "C-unwind" fn(*mut PyObject) = black_box(Py_DecRef);
    let stay = Stay;
    // SAFETY: The interpreter is attached, and the reference was ours.
    unsafe { release(object.into_ptr()) };
    std::mem::forget(stay);
}
