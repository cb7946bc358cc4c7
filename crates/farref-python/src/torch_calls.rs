//! Calls of PyTorch's layer: `farref.torch._calls` says what becomes of them on either worker.
//!
//! # Invariants
//!
//! - **TC-1** As DE-1 and DE-2 of [`deferred`](crate::deferred): functions run on threads that may wait, and for nobody.
//! - **TC-2** An answer is read by who waits for it ([`torch_future`](crate::torch_future)).

use std::sync::atomic::{AtomicUsize, Ordering};

use farref::Error;
use farref::functions::CallScope;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::calls::{Building, Limit};
use crate::coroutines::{Answer, Completion};
use crate::deferred::on_a_thread;
use crate::errors::{Raised, alive, interpreter_ends, raised, to_python};
use crate::objects::{Object, Pickled};
use crate::references::PyRRef;
use crate::runtime;
use crate::serving::{ObjectRRef, attached};
use crate::torch_future::TorchFuture;
use crate::torch_message::{Grad, Leaving, answer, arrived};
use crate::under_way::UnderWay;
use crate::user_code;
use crate::worker::PyWorker;

static SERVED: AtomicUsize = AtomicUsize::new(0);

struct Serving;

impl Serving {
    fn begin() -> Self {
        SERVED.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        SERVED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How many calls of others run here.
#[pyfunction]
pub(crate) fn torch_served() -> usize {
    SERVED.load(Ordering::Relaxed)
}

/// A function of `farref.torch._calls`.
pub(crate) fn helper<'py>(
    py: Python<'py>,
    found: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    let find = || {
        let module = py.import("farref.torch._calls")?;
        Ok::<_, PyErr>(module.getattr(name)?.unbind())
    };
    Ok(found.get_or_try_init(py, find)?.bind(py))
}

// On the worker that is called

fn result_stays(scope: Option<&CallScope>) -> bool {
    scope.is_none_or(CallScope::result_stays)
}

/// Calls a function, and answers with what it returns.
#[farref::remote(name = "farref.torch::call")]
pub(crate) fn call(request: Pickled) -> Result<Object, Raised> {
    static SERVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let scope = CallScope::current();
    let stays = result_stays(scope.as_ref());
    let _serving = Serving::begin();
    let outcome = CallScope::outside(|| {
        attached(|py| {
            let request = arrived(py, request)?;
            let request = (stays, request).into_pyobject(py)?;
            let answered = user_code::call(helper(py, &SERVE, "serve")?, &request, None)?;
            match stays {
                true => Ok(Object::here(answered)),
                false => answer(&answered),
            }
        })
    });
    match scope {
        // So it is in PyTorch: a value that comes too late is none.
        Some(scope) if stays && scope.is_late() => Err(late()),
        _ => outcome,
    }
}

/// What that is called is up to the runtime (D3).
fn late() -> Raised {
    let (class, message) = ("TimeoutError".to_owned(), "it took too long".to_owned());
    Raised::new(class, message, String::new(), None)
}

/// Calls a function that answers when it likes (`@rpc.functions.async_execution`).
#[farref::remote(name = "farref.torch::call_later")]
pub(crate) async fn call_later(request: Pickled) -> Result<Object, Raised> {
    static SERVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let stays = result_stays(CallScope::current().as_ref());
    let (answer, answered) = Answer::new();
    on_a_thread(move |py| {
        let _serving = Serving::begin();
        let begun = arrived(py, request).and_then(|request| {
            let completion = Completion::new(answer.clone(), None);
            let request = (completion, stays, request).into_pyobject(py)?;
            user_code::call(helper(py, &SERVE, "serve_later")?, &request, None)
        });
        if let Err(error) = begun {
            answer.give(Err(raised(py, &error)));
        }
    });
    answered.await.unwrap_or_else(|_| Err(interpreter_ends()))
}

/// A copy of a value, for another worker.
pub(crate) fn fetched(value: &Object, request: Pickled) -> Result<Object, Raised> {
    CallScope::outside(|| {
        attached(|py| {
            let request = arrived(py, request)?;
            let fetch = value.look(py)?.getattr("fetched")?;
            answer(&user_code::call(&fetch, &request, None)?)
        })
    })
}

// On the worker that calls

/// Where a call goes, and what is done about its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// PyTorch's number of the other worker.
    to: u32,
    seconds: Option<f64>,
}

impl Route {
    /// What a call ended with, for PyTorch's layer.
    pub(crate) fn read(
        self,
        py: Python<'_>,
        outcome: Result<Object, Error>,
    ) -> PyResult<Py<PyAny>> {
        static VALUE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        match outcome {
            Ok(Object::Pickled(message)) => {
                let message = arrived(py, message)?;
                let value = helper(py, &VALUE, "answered")?.call1((self.to, message))?;
                Ok(value.unbind())
            }
            Ok(_) => Err(no_message()),
            Err(error) => {
                let error = to_python(py, error).into_value(py);
                let error = helper(py, &ERROR, "as_torch_says")?.call1((error, self.seconds))?;
                Err(PyErr::from_value(error))
            }
        }
    }
}

fn leaving(
    sender: u32,
    pickle: &Bound<'_, PyBytes>,
    beside: Option<Bound<'_, PyAny>>,
    grad: Option<Grad>,
) -> PyResult<Pickled> {
    let pickle = pickle.as_bytes();
    let leaving = Leaving {
        sender,
        pickle,
        beside,
        grad,
    };
    leaving.into_pickled()
}

fn build(
    py: Python<'_>,
    worker: &PyWorker,
    to: &str,
    seconds: Option<f64>,
    later: bool,
    request: Pickled,
) -> PyResult<Building> {
    let peer = worker.worker().peer(to);
    let peer = peer.map_err(|error| to_python(py, error))?;
    let call = match later {
        false => call::on(&peer, request).untyped(),
        true => call_later::on(&peer, request).untyped(),
    };
    Ok(Limit::seconds(seconds)?.apply(Building(call)))
}

/// Begins a call on another worker, whose answer `farref.torch._calls.answered` reads. `context`: which one callbacks run in.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "what a call of PyTorch's layer says"
)]
pub(crate) fn torch_start(
    py: Python<'_>,
    worker: &PyWorker,
    to: (&str, u32),
    seconds: Option<f64>,
    later: bool,
    sender: u32,
    pickle: &Bound<'_, PyBytes>,
    beside: Option<Bound<'_, PyAny>>,
    grad: Option<Grad>,
    context: Option<u64>,
) -> PyResult<TorchFuture> {
    alive()?;
    let (name, to) = to;
    let request = leaving(sender, pickle, beside, grad)?;
    let call = build(py, worker, name, seconds, later, request)?;
    Ok(TorchFuture::new(
        call.0.start(),
        Route { to, seconds },
        context,
    ))
}

/// The same, and what it is answered with stays there.
#[pyfunction]
#[expect(
    clippy::too_many_arguments,
    reason = "what a call of PyTorch's layer says"
)]
pub(crate) fn torch_remote(
    py: Python<'_>,
    worker: &PyWorker,
    to: &str,
    seconds: Option<f64>,
    later: bool,
    sender: u32,
    pickle: &Bound<'_, PyBytes>,
    beside: Option<Bound<'_, PyAny>>,
    grad: Option<Grad>,
) -> PyResult<PyRRef> {
    alive()?;
    let request = leaving(sender, pickle, beside, grad)?;
    Ok(build(py, worker, to, seconds, later, request)?.remote())
}

/// A copy of a value of another worker. Waits for it. `late`: seconds after which it is to be sent, for tests.
#[pyfunction]
pub(crate) fn torch_fetch(
    py: Python<'_>,
    rref: &PyRRef,
    to: u32,
    seconds: Option<f64>,
    sender: u32,
    late: Option<Bound<'_, PyAny>>,
    grad: Option<Grad>,
) -> PyResult<Py<PyAny>> {
    static VALUE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    alive()?;
    let leaving = Leaving {
        sender,
        pickle: &[],
        beside: late,
        grad,
    };
    let call = rref.rref().torch_fetch(leaving.into_pickled()?).untyped();
    let call = Limit::seconds(seconds)?.apply(Building(call));
    let under_way = UnderWay::begin();
    let outcome = runtime::wait(py, call.0)?;
    drop(under_way);
    match outcome {
        Ok(Object::Pickled(message)) => {
            let message = arrived(py, message)?;
            let value = helper(py, &VALUE, "fetched")?.call1((to, message))?;
            Ok(value.unbind())
        }
        Ok(_) => Err(no_message()),
        Err(error) => Err(to_python(py, error)),
    }
}

fn no_message() -> PyErr {
    PyRuntimeError::new_err("what came is no message of PyTorch's layer")
}
