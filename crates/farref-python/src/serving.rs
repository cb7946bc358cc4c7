//! The functions by which other workers call those of Python.
//!
//! To the group they are functions like any other; which function of Python is meant is in their arguments. Plain functions
//! run on the worker's threads for those, coroutines on its [event loop](crate::coroutines).

use farref::functions::{CallScope, ForeignHandlers, OneAtATime, OwnValues};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::coroutines::{self, Coming};
use crate::errors::{Raised, again, exception};
use crate::objects::{Object, Pickled};
use crate::requests::{Read, attached, read, unpickled};
use crate::runtime;
use crate::scope;
use crate::thread_state;
use crate::torch_serving;
use crate::user_code;

// Whoever calls a function by its Python name, be it written in Python or in Rust, calls these.
farref::__private::inventory::submit! {
    ForeignHandlers {
        function: "farref_python::call",
        waiting: "farref_python::call_coroutine",
        method: "farref_python::Object::invoke",
        fetch: "farref_python::Object::fetch",
    }
}
farref::__private::inventory::submit! {
    OwnValues
}
// A thread that has the interpreter carries out one call after the other.
farref::__private::inventory::submit! {
    OneAtATime { enter: with_interpreter }
}

fn with_interpreter(then: &mut dyn FnMut()) {
    // None if it is ending: functions find that out themselves.
    let _entered = thread_state::attach(|py| {
        then();
        torch_serving::see_to_what_is_left(py);
    });
}

/// Calls a function of Python.
#[farref::remote(name = "farref_python::call")]
pub(crate) fn call(request: Pickled) -> Result<Object, Raised> {
    attached(|py| {
        let returned = {
            let (function, args, kwargs) = read(py, request)?;
            scope::serving(py, || user_code::call(&function, &args, kwargs.as_ref()))?
        };
        // Its arguments are gone: what they have is the result's own.
        finished(returned)
    })
}

/// Calls a coroutine function: no thread waits while it does.
#[farref::remote(name = "farref_python::call_coroutine")]
pub(crate) async fn call_coroutine(request: Pickled) -> Result<Object, Raised> {
    let scope = CallScope::current();
    coroutines::begin(scope, Coming::Call(request)).await
}

#[farref::remote(name = "farref_python::Object")]
impl Object {
    /// Calls a method.
    pub(crate) fn invoke(&self, request: Pickled) -> Result<Self, Raised> {
        attached(|py| {
            let (method, args, kwargs): Read<'_> = unpickled(py, request)?.extract()?;
            let method = self.look(py)?.getattr(method.cast::<PyString>()?)?;
            let returned = scope::serving(py, || user_code::call(&method, &args, kwargs.as_ref()))?;
            drop((method, args, kwargs));
            finished(returned)
        })
    }

    /// A copy of the value, for PyTorch's layer.
    pub(crate) fn torch_fetch(&self, request: Pickled) -> Result<Self, Raised> {
        torch_serving::fetched(self, request)
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

/// What a function has returned; if that is a coroutine, what it returns in turn.
fn finished(returned: Bound<'_, PyAny>) -> PyResult<Object> {
    if !coroutines::is_one(&returned)? {
        return Ok(Object::returned(returned, CallScope::current().as_ref()));
    }
    let py = returned.py();
    let coroutine = returned.unbind();
    let scope = CallScope::current();
    let running = coroutines::begin(scope.clone(), Coming::Coroutine(coroutine));
    // Dropped where nobody wants its result any more, it is cancelled (CO-1).
    let outcome = runtime::wait(py, async move {
        let Some(scope) = scope else {
            return Some(running.await);
        };
        tokio::select! {
            biased;
            outcome = running => Some(outcome),
            () = scope.given_up() => None,
        }
    })?;
    match outcome {
        Some(outcome) => outcome.map_err(|raised| again(py, &raised)),
        None => Err(exception(py, "Cancelled", "the call was cancelled")),
    }
}
