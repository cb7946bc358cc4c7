//! Groups in one process, for tests.

use std::sync::{Mutex, PoisonError};

use farref::testing::Cluster;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::errors::{alive, to_python};
use crate::runtime;
use crate::worker::PyWorker;

/// Workers of one process that are a group, over a network in memory.
#[pyclass(frozen, module = "farref._core")]
pub(crate) struct PyCluster(Mutex<Option<Cluster>>);

#[pymethods]
impl PyCluster {
    #[new]
    fn start(py: Python<'_>, names: Vec<String>) -> PyResult<Self> {
        alive()?;
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let cluster = runtime::wait(py, Cluster::start_named(&names))?;
        let cluster = cluster.map_err(|error| to_python(py, error))?;
        Ok(Self(Mutex::new(Some(cluster))))
    }

    /// Its workers.
    fn workers(&self) -> Vec<PyWorker> {
        let cluster = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let workers = cluster.iter().flat_map(|cluster| cluster.workers());
        workers.cloned().map(PyWorker::new).collect()
    }

    /// Ends the group, and asserts that nothing is left behind.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        let cluster = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let cluster = cluster.ok_or_else(|| PyRuntimeError::new_err("the cluster has ended"))?;
        runtime::wait(py, cluster.shutdown())?.map_err(|error| to_python(py, error))
    }
}
