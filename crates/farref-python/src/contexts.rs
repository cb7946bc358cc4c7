//! Contexts, as Python sees them.

use farref::context::ContextScope;
use pyo3::prelude::*;

use crate::errors::{alive, to_python};
use crate::runtime;
use crate::scope::PyScope;
use crate::worker::PyWorker;

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
        PyScope::in_context(self.0.clone())
    }

    /// Ends it on all workers.
    fn release(&self, py: Python<'_>) -> PyResult<()> {
        runtime::wait(py, self.0.clone().release())?.map_err(|error| to_python(py, error))
    }
}
