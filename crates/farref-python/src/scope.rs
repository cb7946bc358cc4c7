//! What code of Python runs for: the call that it serves, the context that it is in.
//!
//! A plain function runs on a thread that the runtime has told so. Coroutines share a thread, and a `with` block is no
//! function: for those a context variable of Python has it.

use farref::context::ContextScope;
use farref::functions::CallScope;
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
        static VARIABLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let variable = VARIABLE.get_or_try_init(py, || {
            Ok::<_, PyErr>(py.import("farref._scope")?.getattr("current")?.unbind())
        });
        let scope = variable.ok()?.bind(py).call_method0("get").ok()?;
        Some(scope.cast::<Self>().ok()?.get().clone())
    }
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
