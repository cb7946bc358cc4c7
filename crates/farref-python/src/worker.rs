//! A worker of the group: joining, ending, looking into it.

use std::net::IpAddr;
use std::time::Duration;

use farref::{StoreServer, Tls, Worker, WorkerBuilder};
use pyo3::exceptions::{PyOSError, PySystemExit, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyString;

use crate::errors::{alive, to_python};
use crate::interpreter;
use crate::objects::Object;
use crate::peers::PyPeer;
use crate::places::{self, Made};
use crate::references::PyRRef;
use crate::runtime::{self, duration};
use crate::scope;

/// A worker of a group: what `farref.join()` returns.
///
/// As a context manager it ends when its block does: with all others (`shutdown`), or at once if the block raises. An exit
/// with code 0 is no failure.
#[pyclass(frozen, name = "Worker", module = "farref")]
pub(crate) struct PyWorker(Worker);

impl PyWorker {
    pub(crate) fn new(worker: Worker) -> Self {
        Self(worker)
    }

    pub(crate) fn worker(&self) -> &Worker {
        &self.0
    }
}

impl Drop for PyWorker {
    fn drop(&mut self) {
        if interpreter::has_forked() {
            // IN-2, as with references.
            std::mem::forget(self.0.clone());
        }
    }
}

/// A store that workers meet in, hosted by this process until it is dropped.
#[pyclass(frozen, module = "farref._core")]
pub(crate) struct StoreHost(StoreServer);

#[pymethods]
impl StoreHost {
    #[new]
    fn start(py: Python<'_>, address: &str) -> PyResult<Self> {
        alive()?;
        let server = runtime::wait(py, StoreServer::bind((address, 0)))?;
        let failed = |error| PyOSError::new_err(format!("no store could be hosted: {error}"));
        server.map(Self).map_err(failed)
    }

    /// The port that it listens on.
    #[getter]
    fn port(&self) -> u16 {
        self.0.local_addr().port()
    }
}

/// How long references that are still held at the end may take to go.
const LEAK_GRACE: Duration = Duration::from_millis(200);

/// Joins a group, as `farref.join()` says.
#[pyfunction]
#[pyo3(signature = (*, name=None, rank=None, world_size=None, rendezvous=None, token=None, tls=None, insecure=false,
    bind=None, advertise=None, port=None, join_timeout=None, call_timeout=None, shutdown_timeout=None, peer_timeout=None,
    threads=None, require_majority=None, fail_on_leaks=None, store_is_hosted_elsewhere=false, environment=true))]
#[expect(
    clippy::too_many_arguments,
    reason = "each is one setting, by its name"
)]
pub(crate) fn join(
    py: Python<'_>,
    name: Option<String>,
    rank: Option<u32>,
    world_size: Option<u32>,
    rendezvous: Option<&str>,
    token: Option<String>,
    tls: Option<(String, String, String)>,
    insecure: bool,
    bind: Option<&str>,
    advertise: Option<&str>,
    port: Option<u16>,
    join_timeout: Option<f64>,
    call_timeout: Option<f64>,
    shutdown_timeout: Option<f64>,
    peer_timeout: Option<f64>,
    threads: Option<usize>,
    require_majority: Option<bool>,
    fail_on_leaks: Option<bool>,
    store_is_hosted_elsewhere: bool,
    environment: bool,
) -> PyResult<PyWorker> {
    alive()?;
    let mut builder = match environment {
        true => with(Worker::from_env(), name, WorkerBuilder::name),
        false => Worker::builder(name.unwrap_or_default()),
    };
    // In Python a variable outlives its block, and holds what it holds when the group ends.
    builder = builder.leak_grace(LEAK_GRACE);
    builder = with(builder, rank, WorkerBuilder::rank);
    builder = with(builder, world_size, WorkerBuilder::world_size);
    builder = with(builder, rendezvous, WorkerBuilder::rendezvous);
    builder = with(builder, token, WorkerBuilder::token);
    builder = with(builder, address("bind", bind)?, WorkerBuilder::bind);
    builder = with(
        builder,
        address("advertise", advertise)?,
        WorkerBuilder::advertise,
    );
    builder = with(builder, port, WorkerBuilder::port);
    builder = with(builder, seconds(join_timeout)?, WorkerBuilder::join_timeout);
    builder = with(builder, seconds(call_timeout)?, WorkerBuilder::call_timeout);
    builder = with(
        builder,
        seconds(shutdown_timeout)?,
        WorkerBuilder::shutdown_timeout,
    );
    builder = with(builder, seconds(peer_timeout)?, WorkerBuilder::peer_timeout);
    builder = with(builder, threads, WorkerBuilder::blocking_threads);
    builder = with(builder, require_majority, WorkerBuilder::require_majority);
    builder = with(builder, fail_on_leaks, WorkerBuilder::fail_on_leaks);
    if let Some((certificate, key, authority)) = tls {
        let tls = Tls::from_files(certificate, key, authority);
        builder = builder.tls(tls.map_err(|error| PyValueError::new_err(error.to_string()))?);
    }
    if store_is_hosted_elsewhere {
        builder = builder.store_is_hosted_elsewhere();
    }
    if insecure {
        builder = builder.insecure();
    }
    let joined = runtime::wait(py, builder.join())?;
    let worker = joined.map_err(|error| to_python(py, error))?;
    let (members, rank) = (worker.peers().len(), worker.rank());
    tracing::info!(worker = %worker.name(), rank, members, "has joined its group");
    Ok(PyWorker(worker))
}

fn with<T>(
    builder: WorkerBuilder,
    value: Option<T>,
    set: impl FnOnce(WorkerBuilder, T) -> WorkerBuilder,
) -> WorkerBuilder {
    match value {
        Some(value) => set(builder, value),
        None => builder,
    }
}

fn seconds(seconds: Option<f64>) -> PyResult<Option<Duration>> {
    seconds.map(duration).transpose()
}

fn address(what: &str, text: Option<&str>) -> PyResult<Option<IpAddr>> {
    let parse = |text: &str| {
        text.parse().map_err(|_| {
            PyValueError::new_err(format!(
                "{what}={text:?} is no IP address: give one such as \"10.0.0.7\" or \"::1\""
            ))
        })
    };
    text.map(parse).transpose()
}

#[pymethods]
impl PyWorker {
    /// Its name.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Its rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.0.rank()
    }

    /// Whether it is a member of its group (still).
    #[getter]
    fn is_member(&self) -> bool {
        self.0.is_member()
    }

    /// The worker of that name. `wait`: how many seconds to wait for it to join; otherwise it has to be there.
    #[pyo3(signature = (name, *, wait=None))]
    fn peer(&self, py: Python<'_>, name: &str, wait: Option<f64>) -> PyResult<PyPeer> {
        alive()?;
        let peer = match wait {
            None => self.0.peer(name),
            Some(seconds) => {
                runtime::wait_if_allowed(py, self.0.wait_for_peer(name, duration(seconds)?))?
            }
        };
        peer.map(PyPeer::new).map_err(|error| to_python(py, error))
    }

    /// This worker, as others see it.
    #[getter]
    fn me(&self) -> PyPeer {
        PyPeer::new(self.0.me())
    }

    /// All workers of the group, this one among them.
    fn peers(&self) -> Vec<PyPeer> {
        self.0.peers().into_iter().map(PyPeer::new).collect()
    }

    /// A reference to a value of this worker, to be handed to others.
    fn rref(&self, py: Python<'_>, value: Bound<'_, PyAny>) -> PyResult<PyRRef> {
        alive()?;
        let made = Made::Value(&value);
        let rref = places::make(py, &made, || self.0.rref(Object::here(value.clone())));
        rref.map(PyRRef::new).map_err(|error| to_python(py, error))
    }

    /// Publishes a reference under a name, for `lookup` on any worker.
    fn publish(&self, py: Python<'_>, name: &str, rref: &PyRRef) -> PyResult<()> {
        alive()?;
        let published = self.0.publish(name, rref.rref());
        published.map(drop).map_err(|error| to_python(py, error))
    }

    /// Takes a name back. False if nothing was published under it.
    fn unpublish(&self, name: &str) -> PyResult<bool> {
        alive()?;
        Ok(self.0.unpublish(name))
    }

    /// The reference that some worker of the group has published under this name. Waits until one does.
    #[pyo3(signature = (name, *, timeout=None))]
    fn lookup(&self, py: Python<'_>, name: &str, timeout: Option<f64>) -> PyResult<PyRRef> {
        alive()?;
        let mut lookup = self.0.lookup::<Object>(name);
        if let Some(limit) = seconds(timeout)? {
            lookup = lookup.timeout(limit);
        }
        let found = scope::enter(|| runtime::wait_if_allowed(py, lookup.into_future()))?;
        found.map(PyRRef::new).map_err(|error| to_python(py, error))
    }

    /// Ends the group: waits until all workers have called this and nothing is left to be done, then leaves.
    fn shutdown(&self, py: Python<'_>) -> PyResult<()> {
        alive()?;
        runtime::may_wait(py)?;
        if !self.0.references().is_empty() {
            // What is only held by itself is not held.
            py.import("gc")?.call_method0("collect")?;
        }
        let ended = scope::enter(|| runtime::wait(py, self.0.shutdown()))?;
        tracing::info!(worker = %self.0.name(), "has ended with its group");
        ended.map_err(|error| to_python(py, error))
    }

    /// Serves others until the group ends.
    fn serve(&self, py: Python<'_>) -> PyResult<()> {
        alive()?;
        runtime::may_wait(py)?;
        runtime::wait(py, self.0.serve())?.map_err(|error| to_python(py, error))
    }

    /// Leaves a group that goes on without this worker.
    fn leave(&self, py: Python<'_>) -> PyResult<()> {
        alive()?;
        runtime::may_wait(py)?;
        let left = scope::enter(|| runtime::wait(py, self.0.leave()))?;
        left.map_err(|error| to_python(py, error))
    }

    /// Ends at once, as if the process had died. The others notice. ``patience``: so many seconds at most for the answers that others are
    /// waiting for.
    #[pyo3(signature = (*, patience=None))]
    fn crash(&self, py: Python<'_>, patience: Option<f64>) -> PyResult<()> {
        alive()?;
        let patience = seconds(patience)?.unwrap_or_default();
        runtime::wait(py, self.0.crash_after(patience))
    }

    /// What is going on in this worker: calls, references, peers, as dictionaries and lists.
    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(&self.0.snapshot())
            .map_err(|error| PyValueError::new_err(error.to_string()))?;
        py.import("json")?
            .getattr("loads")?
            .call1((PyString::new(py, &text),))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// The end of its block: with all others, or at once if the block raised something.
    #[pyo3(signature = (kind, error, _traceback))]
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: Option<Bound<'_, PyAny>>,
        error: Option<Bound<'_, PyAny>>,
        _traceback: Option<Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        match kind {
            _ if !self.0.is_member() => {}
            None => self.shutdown(py)?,
            Some(_) if error.is_some_and(|error| is_good_exit(&error)) => self.shutdown(py)?,
            Some(_) => self.crash(py, None)?,
        }
        Ok(false)
    }

    fn __repr__(&self) -> String {
        let ended = if self.0.is_member() { "" } else { ", ended" };
        format!("Worker({:?}, rank={}{ended})", self.0.name(), self.0.rank())
    }
}

/// `sys.exit(0)` or `sys.exit()`: the program ends as it is to end.
fn is_good_exit(error: &Bound<'_, PyAny>) -> bool {
    if !error.is_instance_of::<PySystemExit>() {
        return false;
    }
    let code = error.getattr("code");
    code.is_ok_and(|code| code.is_none() || code.extract::<i64>().is_ok_and(|code| code == 0))
}

/// The worker that this code runs for: inside of a function that another worker has called.
#[pyfunction]
pub(crate) fn current_worker() -> Option<PyWorker> {
    scope::enter(|| Worker::current().map(PyWorker))
}

/// Who has called the function that runs right now.
#[pyfunction]
pub(crate) fn caller() -> Option<PyPeer> {
    scope::enter(|| Worker::caller().map(PyPeer::new))
}
