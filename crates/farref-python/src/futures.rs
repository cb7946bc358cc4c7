//! Results that are not there yet.
//!
//! # Invariants
//!
//! - **FU-1** A call is waited for by whoever asks first, on its own thread; the others wait for that one. Only where a
//!   callback or an event loop waits does a task of the runtime.
//! - **FU-2** It ends once: with what the call ended with, or as cancelled. Everybody sees the same.
//! - **FU-3** A future that nobody keeps does not cancel its call: in Python nobody sees when an object goes, and a call that is
//!   begun and not waited for is to be made.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use farref::{Error, Pending};
use pyo3::prelude::*;
use tokio::sync::Notify;

use crate::errands;
use crate::errors::{alive, exception, to_python};
use crate::interpreter;
use crate::objects::Object;
use crate::runtime::{self, duration};

type Outcome = Result<Object, Error>;

/// The result of a call that was begun: wait for it with `result()`, or await it in a coroutine.
///
/// ```pycon
/// >>> import farref, math
/// >>> with farref.testing.Cluster("a", "b") as cluster:
/// ...     b = cluster["a"].peer("b")
/// ...     roots = [b.start(math.sqrt, number) for number in (1, 4, 9)]
/// ...     [root.result() for root in roots]
/// [1.0, 2.0, 3.0]
///
/// ```
#[pyclass(frozen, name = "Future", module = "farref")]
pub(crate) struct PyFuture(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    /// Somebody who waited has left something: the outcome, or the call for another to wait for.
    changed: Condvar,
    cancelled: Notify,
}

struct Inner {
    state: State,
    /// What is to be done when it is over.
    then: Vec<Then>,
}

type Then = Box<dyn FnOnce(Python<'_>) + Send>;

enum State {
    /// Nobody waits for it.
    Idle(Box<Pending<Object>>),
    /// Somebody does (FU-1).
    Waiting,
    /// It has ended, and nobody has looked.
    Ended(Outcome),
    Returned(Py<PyAny>),
    Raised(PyErr),
    Cancelled,
}

impl PyFuture {
    pub(crate) fn new(pending: Pending<Object>) -> Self {
        Self(Arc::new(Shared {
            inner: Mutex::new(Inner {
                state: State::Idle(Box::new(pending)),
                then: Vec::new(),
            }),
            changed: Condvar::new(),
            cancelled: Notify::new(),
        }))
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Cancelled);
        if interpreter::has_forked() {
            // IN-2: the call is another process's.
            std::mem::forget(state);
        } else if let (State::Idle(pending), Ok(handle)) = (state, runtime::handle()) {
            // FU-3
            drop(handle.spawn(async move { drop(pending.await) }));
        }
    }
}

impl State {
    fn is_over(&self) -> bool {
        !matches!(self, Self::Idle(_) | Self::Waiting)
    }

    /// The call, for who is going to wait for it.
    fn take(&mut self) -> Option<Box<Pending<Object>>> {
        match std::mem::replace(self, Self::Waiting) {
            Self::Idle(pending) => Some(pending),
            other => {
                *self = other;
                None
            }
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves something for those who wait, unless it was cancelled meanwhile (FU-2).
    fn leave(self: &Arc<Self>, left: State) {
        let mut inner = self.lock();
        let unused = match &inner.state {
            State::Waiting => std::mem::replace(&mut inner.state, left),
            _ => left,
        };
        let then = match inner.state.is_over() {
            true => std::mem::take(&mut inner.then),
            false => Vec::new(),
        };
        // FU-1: who wants to be told cannot do without somebody who waits.
        let waited_for = match inner.then.is_empty() {
            true => None,
            false => inner.state.take(),
        };
        drop(inner);
        self.changed.notify_all();
        then.into_iter().for_each(errands::run);
        if let Some(pending) = waited_for {
            self.watch(pending);
        }
        drop(unused);
    }

    /// The call's end, or its cancellation.
    async fn end(&self, pending: &mut Pending<Object>) -> Option<Outcome> {
        let cancelled = self.cancelled.notified();
        if self.lock().state.is_over() {
            return None;
        }
        tokio::select! {
            biased;
            outcome = pending => Some(outcome),
            () = cancelled => None,
        }
    }

    /// Lets a task wait for it.
    fn watch(self: &Arc<Self>, mut pending: Box<Pending<Object>>) {
        let shared = Arc::clone(self);
        match runtime::handle() {
            Ok(handle) => drop(handle.spawn(async move {
                let outcome = shared.end(&mut pending).await;
                shared.leave(outcome.map_or(State::Cancelled, State::Ended));
            })),
            // There is a call, so there is a runtime.
            Err(_) => self.leave(State::Cancelled),
        }
    }

    /// Waits for it until then. False if it is not over.
    fn wait(self: &Arc<Self>, py: Python<'_>, until: Option<Instant>) -> PyResult<bool> {
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let taken = {
                let mut inner = self.lock();
                if inner.state.is_over() {
                    return Ok(true);
                }
                inner.state.take()
            };
            match taken {
                Some(mut pending) => {
                    match runtime::wait_a_while(py, self.end(&mut pending), left) {
                        Ok(Some(outcome)) => {
                            self.leave(outcome.map_or(State::Cancelled, State::Ended))
                        }
                        Ok(None) => self.leave(State::Idle(pending)),
                        Err(error) => {
                            self.leave(State::Idle(pending));
                            return Err(error);
                        }
                    }
                }
                None => {
                    let most = [runtime::until_signals(), left].into_iter().flatten().min();
                    py.detach(|| {
                        let inner = self.lock();
                        match (&inner.state, most) {
                            (State::Waiting, Some(most)) => {
                                drop(self.changed.wait_timeout(inner, most));
                            }
                            (State::Waiting, None) => drop(self.changed.wait(inner)),
                            _ => {}
                        }
                    });
                }
            }
            if until.is_some_and(|until| until <= Instant::now()) && !self.is_over() {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    fn is_over(&self) -> bool {
        self.lock().state.is_over()
    }

    /// What it ended with.
    fn outcome(self: &Arc<Self>, py: Python<'_>) -> Result<Py<PyAny>, PyErr> {
        let ended = {
            let mut inner = self.lock();
            match &inner.state {
                State::Returned(value) => return Ok(value.clone_ref(py)),
                State::Raised(error) => return Err(error.clone_ref(py)),
                State::Cancelled | State::Idle(_) => return Err(cancelled(py)),
                State::Waiting | State::Ended(_) => {
                    std::mem::replace(&mut inner.state, State::Waiting)
                }
            }
        };
        // Unpickling runs the program's code, which may ask this future: without the lock.
        let outcome = match ended {
            State::Ended(Ok(object)) => object.into_python(py).map(Bound::unbind),
            State::Ended(Err(error)) => Err(to_python(py, error)),
            _ => {
                self.wait(py, None)?;
                return self.outcome(py);
            }
        };
        self.leave(match &outcome {
            Ok(value) => State::Returned(value.clone_ref(py)),
            Err(error) => State::Raised(error.clone_ref(py)),
        });
        outcome
    }
}

fn cancelled(py: Python<'_>) -> PyErr {
    exception(py, "Cancelled", "the call was cancelled")
}

#[pymethods]
impl PyFuture {
    /// Waits for what the call returns, and returns it; raises what it raised. `timeout`: how many seconds to wait at most
    /// (then TimeoutError, and the call goes on).
    #[pyo3(signature = (timeout=None))]
    fn result(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        alive()?;
        let until = match timeout {
            Some(seconds) => Instant::now().checked_add(duration(seconds)?),
            None => None,
        };
        if !self.0.wait(py, until)? {
            return Err(pyo3::exceptions::PyTimeoutError::new_err(
                "the call has not ended yet: wait for it again, or cancel() it",
            ));
        }
        self.0.outcome(py)
    }

    /// The exception that the call ended with, or None.
    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        match self.result(py, timeout) {
            Ok(_) => Ok(None),
            Err(error) if !self.0.is_over() => Err(error),
            Err(error) => Ok(Some(error.into_value(py).into_any())),
        }
    }

    /// Whether it has ended. Looks, and does not wait.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        alive()?;
        self.0.wait(py, Some(Instant::now()))
    }

    /// Gives the call up: whoever waits for it gets Cancelled, and the worker that runs it is told. False if it has ended.
    fn cancel(&self) -> PyResult<bool> {
        alive()?;
        let (former, then) = {
            let mut inner = self.0.lock();
            match &inner.state {
                State::Idle(_) | State::Waiting => {
                    let then = std::mem::take(&mut inner.then);
                    (std::mem::replace(&mut inner.state, State::Cancelled), then)
                }
                State::Cancelled => return Ok(true),
                _ => return Ok(false),
            }
        };
        self.0.cancelled.notify_waiters();
        self.0.changed.notify_all();
        then.into_iter().for_each(errands::run);
        drop(former);
        Ok(true)
    }

    /// Calls `function` with this future when it has ended, on a thread of farref's: it is to be short.
    fn add_done_callback(slf: Bound<'_, Self>, function: Py<PyAny>) -> PyResult<()> {
        alive()?;
        let future = slf.clone().unbind();
        slf.get().when_over(move |py| {
            if let Err(error) = function.call1(py, (future,)) {
                error.write_unraisable(py, Some(function.bind(py)));
            }
        });
        Ok(())
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let wait = slf.py().import("farref._loop")?.getattr("wait_for")?;
        wait.call1((slf,))?.call_method0("__await__")
    }

    fn __repr__(&self) -> &'static str {
        match self.0.lock().state {
            State::Idle(_) | State::Waiting => "<farref.Future pending>",
            State::Ended(_) | State::Returned(_) | State::Raised(_) => "<farref.Future ended>",
            State::Cancelled => "<farref.Future cancelled>",
        }
    }
}

impl PyFuture {
    /// Runs `then` when it has ended, on the thread for errands.
    fn when_over(&self, then: impl FnOnce(Python<'_>) + Send + 'static) {
        let mut inner = self.0.lock();
        if inner.state.is_over() {
            drop(inner);
            return errands::run(then);
        }
        inner.then.push(Box::new(then));
        let pending = inner.state.take();
        drop(inner);
        if let Some(pending) = pending {
            self.0.watch(pending);
        }
    }
}
