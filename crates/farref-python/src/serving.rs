//! The functions by which Python workers call each other.
//!
//! To the group they are functions like any other; which function of Python is meant is in their arguments. Plain functions
//! run on the worker's threads for those, coroutines on its [event loop](crate::coroutines).

use farref::functions::CallScope;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use serde::{Deserialize, Serialize};

use crate::coroutines;
use crate::errors::Raised;
use crate::interpreter;
use crate::objects::{Object, Pickled};
use crate::runtime;

/// A function, its arguments, and those that have names.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) arguments: Pickled,
}

/// A method's name, its arguments, and those that have names.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Invocation {
    pub(crate) method: String,
    pub(crate) arguments: Pickled,
}

/// Calls a function of Python.
#[farref::remote(name = "farref_python::call")]
pub(crate) fn call(request: Request) -> Result<Object, Raised> {
    attached(|py| {
        let (function, args, kwargs) = request.read(py)?;
        finished(function.call(args, kwargs.as_ref())?)
    })
}

/// Calls a coroutine function: no thread waits while it does.
#[farref::remote(name = "farref_python::call_coroutine")]
pub(crate) async fn call_coroutine(request: Request) -> Result<Object, Raised> {
    let scope = CallScope::current();
    let running = coroutines::begin(scope, move |py| {
        let (function, args, kwargs) = request.read(py)?;
        function.call(args, kwargs.as_ref())
    });
    running.await
}

#[farref::remote(name = "farref_python::Object")]
impl Object {
    /// Calls a method.
    pub(crate) fn invoke(&self, invocation: Invocation) -> Result<Self, Raised> {
        attached(|py| {
            let arguments = invocation.arguments.unpickle(py)?;
            let (args, kwargs): (Bound<'_, PyTuple>, Option<Bound<'_, PyDict>>) =
                arguments.extract()?;
            let value = self.look(py)?;
            finished(
                value
                    .getattr(&*invocation.method)?
                    .call(args, kwargs.as_ref())?,
            )
        })
    }

    /// A copy of the value.
    pub(crate) fn fetch(&self) -> Result<Self, Raised> {
        attached(|py| {
            Ok(Self::returned(
                self.look(py)?,
                CallScope::current().as_ref(),
            ))
        })
    }
}

impl Object {
    fn look<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Here(value) => Ok(value.bind(py)),
            // A value that stays was made here, by the functions above.
            Self::Pickled(_) => Err(pyo3::exceptions::PyTypeError::new_err(
                "the value is no object of this process",
            )),
        }
    }
}

pub(crate) type Read<'py> = (
    Bound<'py, PyAny>,
    Bound<'py, PyTuple>,
    Option<Bound<'py, PyDict>>,
);

impl Request {
    pub(crate) fn read(self, py: Python<'_>) -> PyResult<Read<'_>> {
        self.arguments.unpickle(py)?.extract()
    }
}

/// Runs a plain function of Python on this thread, which is one of those that may wait.
fn attached(f: impl FnOnce(Python<'_>) -> PyResult<Object>) -> Result<Object, Raised> {
    let outcome = interpreter::attach(|py| f(py).map_err(|error| Raised::new(py, &error)));
    outcome.unwrap_or_else(|| Err(Raised::interpreter_ends()))
}

/// What a function has returned; if that is a coroutine, what it returns in turn.
fn finished(returned: Bound<'_, PyAny>) -> PyResult<Object> {
    if !coroutines::is_one(&returned)? {
        return Ok(Object::returned(returned, CallScope::current().as_ref()));
    }
    let py = returned.py();
    let coroutine = returned.unbind();
    let running = coroutines::begin(CallScope::current(), move |py| Ok(coroutine.into_bound(py)));
    runtime::wait(py, running)?.map_err(|raised| raised.again(py))
}
