//! Results that are not there yet.
//!
//! # Invariants
//!
//! - **FU-1** A call is waited for by whoever asks first, on its own thread; the others wait for that one. Only where a
//!   callback or an event loop waits does a task of the runtime.
//! - **FU-2** It ends once: with what the call ended with, or as cancelled. Everybody sees the same.
//! - **FU-3** A future that nobody keeps does not cancel its call: in Python nobody sees when an object goes, and a call that is
//!   begun and not waited for is to be made.
//! - **FU-4** Callbacks are the program's: they run on threads that may wait, those of one future in the order in which they
//!   were added; one that was added in a coroutine runs on its event loop.
//! - **FU-5** Python's collector sees what a future has: an exception has the frames that it was raised through, and one of
//!   those may have the future.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::ThreadId;
use std::time::Instant;

use farref::{Error, Pending};
use pyo3::exceptions::{PyBaseException, PyException};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use tokio::sync::Notify;

use crate::deferred::on_a_thread;
use crate::errands;
use crate::errors::{alive, exception, to_python};
use crate::interpreter;
use crate::objects::Object;
use crate::runtime::{self, duration};
use crate::user_code;

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

/// A callback: FU-4.
struct Then {
    function: Py<PyAny>,
    future: Py<PyFuture>,
    /// Of the coroutine that has added it.
    event_loop: Option<Py<PyAny>>,
}

impl Then {
    fn call(self, py: Python<'_>) {
        let called = PyTuple::new(py, [self.future]);
        let called = called.and_then(|future| match &self.event_loop {
            None => user_code::call(self.function.bind(py), &future, None),
            Some(event_loop) => {
                let tell = py.import("farref._loop")?.getattr("tell")?;
                tell.call1((event_loop, self.function.bind(py), future.get_item(0)?))
            }
        });
        if let Err(error) = called {
            error.write_unraisable(py, Some(self.function.bind(py)));
        }
    }
}

/// Those of a future that has ended.
fn call_all(then: Vec<Then>) {
    let (here, there): (Vec<_>, Vec<_>) =
        then.into_iter().partition(|then| then.event_loop.is_none());
    if !there.is_empty() {
        errands::run(move |py| there.into_iter().for_each(|then| then.call(py)));
    }
    if !here.is_empty() {
        on_a_thread(move |py| here.into_iter().for_each(|then| then.call(py)));
    }
}

enum State {
    /// Nobody waits for it.
    Idle(Box<Pending<Object>>),
    /// Somebody does (FU-1).
    Waiting,
    /// It has ended, and nobody has looked.
    Ended(Outcome),
    /// Somebody reads what it ended with.
    Reading(ThreadId),
    Returned(Py<PyAny>),
    Raised(Py<PyBaseException>),
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
        call_all(then);
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

    /// What it ended with, once it has. An error if that cannot be known: Ctrl-C.
    fn outcome(self: &Arc<Self>, py: Python<'_>) -> PyResult<Result<Py<PyAny>, PyErr>> {
        let here = std::thread::current().id();
        let ended = loop {
            let mut inner = self.lock();
            match &inner.state {
                State::Returned(value) => return Ok(Ok(value.clone_ref(py))),
                State::Raised(error) => {
                    let error = error.clone_ref(py).into_bound(py).into_any();
                    return Ok(Err(PyErr::from_value(error)));
                }
                State::Cancelled | State::Idle(_) | State::Waiting => {
                    return Ok(Err(cancelled(py)));
                }
                State::Reading(thread) if *thread == here => {
                    let text = "reading the result of the call asks for the result of the call";
                    return Err(exception(py, "Deadlock", text));
                }
                State::Reading(_) => {
                    drop(inner);
                    let most = runtime::until_signals();
                    py.detach(|| {
                        let inner = self.lock();
                        match (&inner.state, most) {
                            (State::Reading(_), Some(most)) => {
                                drop(self.changed.wait_timeout(inner, most));
                            }
                            (State::Reading(_), None) => drop(self.changed.wait(inner)),
                            _ => {}
                        }
                    });
                    py.check_signals()?;
                }
                State::Ended(_) => {
                    break std::mem::replace(&mut inner.state, State::Reading(here));
                }
            }
        };
        // Unpickling runs the program's code, which may ask this future: without the lock.
        let outcome = match ended {
            State::Ended(Ok(object)) => object.into_python(py).map(Bound::unbind),
            State::Ended(Err(error)) => Err(to_python(py, error)),
            _ => Err(cancelled(py)),
        };
        let read = match &outcome {
            Ok(value) => State::Returned(value.clone_ref(py)),
            Err(error) if error.is_instance_of::<PyException>(py) => {
                State::Raised(error.clone_ref(py).into_value(py))
            }
            Err(_) => {
                let text =
                    "the result of the call was not read to its end: reading it was interrupted";
                State::Raised(exception(py, "CannotBeSent", text).into_value(py))
            }
        };
        self.lock().state = read;
        self.changed.notify_all();
        match outcome {
            Err(error) if !error.is_instance_of::<PyException>(py) => Err(error),
            outcome => Ok(outcome),
        }
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
        self.ended(py, timeout)?;
        self.0.outcome(py)?
    }

    /// The exception that the call ended with, or None.
    #[pyo3(signature = (timeout=None))]
    fn exception(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<Py<PyAny>>> {
        alive()?;
        self.ended(py, timeout)?;
        match self.0.outcome(py)? {
            Ok(_) => Ok(None),
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
        call_all(then);
        drop(former);
        Ok(true)
    }

    /// Whether it was cancelled, here: by `cancel()`.
    fn cancelled(&self) -> bool {
        matches!(self.0.lock().state, State::Cancelled)
    }

    /// Calls `function` with this future when it has ended: on a thread of farref's, or if it is added in a coroutine, on its
    /// event loop. It may wait, on a thread.
    fn add_done_callback(slf: Bound<'_, Self>, function: Py<PyAny>) -> PyResult<()> {
        alive()?;
        let running = slf.py().import("farref._loop")?.getattr("running")?;
        let event_loop = running.call0()?;
        slf.get().when_over(Then {
            function,
            future: slf.clone().unbind(),
            event_loop: (!event_loop.is_none()).then(|| event_loop.unbind()),
        });
        Ok(())
    }

    /// Takes a callback back, if it has not been called yet. Returns how often it had been added.
    fn remove_done_callback(&self, function: &Bound<'_, PyAny>) -> PyResult<usize> {
        alive()?;
        let py = function.py();
        let then = std::mem::take(&mut self.0.lock().then);
        let (mut kept, mut removed) = (Vec::new(), Vec::new());
        // Comparing is the program's code: without the lock.
        for then in then {
            match then.function.bind(py).eq(function)? {
                true => removed.push(then),
                false => kept.push(then),
            }
        }
        let mut inner = self.0.lock();
        kept.append(&mut inner.then);
        if inner.state.is_over() {
            drop(inner);
            call_all(kept);
        } else {
            inner.then = kept;
        }
        Ok(removed.len())
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let wait = slf.py().import("farref._loop")?.getattr("wait_for")?;
        wait.call1((slf,))?.call_method0("__await__")
    }

    fn __repr__(&self) -> &'static str {
        match self.0.lock().state {
            State::Idle(_) | State::Waiting => "<farref.Future pending>",
            State::Cancelled => "<farref.Future cancelled>",
            _ => "<farref.Future ended>",
        }
    }

    /// FU-5. Callbacks are not his to see: a call that is under way has them, too.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        let inner = match self.0.inner.try_lock() {
            Ok(inner) => inner,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        match &inner.state {
            State::Returned(value) => visit.call(value),
            State::Raised(error) => visit.call(error),
            _ => Ok(()),
        }
    }

    fn __clear__(&self) {
        let former = std::mem::replace(&mut self.0.lock().state, State::Cancelled);
        drop(former);
    }
}

impl PyFuture {
    /// Waits until it has ended; the wait may have a limit.
    fn ended(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let until = match timeout {
            Some(seconds) => Instant::now().checked_add(duration(seconds)?),
            None => None,
        };
        if let Err(refused) = runtime::may_wait(py)
            && timeout != Some(0.0)
            && !self.0.wait(py, Some(Instant::now()))?
        {
            return Err(refused);
        }
        match self.0.wait(py, until)? {
            true => Ok(()),
            false => Err(pyo3::exceptions::PyTimeoutError::new_err(
                "the call has not ended yet: wait for it again, or cancel() it",
            )),
        }
    }

    /// Calls it when the call has ended.
    fn when_over(&self, then: Then) {
        let mut inner = self.0.lock();
        if inner.state.is_over() {
            drop(inner);
            return call_all(vec![then]);
        }
        inner.then.push(then);
        let pending = inner.state.take();
        drop(inner);
        if let Some(pending) = pending {
            self.0.watch(pending);
        }
    }
}
