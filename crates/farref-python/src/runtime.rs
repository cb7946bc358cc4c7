//! The runtime of this process's workers, and waiting for it from Python.

use std::cell::Cell;
use std::sync::OnceLock;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use farref::functions;
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use tokio::runtime::{Builder, Handle, Runtime};

use crate::errors::exception;
use crate::thread_state;

/// How often a waiting main thread looks whether Ctrl-C was pressed.
const SIGNALS: Duration = Duration::from_millis(50);

/// Threads that read and write for all workers of the process. What the program's functions do is done elsewhere.
const THREADS: usize = 2;

/// Threads of functions and callbacks that may wait for others of their kind (DE-1): more than any program has use for.
const WAITING: usize = 1 << 14;

static RUNTIME: OnceLock<Runtime> = OnceLock::new();
static MAIN: OnceLock<ThreadId> = OnceLock::new();

/// Called by the import: Python gives signals to the thread that it was started on.
pub(crate) fn imported(py: Python<'_>) -> PyResult<()> {
    let threading = py.import("threading")?;
    let here = threading.call_method0("current_thread")?;
    if here.is(&threading.call_method0("main_thread")?) {
        let _ = MAIN.set(std::thread::current().id());
    }
    Ok(())
}

/// Whether this process has had anything to do with workers.
pub(crate) fn has_begun() -> bool {
    RUNTIME.get().is_some()
}

/// The runtime, which is there as long as the process is.
pub(crate) fn handle() -> PyResult<&'static Handle> {
    if let Some(runtime) = RUNTIME.get() {
        return Ok(runtime.handle());
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(THREADS)
        .max_blocking_threads(WAITING)
        .thread_name("farref-runtime")
        .enable_all()
        .build()
        .map_err(|error| PyOSError::new_err(format!("no runtime could be started: {error}")))?;
    // Whoever was faster means the same.
    Ok(RUNTIME.get_or_init(|| runtime).handle())
}

thread_local! {
    static IS_EVENT_LOOP: Cell<bool> = const { Cell::new(false) };
}

/// Called by the thread that runs the coroutines of this process.
#[pyfunction]
pub(crate) fn is_event_loop() {
    IS_EVENT_LOOP.set(true);
}

/// Code of coroutines must not wait as functions do: the loop would stand still, and with it, it may be, what it waits for.
pub(crate) fn may_wait(py: Python<'_>) -> PyResult<()> {
    if !IS_EVENT_LOOP.get() {
        return Ok(());
    }
    let text = "this would stop the worker's event loop, with all coroutines, until the call has ended: in a coroutine, `await \
                peer.start(..)`, `await rref.start.method(..)`; a copy of a value is `await rref.owner.start(farref.RRef.to_here, rref)`";
    Err(exception(py, "Deadlock", text))
}

/// Waits as [`wait`] does; on the event loop only for what is there.
pub(crate) fn wait_if_allowed<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    if !IS_EVENT_LOOP.get() {
        return wait(py, future);
    }
    match wait_a_while(py, future, Some(Duration::ZERO))? {
        Some(output) => Ok(output),
        None => {
            may_wait(py)?;
            Err(PyRuntimeError::new_err("it is not there yet"))
        }
    }
}

/// Waits for a future without the interpreter, and gives it up if Python raises something meanwhile (Ctrl-C).
pub(crate) fn wait<F>(py: Python<'_>, future: F) -> PyResult<F::Output>
where
    F: Future + Send,
    F::Output: Send,
{
    let mut future = std::pin::pin!(future);
    loop {
        match wait_a_while(py, future.as_mut(), None)? {
            Some(output) => return Ok(output),
            None => py.check_signals()?,
        }
    }
}

/// How long this thread may wait before it has to look for signals, if it has to.
pub(crate) fn until_signals() -> Option<Duration> {
    // Where it is not known which thread gets them, any may.
    let is_main = MAIN
        .get()
        .is_none_or(|main| *main == std::thread::current().id());
    is_main.then_some(SIGNALS)
}

/// Waits for a future for so long. None if it was not enough.
pub(crate) fn wait_at_most<F>(
    py: Python<'_>,
    future: F,
    limit: Duration,
) -> PyResult<Option<F::Output>>
where
    F: Future + Send,
    F::Output: Send,
{
    if !limit.is_zero() {
        may_wait(py)?;
    }
    let until = Instant::now().checked_add(limit);
    let mut future = std::pin::pin!(future);
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        match wait_a_while(py, future.as_mut(), left)? {
            Some(output) => return Ok(Some(output)),
            None if left.is_some_and(|left| left.is_zero()) => return Ok(None),
            None => py.check_signals()?,
        }
    }
}

/// Waits until the future is over, or the time; on the main thread also no longer than until it has to look for signals.
pub(crate) fn wait_a_while<F>(
    py: Python<'_>,
    future: F,
    at_most: Option<Duration>,
) -> PyResult<Option<F::Output>>
where
    F: Future + Send,
    F::Output: Send,
{
    let handle = handle()?;
    let limit = [until_signals(), at_most].into_iter().flatten().min();
    Ok(py.detach(|| match limit {
        None => Some(functions::block_on(handle, future)),
        Some(limit) => functions::block_on_for(handle, future, limit),
    }))
}

/// Seconds as Python has them.
pub(crate) fn duration(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|_| {
        PyValueError::new_err(format!(
            "{seconds} is no time to wait: give seconds, zero or more, or None to wait for ever"
        ))
    })
}

/// Runs this with the interpreter on a thread that may wait as long as it likes: there are as many as are needed.
pub(crate) fn on_a_thread<F: FnOnce(Python<'_>) + Send + 'static>(f: F) {
    match handle() {
        Ok(handle) => drop(handle.spawn_blocking(move || thread_state::attach(f))),
        // There is a call, so there is a runtime.
        Err(_) => drop(thread_state::attach(f)),
    }
}
