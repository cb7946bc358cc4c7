//! Results of PyTorch's calls that are not there yet.
//!
//! # Invariants
//!
//! - **TF-1** A call is waited for by whoever asks first, on its own thread; the others wait for that one. Only where a
//!   callback waits, or the end of the group, does a task of the runtime.
//! - **TF-2** What it was answered with is read once, by who wants it, without the lock: reading runs the program's code.
//! - **TF-3** A future that nobody keeps does not cancel its call.
//! - **TF-4** Callbacks run on threads that may wait.
//! - **TF-5** Python's collector sees what a future has: an exception has the frames that it was raised through, and one of
//!   those may have the future.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use farref::{Error, Pending};
use pyo3::exceptions::{PyAttributeError, PyBaseException, PyException, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::deferred::on_a_thread;
use crate::errors::alive;
use crate::interpreter;
use crate::objects::Object;
use crate::runtime;
use crate::torch_calls::{Route, helper};
use crate::under_way::UnderWay;
use crate::user_code;

type Outcome = Result<Object, Error>;
type Then = Box<dyn FnOnce(Python<'_>) + Send>;

/// How long who waits for another's waiting sleeps before it looks whether Ctrl-C was pressed.
const OTHERS: Duration = Duration::from_millis(50);

/// A call that was begun, and what became of it.
pub(crate) struct CallState {
    inner: Mutex<Inner>,
    /// Somebody who waited or read has left something.
    changed: Condvar,
    route: Route,
}

struct Inner {
    state: State,
    /// Until it is over.
    under_way: Option<UnderWay>,
    /// What is to be done then.
    then: Vec<Then>,
}

enum State {
    /// Nobody waits for it.
    Idle(Box<Pending<Object>>),
    /// Somebody does (TF-1).
    Waiting,
    /// It has ended, and nobody has looked.
    Ended(Outcome),
    /// Somebody reads what it ended with (TF-2).
    Reading(ThreadId),
    Returned(Py<PyAny>),
    Raised(Py<PyBaseException>),
    /// The collector has taken it apart.
    Gone,
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

impl Drop for Inner {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, State::Gone);
        let under_way = self.under_way.take();
        if interpreter::has_forked() {
            // IN-2: the call is another process's.
            std::mem::forget((state, under_way));
        } else if let (State::Idle(pending), Ok(handle)) = (state, runtime::handle()) {
            // TF-3
            drop(handle.spawn(async move {
                drop(pending.await);
                drop(under_way);
            }));
        }
    }
}

impl CallState {
    fn new(pending: Pending<Object>, route: Route) -> Arc<Self> {
        let shared = Arc::new(Self {
            inner: Mutex::new(Inner {
                state: State::Idle(Box::new(pending)),
                under_way: None,
                then: Vec::new(),
            }),
            changed: Condvar::new(),
            route,
        });
        shared.lock().under_way = Some(UnderWay::of(Arc::downgrade(&shared)));
        shared
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the call's end for those who wait, or the call for another to wait for.
    fn leave(self: &Arc<Self>, left: State) {
        let mut inner = self.lock();
        inner.state = left;
        let (then, under_way, waited_for) = match inner.state.is_over() {
            true => (
                std::mem::take(&mut inner.then),
                inner.under_way.take(),
                None,
            ),
            // Who wants to be told cannot do without somebody who waits.
            false if !inner.then.is_empty() => (Vec::new(), None, inner.state.take()),
            false => (Vec::new(), None, None),
        };
        drop(inner);
        self.changed.notify_all();
        drop(under_way);
        // TF-4
        then.into_iter().for_each(on_a_thread);
        if let Some(pending) = waited_for {
            self.watch(pending);
        }
    }

    /// Lets a task wait for it.
    fn watch(self: &Arc<Self>, pending: Box<Pending<Object>>) {
        let shared = Arc::clone(self);
        match runtime::handle() {
            Ok(handle) => drop(handle.spawn(async move {
                let outcome = pending.await;
                shared.leave(State::Ended(outcome));
            })),
            // There is a call, so there is a runtime.
            Err(_) => self.leave(State::Gone),
        }
    }

    /// If nobody waits for it, a task does from now on.
    pub(crate) fn watch_if_idle(self: &Arc<Self>) {
        let pending = self.lock().state.take();
        if let Some(pending) = pending {
            self.watch(pending);
        }
    }

    /// Runs `then` when it has ended, on a thread.
    fn when_over(self: &Arc<Self>, then: impl FnOnce(Python<'_>) + Send + 'static) {
        let mut inner = self.lock();
        if inner.state.is_over() {
            drop(inner);
            return on_a_thread(then);
        }
        inner.then.push(Box::new(then));
        let pending = inner.state.take();
        drop(inner);
        if let Some(pending) = pending {
            self.watch(pending);
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
                Some(mut pending) => match runtime::wait_a_while(py, &mut pending, left) {
                    Ok(Some(outcome)) => {
                        self.leave(State::Ended(outcome));
                        return Ok(true);
                    }
                    Ok(None) => self.leave(State::Idle(pending)),
                    Err(error) => {
                        self.leave(State::Idle(pending));
                        return Err(error);
                    }
                },
                None => self.sleep(py, left, |state| matches!(state, State::Waiting)),
            }
            if until.is_some_and(|until| until <= Instant::now()) && !self.lock().state.is_over() {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    /// Sleeps until somebody has left something.
    fn sleep(&self, py: Python<'_>, left: Option<Duration>, during: fn(&State) -> bool) {
        let most = left.map_or(OTHERS, |left| left.min(OTHERS));
        py.detach(|| {
            let inner = self.lock();
            if during(&inner.state) {
                drop(self.changed.wait_timeout(inner, most));
            }
        });
    }

    /// What it ended with. It is over.
    fn outcome(self: &Arc<Self>, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let here = std::thread::current().id();
        let ended = loop {
            let mut inner = self.lock();
            match &inner.state {
                State::Returned(value) => return Ok(value.clone_ref(py)),
                State::Raised(error) => {
                    let error = error.clone_ref(py).into_bound(py).into_any();
                    return Err(PyErr::from_value(error));
                }
                State::Ended(_) => {
                    let reading = State::Reading(here);
                    if let State::Ended(outcome) = std::mem::replace(&mut inner.state, reading) {
                        break outcome;
                    }
                }
                State::Reading(thread) if *thread != here => {
                    drop(inner);
                    self.sleep(py, None, |state| matches!(state, State::Reading(_)));
                    py.check_signals()?;
                }
                State::Reading(_) | State::Idle(_) | State::Waiting | State::Gone => {
                    return Err(PyRuntimeError::new_err(
                        "the result of the call is not there",
                    ));
                }
            }
        };
        let read = self.route.read(py, ended);
        let state = match &read {
            Ok(value) => State::Returned(value.clone_ref(py)),
            Err(error) if error.is_instance_of::<PyException>(py) => {
                State::Raised(error.clone_ref(py).into_value(py))
            }
            // Ctrl-C, for who reads. The others get to know that there is nothing to be read any more.
            Err(_) => {
                let text =
                    "the result of the call was not read to its end: reading it was interrupted";
                State::Raised(PyRuntimeError::new_err(text).into_value(py))
            }
        };
        self.lock().state = state;
        self.changed.notify_all();
        read
    }

    /// TF-5
    fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let Ok(inner) = self.inner.try_lock() else {
            return Ok(());
        };
        match &inner.state {
            State::Returned(value) => visit.call(value),
            State::Raised(error) => visit.call(error),
            _ => Ok(()),
        }
    }

    fn clear(&self) {
        let former = match self.inner.try_lock() {
            Ok(mut inner) if matches!(inner.state, State::Returned(_) | State::Raised(_)) => {
                std::mem::replace(&mut inner.state, State::Gone)
            }
            _ => return,
        };
        drop(former);
    }
}

/// The result of a call of PyTorch's layer. It passes for a `torch.futures.Future`, and whoever waits for it does so on its own
/// thread (TF-1); where that is not enough, there is one of PyTorch's, which is told of the end by a thread.
#[pyclass(frozen, weakref, module = "farref._core")]
pub(crate) struct TorchFuture {
    call: Arc<CallState>,
    /// Which one its callbacks run in.
    context: Option<u64>,
    real: PyOnceLock<Py<PyAny>>,
}

impl TorchFuture {
    pub(crate) fn new(pending: Pending<Object>, route: Route, context: Option<u64>) -> Self {
        Self {
            call: CallState::new(pending, route),
            context,
            real: PyOnceLock::new(),
        }
    }
}

#[pymethods]
impl TorchFuture {
    #[getter(__class__)]
    fn class<'py>(&self, py: Python<'py>) -> PyResult<&'py Bound<'py, PyAny>> {
        static CLASS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        helper(py, &CLASS, "Future")
    }

    /// Waits for what the call returns, and returns it; raises what it raised.
    fn wait(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        alive()?;
        self.call.wait(py, None)?;
        self.call.outcome(py)
    }

    /// Whether it has ended. Looks, and does not wait.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        alive()?;
        self.call.wait(py, Some(Instant::now()))
    }

    /// What the call has returned. It has to be over.
    fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.done(py)? {
            true => self.call.outcome(py),
            false => Err(PyRuntimeError::new_err(
                "value() of a future whose call has not ended: use wait()",
            )),
        }
    }

    /// Calls `callback` with a future that has ended, when this one has; a future of what it returns.
    fn then<'py>(
        slf: &Bound<'py, Self>,
        callback: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::real(slf)?.call_method1("then", (callback,))
    }

    /// The same, for a callback that returns nothing.
    fn add_done_callback<'py>(
        slf: &Bound<'py, Self>,
        callback: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        Self::real(slf)?.call_method1("add_done_callback", (callback,))
    }

    /// The same future, as PyTorch's own: for what has to be one to its core.
    #[getter(_real)]
    fn real<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static FUTURE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static COMPLETE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        alive()?;
        let (py, this) = (slf.py(), slf.get());
        if let Some(real) = this.real.get(py) {
            return Ok(real.bind(py).clone());
        }
        let made = helper(py, &FUTURE, "Future")?.call0()?;
        if this.real.set(py, made.clone().unbind()).is_err() {
            // Somebody was faster.
            return Self::real(slf);
        }
        let complete = helper(py, &COMPLETE, "complete")?;
        if this.done(py)? {
            complete.call1((&made, slf, this.context))?;
        } else {
            let (real, future, context) =
                (made.clone().unbind(), slf.clone().unbind(), this.context);
            this.call.when_over(move |py| {
                let completed = (real, future, context).into_pyobject(py).and_then(|args| {
                    user_code::call(helper(py, &COMPLETE, "complete")?, &args, None)
                });
                if let Err(error) = completed {
                    error.write_unraisable(py, None);
                }
            });
        }
        Ok(made)
    }

    /// What else PyTorch's futures have.
    fn __getattr__<'py>(slf: &Bound<'py, Self>, name: &str) -> PyResult<Bound<'py, PyAny>> {
        if name.starts_with("__") {
            return Err(PyAttributeError::new_err(name.to_owned()));
        }
        Self::real(slf)?.getattr(name)
    }

    fn __repr__(&self) -> &'static str {
        match self.call.lock().state.is_over() {
            true => "<Future of torch.distributed.rpc, ended>",
            false => "<Future of torch.distributed.rpc, pending>",
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.call.traverse(&visit)
    }

    fn __clear__(&self) {
        self.call.clear();
    }
}
