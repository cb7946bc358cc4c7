//! Coroutines of the program: they run on an event loop of their own, on a thread that Python has started (`farref/_loop.py`).
//!
//! # Invariants
//!
//! - **CO-1** A coroutine whose caller does not want its result any more is cancelled, as a task of the loop.
//! - **CO-2** What it calls, it calls as part of the call that it runs for: within its time, in its context.

use std::sync::{Arc, Mutex, PoisonError};

use farref::functions::CallScope;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::sync::oneshot;

use crate::errands;
use crate::errors::{Raised, interpreter_ends, raised};
use crate::objects::{Object, Pickled};
use crate::requests::read;
use crate::scope::PyScope;
use crate::torch_message;
use crate::user_code;

type Sender = oneshot::Sender<Result<Object, Raised>>;

/// Whether a function has returned a coroutine.
pub(crate) fn is_one(value: &Bound<'_, PyAny>) -> PyResult<bool> {
    static COROUTINE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = value.py();
    let class = COROUTINE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("types")?.getattr("CoroutineType")?.unbind())
    })?;
    Ok(value.get_type().is(class.bind(py)))
}

/// A coroutine that is to be begun.
pub(crate) enum Coming {
    /// It is made by this call, on the event loop: reading arguments and calling functions is code of the program's, and the
    /// thread for errands waits for none.
    Call(Pickled),
    /// It has been made.
    Coroutine(Py<PyAny>),
}

/// Makes a coroutine, once.
#[pyclass(frozen, module = "farref._core")]
struct Maker(Mutex<Option<Pickled>>);

#[pymethods]
impl Maker {
    fn __call__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let request = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let request = request.ok_or_else(|| PyRuntimeError::new_err("it has been made"))?;
        let (function, args, kwargs) = read(py, request)?;
        user_code::call(&function, &args, kwargs.as_ref())
    }
}

/// Begins a coroutine on the event loop. What it returns, once it is awaited.
pub(crate) fn begin(
    scope: Option<CallScope>,
    coming: Coming,
) -> impl Future<Output = Result<Object, Raised>> + Send {
    let (answer, ended) = Answer::new();
    let running = Arc::new(Mutex::new(Running::NotYet));
    let cancel = CancelOnDrop(Arc::clone(&running));
    errands::run(move |py| match start(py, coming, scope, &answer) {
        Ok(task) => Running::begun(&running, py, task),
        Err(error) => answer.give(Err(raised(py, &error))),
    });
    async move {
        let outcome = ended.await;
        cancel.over();
        outcome.unwrap_or_else(|_| Err(interpreter_ends()))
    }
}

fn start(
    py: Python<'_>,
    coming: Coming,
    scope: Option<CallScope>,
    answer: &Answer,
) -> PyResult<Py<PyAny>> {
    let completion = Completion::new(answer.clone(), scope.clone());
    let scope = scope.map(PyScope::of_call);
    let coming = match coming {
        Coming::Call(request) => Bound::new(py, Maker(Mutex::new(Some(request))))?.into_any(),
        Coming::Coroutine(coroutine) => coroutine.into_bound(py),
    };
    let start = py.import("farref._loop")?.getattr("start")?;
    Ok(start.call1((coming, scope, completion))?.unbind())
}

/// Where the outcome of a call goes, once.
#[derive(Clone)]
pub(crate) struct Answer(Arc<Mutex<Option<Sender>>>);

impl Answer {
    pub(crate) fn new() -> (Self, oneshot::Receiver<Result<Object, Raised>>) {
        let (sender, answered) = oneshot::channel();
        (Self(Arc::new(Mutex::new(Some(sender)))), answered)
    }

    pub(crate) fn give(&self, outcome: Result<Object, Raised>) {
        let sender = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(sender) = sender {
            // Nobody waits any more: dropped here, on a thread that has the interpreter.
            drop(sender.send(outcome));
        }
    }
}

/// Told by Python what became of a coroutine, or of a call that is answered later.
#[pyclass(frozen, module = "farref._core")]
pub(crate) struct Completion {
    answer: Answer,
    scope: Option<CallScope>,
}

impl Completion {
    pub(crate) fn new(answer: Answer, scope: Option<CallScope>) -> Self {
        Self { answer, scope }
    }
}

#[pymethods]
impl Completion {
    fn returned(&self, value: Bound<'_, PyAny>) {
        self.answer
            .give(Ok(Object::returned(value, self.scope.as_ref())));
    }

    /// The value is not to stay here, but to be sent: it is pickled at once, by this thread.
    fn sent(&self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.answer.give(Ok(Object::Pickled(Pickled::of(value)?)));
        Ok(())
    }

    /// The same for a message of PyTorch's layer.
    fn answered(&self, message: &Bound<'_, PyAny>) -> PyResult<()> {
        self.answer.give(Ok(torch_message::answer(message)?));
        Ok(())
    }

    fn raised(&self, py: Python<'_>, error: Bound<'_, PyAny>) {
        self.answer.give(Err(raised(py, &PyErr::from_value(error))));
    }
}

/// A coroutine of the loop, and what may be done about it.
enum Running {
    NotYet,
    /// By calling this.
    Begun(Py<PyAny>),
    Over,
}

impl Running {
    /// It runs; unless nobody wants it any more.
    fn begun(running: &Mutex<Self>, py: Python<'_>, cancel: Py<PyAny>) {
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        match &*running {
            Self::NotYet => *running = Self::Begun(cancel),
            Self::Begun(_) | Self::Over => {
                drop(running);
                cancel_now(py, &cancel);
            }
        }
    }
}

fn cancel_now(py: Python<'_>, cancel: &Py<PyAny>) {
    if let Err(error) = cancel.call0(py) {
        error.write_unraisable(py, None);
    }
}

/// CO-1
struct CancelOnDrop(Arc<Mutex<Running>>);

impl CancelOnDrop {
    fn take(&self) -> Running {
        let mut running = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *running, Running::Over)
    }

    /// It has ended by itself.
    fn over(&self) {
        if let Running::Begun(cancel) = self.take() {
            errands::run(move |_| drop(cancel));
        }
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Running::Begun(cancel) = self.take() {
            errands::run(move |py| cancel_now(py, &cancel));
        }
    }
}
