//! What code of Python runs for: the call that it serves, the context that it is in.
//!
//! A plain function runs on a thread that the runtime has told so. Coroutines share a thread, and a `with` block is no
//! function: for those a context variable of Python has it.

use farref::context::ContextScope;
use farref::functions::CallScope;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::{alive, to_python};
use crate::runtime;
use crate::worker::PyWorker;

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

/// A context: whatever is called inside of its block belongs together, on all workers, until the block ends.
#[pyclass(frozen, name = "Context", module = "farref")]
pub(crate) struct PyContext(ContextScope);

#[pymethods]
impl PyContext {
    #[new]
    fn open(py: Python<'_>, worker: &PyWorker) -> PyResult<Self> {
        alive()?;
        ContextScope::open(worker.worker())
            .map(Self)
            .map_err(|error| to_python(py, error))
    }

    /// Which context it is: unique in the group.
    #[getter]
    fn id(&self) -> String {
        self.0.id().to_string()
    }

    /// What its block runs in.
    fn scope(&self) -> PyScope {
        PyScope {
            call: CallScope::current(),
            context: Some(self.0.clone()),
        }
    }

    /// Ends it on all workers.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        runtime::wait(py, self.0.clone().release())?.map_err(|error| to_python(py, error))
    }
}

/// The context that this code runs in, if it runs in one.
#[pyfunction]
pub(crate) fn context_id() -> Option<String> {
    enter(|| ContextScope::current().map(|context| context.id().to_string()))
}
