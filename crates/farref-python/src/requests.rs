//! Reading what came of a call, and running what it asks for.

use farref::Worker;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyTuple};

use crate::errors::{Raised, interpreter_ends, raised, unreadable};
use crate::objects::{Object, Pickled};
use crate::scope;
use crate::thread_state;

/// What is called, its arguments, and those that have names.
pub(crate) type Read<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyTuple>,
    Option<Bound<'py, PyDict>>,
);

/// What is called. A text is the name of something to be imported.
pub(crate) fn read(py: Python<'_>, request: Pickled) -> PyResult<Read<'_>> {
    let (function, args, kwargs): Read<'_> = unpickled(py, request)?.extract()?;
    if !function.is_instance_of::<PyString>() {
        return Ok((function, args, kwargs));
    }
    let find = py.import("farref._remote")?.getattr("find")?;
    Ok((find.call1((function,))?, args, kwargs))
}

/// What came of a call. What cannot be read is told as that, and not as an exception of the function's.
pub(crate) fn unpickled(py: Python<'_>, request: Pickled) -> PyResult<Bound<'_, PyAny>> {
    let read = request.unpickle(py);
    read.map_err(|error| {
        let here = scope::enter(|| Worker::current().map(|worker| worker.name().to_owned()));
        let here = here.unwrap_or_else(|| "the other worker".to_owned());
        unreadable(
            py,
            error,
            &format!("what was sent with the call to `{here}`"),
        )
    })
}

/// Runs a plain function of Python on this thread, which is one of those that may wait.
pub(crate) fn attached(f: impl FnOnce(Python<'_>) -> PyResult<Object>) -> Result<Object, Raised> {
    let outcome = thread_state::attach(|py| f(py).map_err(|error| raised(py, &error)));
    outcome.unwrap_or_else(|| Err(interpreter_ends()))
}
