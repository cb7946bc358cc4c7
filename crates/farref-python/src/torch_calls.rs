//! Calls of PyTorch's layer, on the worker that calls: an answer is read by who waits for it
//! ([`torch_future`](crate::torch_future)).

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;

use crate::calls::{Building, Limit};
use crate::errors::{alive, to_python};
use crate::objects::{Object, Pickled};
use crate::references::PyRRef;
use crate::runtime;
use crate::serving::ObjectRRef;
use crate::torch_future::TorchFuture;
use crate::torch_layer::{Route, helper, no_message};
use crate::torch_message::{Grad, Leaving, arrived, pickle_of};
use crate::torch_serving::{call, call_later, gradients};
use crate::under_way::UnderWay;
use crate::worker::PyWorker;

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
    let call = build(py, worker, to, seconds, later, request)?;
    Ok(PyRRef::new(call.remote()))
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

/// Tells another worker of gradients, calls `meanwhile`, and waits until the other is through with them. Returns the pickle of what
/// it answers.
#[pyfunction]
pub(crate) fn torch_gradients<'py>(
    py: Python<'py>,
    worker: &PyWorker,
    to: &str,
    sender: u32,
    pickle: &Bound<'py, PyBytes>,
    beside: Option<Bound<'py, PyAny>>,
    meanwhile: Option<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyBytes>> {
    alive()?;
    let peer = worker.worker().peer(to);
    let peer = peer.map_err(|error| to_python(py, error))?;
    let call = gradients::on(&peer, leaving(sender, pickle, beside, None)?).untyped();
    // However long it takes: a worker that is gone is noticed.
    let call = Limit::seconds(None)?.apply(Building(call));
    let pending = call.0.start();
    let done = meanwhile.map_or(Ok(()), |then| then.call0().map(drop));
    // Whatever has become of that: the other worker is at it.
    let answer = runtime::wait(py, pending)?;
    done?;
    match answer {
        Ok(Object::Pickled(message)) => pickle_of(py, &message),
        Ok(_) => Err(no_message()),
        Err(error) => Err(to_python(py, error)),
    }
}
