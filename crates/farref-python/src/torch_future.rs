//! Results of PyTorch's calls that are not there yet: what [`begun`](crate::begun) calls are to `farref.torch`.
//!
//! # Invariants
//!
//! - **TF-1** Callbacks run on threads that may wait.
//! - **TF-2** A call is under way until it is over, whether anybody keeps its future or not.

use std::sync::{Arc, Weak};
use std::time::Instant;

use farref::Pending;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::begun::{Begun, Nothing, Outcome, Reader};
use crate::errors::alive;
use crate::objects::Object;
use crate::runtime::on_a_thread;
use crate::torch_layer::{Route, helper};
use crate::under_way::{Heard, UnderWay};
use crate::user_code;

impl Reader for Route {
    type Then = Box<dyn FnOnce(Python<'_>) + Send>;
    // TF-2
    type UntilOver = UnderWay;

    fn read(&self, py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
        Self::read(*self, py, outcome)
    }

    fn nothing(_: Python<'_>, why: Nothing) -> PyErr {
        PyRuntimeError::new_err(match why {
            Nothing::GivenUp | Nothing::BeingRead => "the result of the call is not there",
            Nothing::Interrupted => {
                "the result of the call was not read to its end: reading it was interrupted"
            }
        })
    }

    fn tell(then: Vec<Self::Then>) {
        // TF-1
        then.into_iter().for_each(on_a_thread);
    }
}

impl Heard for Begun<Route> {
    fn hear(self: Arc<Self>) {
        self.watch_if_idle();
    }
}

/// The result of a call of PyTorch's layer. It passes for a `torch.futures.Future`, and whoever waits for it does so on its own
/// thread (BG-1); where that is not enough, there is one of PyTorch's, which is told of the end by a thread.
#[pyclass(frozen, weakref, module = "farref._core")]
pub(crate) struct TorchFuture {
    call: Arc<Begun<Route>>,
    /// Which one its callbacks run in.
    context: Option<u64>,
    real: PyOnceLock<Py<PyAny>>,
}

impl TorchFuture {
    pub(crate) fn new(pending: Pending<Object>, route: Route, context: Option<u64>) -> Self {
        let call = Begun::new(pending, route);
        let watched: Weak<Begun<Route>> = Arc::downgrade(&call);
        call.keep(UnderWay::of(watched));
        Self {
            call,
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
        self.call.outcome(py)?
    }

    /// Whether it has ended. Looks, and does not wait.
    fn done(&self, py: Python<'_>) -> PyResult<bool> {
        alive()?;
        self.call.wait(py, Some(Instant::now()))
    }

    /// What the call has returned. It has to be over.
    fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self.done(py)? {
            true => self.call.outcome(py)?,
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
            this.call.when_over(Box::new(move |py| {
                let completed = (real, future, context).into_pyobject(py).and_then(|args| {
                    user_code::call(helper(py, &COMPLETE, "complete")?, &args, None)
                });
                if let Err(error) = completed {
                    error.write_unraisable(py, None);
                }
            }));
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
        match self.call.is_over() {
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
