//! What code of Python runs for: the call that it serves, the context that it is in.
//!
//! A plain function runs on a thread that the runtime has told so. Coroutines share a thread, a `with` block is no function,
//! and code may go on on other threads (`asyncio.to_thread`, `contextvars.copy_context().run`): for those a context variable of
//! Python has it.
//!
//! # Invariants
//!
//! - **RF-1** What a remote function runs for is in the variable while it runs, so whoever copies Python's context takes it along.
//! - **RF-2** A call is built, made and waited for as part of what the code runs for: within its time, in its context. The same
//!   holds for whatever else takes time.

use farref::context::ContextScope;
use farref::functions::CallScope;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// What surrounds code of Python.
#[pyclass(frozen, module = "farref._core")]
#[derive(Clone)]
pub(crate) struct PyScope {
    call: Option<CallScope>,
    context: Option<ContextScope>,
}

impl PyScope {
    pub(crate) fn of_call(call: CallScope) -> Self {
        Self {
            call: Some(call),
            context: None,
        }
    }

    /// What a block of code runs in that has a context of its own, for the same call as before, be it that of a coroutine.
    pub(crate) fn in_context(context: ContextScope) -> Self {
        Self {
            call: enter(CallScope::current),
            context: Some(context),
        }
    }

    fn run<T>(&self, f: impl FnOnce() -> T) -> T {
        let in_context = || match &self.context {
            Some(context) => context.enter(f),
            None => f(),
        };
        match &self.call {
            Some(call) => call.enter(in_context),
            None => in_context(),
        }
    }

    /// What surrounds this code, if it is not known to the thread.
    fn current(py: Python<'_>) -> Option<Self> {
        let variable = variable(py).ok()?;
        let scope = variable.call_method0(intern!(py, "get")).ok()?;
        Some(scope.cast::<Self>().ok()?.get().clone())
    }
}

fn variable(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let variable = VARIABLE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("farref._scope")?.getattr("current")?.unbind())
    });
    Ok(variable?.bind(py))
}

/// Runs a plain remote function (RF-1).
pub(crate) fn serving<T>(py: Python<'_>, f: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
    let Some(call) = CallScope::current() else {
        return f();
    };
    let variable = variable(py)?;
    let former = variable.call_method1(intern!(py, "set"), (PyScope::of_call(call),))?;
    let outcome = f();
    variable.call_method1(intern!(py, "reset"), (former,))?;
    outcome
}

/// Builds a call as part of what this code runs for.
pub(crate) fn enter<T>(f: impl FnOnce() -> T) -> T {
    match Python::try_attach(PyScope::current).flatten() {
        Some(scope) => scope.run(f),
        None => f(),
    }
}

/// The context that this code runs in, if it runs in one.
#[pyfunction]
pub(crate) fn context_id() -> Option<String> {
    enter(|| ContextScope::current().map(|context| context.id().to_string()))
}
