//! A call that was begun: who waits for it, and what it ended with.
//!
//! # Invariants
//!
//! - **BG-1** A call is waited for by whoever asks first, on its own thread; the others wait for that one. Only where somebody
//!   is to be told of its end, and waits on no thread, does a task of the runtime.
//! - **BG-2** It ends once: with what the call ended with, or given up. Everybody sees the same.
//! - **BG-3** What it ended with is read once, by who wants it, without the lock: reading runs the program's code.
//! - **BG-4** If nobody keeps it, its call is not cancelled: in Python nobody sees when an object goes, and a call that is
//!   begun and not waited for is to be made.
//! - **BG-5** Python's collector sees what it has: an exception has the frames that it was raised through, and one of those may
//!   have what has this.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use farref::{Error, Pending};
use pyo3::exceptions::{PyBaseException, PyException};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use tokio::sync::Notify;

use crate::interpreter;
use crate::objects::Object;
use crate::runtime;

pub(crate) type Outcome = Result<Object, Error>;

/// What differs between the futures of the two layers.
pub(crate) trait Reader: Send + Sync + 'static {
    /// Who is to be told of the end.
    type Then: Send + 'static;
    /// What is kept until the call is over.
    type UntilOver: Send + 'static;

    /// What the call ended with, as the program sees it.
    fn read(&self, py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>>;

    /// Why there is nothing to be read.
    fn nothing(py: Python<'_>, why: Nothing) -> PyErr;

    /// Tells those who are to be told.
    fn tell(then: Vec<Self::Then>);
}

/// Why there is nothing to be read of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Nothing {
    /// It was given up.
    GivenUp,
    /// Who asks is just reading it.
    BeingRead,
    /// Who read it was interrupted.
    Interrupted,
}

/// See the module's documentation.
pub(crate) struct Begun<R: Reader> {
    inner: Mutex<Inner<R>>,
    /// Somebody who waited or read has left something: an outcome, or the call for another to wait for.
    changed: Condvar,
    given_up: Notify,
    reader: R,
}

struct Inner<R: Reader> {
    state: State,
    until_over: Option<R::UntilOver>,
    then: Vec<R::Then>,
}

enum State {
    /// Nobody waits for it.
    Idle(Box<Pending<Object>>),
    /// Somebody does (BG-1).
    Waiting,
    /// It has ended, and nobody has looked.
    Ended(Outcome),
    /// Somebody reads what it ended with (BG-3).
    Reading(ThreadId),
    Returned(Py<PyAny>),
    Raised(Py<PyBaseException>),
    /// By the program, or the collector has taken it apart.
    GivenUp,
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

impl<R: Reader> Drop for Inner<R> {
    fn drop(&mut self) {
        let state = std::mem::replace(&mut self.state, State::GivenUp);
        let until_over = self.until_over.take();
        if interpreter::has_forked() {
            // IN-2: the call is another process's.
            std::mem::forget((state, until_over));
        } else if let (State::Idle(pending), Ok(handle)) = (state, runtime::handle()) {
            // BG-4
            drop(handle.spawn(async move {
                drop(pending.await);
                drop(until_over);
            }));
        }
    }
}

impl<R: Reader> Begun<R> {
    pub(crate) fn new(pending: Pending<Object>, reader: R) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                state: State::Idle(Box::new(pending)),
                until_over: None,
                then: Vec::new(),
            }),
            changed: Condvar::new(),
            given_up: Notify::new(),
            reader,
        })
    }

    /// Keeps this until the call is over.
    pub(crate) fn keep(&self, until_over: R::UntilOver) {
        self.lock().until_over = Some(until_over);
    }

    fn lock(&self) -> MutexGuard<'_, Inner<R>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_over(&self) -> bool {
        self.lock().state.is_over()
    }

    pub(crate) fn is_given_up(&self) -> bool {
        matches!(self.lock().state, State::GivenUp)
    }

    /// Leaves something for those who wait, unless it was given up meanwhile (BG-2).
    fn leave(self: &Arc<Self>, left: State) {
        R::tell(self.settle(left));
    }

    /// The same; who is to be told of the end is left to the caller.
    fn settle(self: &Arc<Self>, left: State) -> Vec<R::Then> {
        let mut inner = self.lock();
        let unused = match &inner.state {
            State::Waiting => std::mem::replace(&mut inner.state, left),
            _ => left,
        };
        let (then, until_over, waited_for) = match inner.state.is_over() {
            true => (
                std::mem::take(&mut inner.then),
                inner.until_over.take(),
                None,
            ),
            // BG-1: who is to be told cannot do without somebody who waits.
            false if !inner.then.is_empty() => (Vec::new(), None, inner.state.take()),
            false => (Vec::new(), None, None),
        };
        drop(inner);
        self.changed.notify_all();
        if let Some(pending) = waited_for {
            self.watch(pending);
        }
        drop((unused, until_over));
        then
    }

    /// The call's end; none if it is given up.
    async fn end(&self, pending: &mut Pending<Object>) -> Option<Outcome> {
        let given_up = self.given_up.notified();
        if self.is_over() {
            return None;
        }
        tokio::select! {
            biased;
            outcome = pending => Some(outcome),
            () = given_up => None,
        }
    }

    /// Lets a task wait for it.
    fn watch(self: &Arc<Self>, mut pending: Box<Pending<Object>>) {
        let begun = Arc::clone(self);
        match runtime::handle() {
            Ok(handle) => drop(handle.spawn(async move {
                let outcome = begun.end(&mut pending).await;
                let then = begun.settle(outcome.map_or(State::GivenUp, State::Ended));
                // Whoever is told may be the last to have it, and gives it back with the interpreter; this thread has none.
                drop((begun, pending));
                R::tell(then);
            })),
            // There is a call, so there is a runtime.
            Err(_) => self.leave(State::GivenUp),
        }
    }

    /// If nobody waits for it, a task does from now on.
    pub(crate) fn watch_if_idle(self: &Arc<Self>) {
        let pending = self.lock().state.take();
        if let Some(pending) = pending {
            self.watch(pending);
        }
    }

    /// Tells `then` when it is over.
    pub(crate) fn when_over(self: &Arc<Self>, then: R::Then) {
        let mut inner = self.lock();
        if inner.state.is_over() {
            drop(inner);
            return R::tell(vec![then]);
        }
        inner.then.push(then);
        drop(inner);
        self.watch_if_idle();
    }

    /// Those who are to be told, for the caller to look through without the lock, and to give back.
    pub(crate) fn take_told(&self) -> Vec<R::Then> {
        std::mem::take(&mut self.lock().then)
    }

    /// Gives back some of those that were taken, in their places before others.
    pub(crate) fn give_back_told(self: &Arc<Self>, mut then: Vec<R::Then>) {
        let mut inner = self.lock();
        if inner.state.is_over() {
            drop(inner);
            return R::tell(then);
        }
        then.append(&mut inner.then);
        let is_wanted = !then.is_empty();
        inner.then = then;
        drop(inner);
        if is_wanted {
            // BG-1: who waited may have gone meanwhile, and have seen nobody who is to be told.
            self.watch_if_idle();
        }
    }

    /// Gives the call up. False if it has ended.
    pub(crate) fn give_up(&self) -> bool {
        let mut inner = self.lock();
        match &inner.state {
            State::Idle(_) | State::Waiting => {}
            State::GivenUp => return true,
            _ => return false,
        }
        let former = std::mem::replace(&mut inner.state, State::GivenUp);
        let then = std::mem::take(&mut inner.then);
        let until_over = inner.until_over.take();
        drop(inner);
        self.given_up.notify_waiters();
        self.changed.notify_all();
        R::tell(then);
        drop((former, until_over));
        true
    }

    /// Waits for it until then. False if it is not over.
    pub(crate) fn wait(self: &Arc<Self>, py: Python<'_>, until: Option<Instant>) -> PyResult<bool> {
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
                            self.leave(outcome.map_or(State::GivenUp, State::Ended));
                            return Ok(true);
                        }
                        Ok(None) => self.leave(State::Idle(pending)),
                        Err(error) => {
                            self.leave(State::Idle(pending));
                            return Err(error);
                        }
                    }
                }
                None => self.sleep(py, left, |state| matches!(state, State::Waiting)),
            }
            if until.is_some_and(|until| until <= Instant::now()) && !self.is_over() {
                return Ok(false);
            }
            py.check_signals()?;
        }
    }

    /// Sleeps until somebody has left something, or it is time to look for signals.
    fn sleep(&self, py: Python<'_>, left: Option<Duration>, during: fn(&State) -> bool) {
        let most = [runtime::until_signals(), left].into_iter().flatten().min();
        py.detach(|| {
            let inner = self.lock();
            match (during(&inner.state), most) {
                (true, Some(most)) => drop(self.changed.wait_timeout(inner, most)),
                (true, None) => drop(self.changed.wait(inner)),
                (false, _) => {}
            }
        });
    }

    /// What it ended with, once it is over. An error of its own if that cannot be known: Ctrl-C.
    pub(crate) fn outcome(&self, py: Python<'_>) -> PyResult<PyResult<Py<PyAny>>> {
        let here = std::thread::current().id();
        let ended = loop {
            let mut inner = self.lock();
            match &inner.state {
                State::Returned(value) => return Ok(Ok(value.clone_ref(py))),
                State::Raised(error) => {
                    let error = error.clone_ref(py);
                    drop(inner);
                    let error = error.into_bound(py).into_any();
                    return Ok(Err(PyErr::from_value(error)));
                }
                State::GivenUp | State::Idle(_) | State::Waiting => {
                    drop(inner);
                    return Ok(Err(R::nothing(py, Nothing::GivenUp)));
                }
                State::Reading(thread) if *thread == here => {
                    drop(inner);
                    return Err(R::nothing(py, Nothing::BeingRead));
                }
                State::Reading(_) => {
                    drop(inner);
                    self.sleep(py, None, |state| matches!(state, State::Reading(_)));
                    py.check_signals()?;
                }
                State::Ended(_) => {
                    let reading = State::Reading(here);
                    if let State::Ended(outcome) = std::mem::replace(&mut inner.state, reading) {
                        break outcome;
                    }
                }
            }
        };
        let read = self.reader.read(py, ended);
        let state = match &read {
            Ok(value) => State::Returned(value.clone_ref(py)),
            Err(error) if error.is_instance_of::<PyException>(py) => {
                State::Raised(error.clone_ref(py).into_value(py))
            }
            // Ctrl-C, for who reads. The others get to know that there is nothing to be read any more.
            Err(_) => State::Raised(R::nothing(py, Nothing::Interrupted).into_value(py)),
        };
        self.lock().state = state;
        self.changed.notify_all();
        match read {
            Err(error) if !error.is_instance_of::<PyException>(py) => Err(error),
            read => Ok(read),
        }
    }

    /// BG-5. Those who are to be told are not the collector's to see: a call that is under way has them, too.
    ///
    /// It waits for the lock: one that was seen once and skipped the next time would pass for garbage. Nobody who has the lock
    /// asks for the interpreter, or makes anything of Python's.
    pub(crate) fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        let inner = self.lock();
        match &inner.state {
            State::Returned(value) => visit.call(value),
            State::Raised(error) => visit.call(error),
            _ => Ok(()),
        }
    }

    /// Lets go of what it has read: the collector takes it apart.
    pub(crate) fn clear(&self) {
        let former = match self.inner.try_lock() {
            Ok(mut inner) if matches!(inner.state, State::Returned(_) | State::Raised(_)) => {
                std::mem::replace(&mut inner.state, State::GivenUp)
            }
            _ => return,
        };
        drop(former);
    }
}
