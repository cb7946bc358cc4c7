//! Calls whose functions answer when they like, and whose outcomes are told to a function: what `farref.torch` is made of.
//!
//! # Invariants
//!
//! - **DE-1** Functions and callbacks run on threads that may wait as long as they like: there are as many as are needed
//!   ([`on_a_thread`]).
//! - **DE-2** They run for nobody: what they call has its own time, and goes on when their caller does not wait any more.
//!   So it is in PyTorch.
//! - **DE-3** Each callback is called exactly once, unless the interpreter ends.

use farref::{MemberEvent, Pending};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::calls::{self, Building, Limit, PythonCall};
use crate::coroutines::{Answer, Completion};
use crate::errors::{Raised, alive, interpreter_ends, raised, to_python};
use crate::objects::{Object, Pickled};
use crate::peers::PyPeer;
use crate::references::PyRRef;
use crate::requests::read;
use crate::runtime::{self, on_a_thread};
use crate::thread_state;
use crate::user_code;
use crate::worker::PyWorker;

/// Calls a function of Python with something that takes its answer, and with its arguments.
#[farref::remote(name = "farref_python::call_deferred")]
pub(crate) async fn call_deferred(request: Pickled) -> Result<Object, Raised> {
    let (answer, answered) = Answer::new();
    on_a_thread(move |py| {
        if let Err(error) = begin(py, request, &answer) {
            answer.give(Err(raised(py, &error)));
        }
    });
    answered.await.unwrap_or_else(|_| Err(interpreter_ends()))
}

fn begin(py: Python<'_>, request: Pickled, answer: &Answer) -> PyResult<()> {
    let (function, args, kwargs) = read(py, request)?;
    let completion = Bound::new(py, Completion::new(answer.clone(), None))?.into_any();
    let args = std::iter::once(completion).chain(args.iter());
    let args = PyTuple::new(py, args.collect::<Vec<_>>())?;
    user_code::call(&function, &args, kwargs.as_ref()).map(drop)
}

/// Tells `then` what a call ended with: `then(value, None)` or `then(None, error)`.
fn tell(pending: Pending<Object>, then: Py<PyAny>) -> PyResult<()> {
    drop(runtime::handle()?.spawn(async move {
        let outcome = pending.await;
        on_a_thread(move |py| {
            let outcome = match outcome {
                Ok(object) => object.into_python(py),
                Err(error) => Err(to_python(py, error)),
            };
            let none = py.None().into_bound(py);
            let told = match outcome {
                Ok(value) => PyTuple::new(py, [value, none]),
                Err(error) => {
                    PyTuple::new(py, [none, error.into_value(py).into_bound(py).into_any()])
                }
            };
            let told = told.and_then(|told| user_code::call(then.bind(py), &told, None));
            if let Err(error) = told {
                error.write_unraisable(py, Some(then.bind(py)));
            }
        });
    }));
    Ok(())
}

fn build(
    peer: &PyPeer,
    timeout: Option<f64>,
    function: &Bound<'_, PyAny>,
    args: &Bound<'_, PyTuple>,
) -> PyResult<Building> {
    let call = PythonCall::new(function, args, None)?;
    let call = call.by(|request| call_deferred::on(peer.peer(), request).untyped());
    Ok(Limit::seconds(timeout)?.apply(call))
}

/// Begins a call of `function(completion, *args)` there; `then` is told what it is answered with.
#[pyfunction]
pub(crate) fn start_deferred(
    peer: &PyPeer,
    timeout: Option<f64>,
    function: &Bound<'_, PyAny>,
    args: &Bound<'_, PyTuple>,
    then: Py<PyAny>,
) -> PyResult<()> {
    tell(build(peer, timeout, function, args)?.0.start(), then)
}

/// Begins a call of a method of a far value; `then` is told what it returns.
#[pyfunction]
pub(crate) fn invoke_deferred(
    rref: &PyRRef,
    timeout: Option<f64>,
    method: &str,
    args: &Bound<'_, PyTuple>,
    then: Py<PyAny>,
) -> PyResult<()> {
    let call = calls::method(rref.rref(), method, args, None)?;
    tell(Limit::seconds(timeout)?.apply(call).0.start(), then)
}

/// Calls `told` with the name of each worker that leaves the group or dies, and whether it died, until this one ends.
#[pyfunction]
pub(crate) fn watch_departures(worker: &PyWorker, told: Py<PyAny>) -> PyResult<()> {
    alive()?;
    let mut members = worker.worker().watch_members();
    drop(runtime::handle()?.spawn(async move {
        while let Some(event) = members.next().await {
            let (member, died) = match event {
                MemberEvent::Left(member) => (member, false),
                MemberEvent::Died(member) => (member, true),
                MemberEvent::Ended(_) => return,
                _ => continue,
            };
            let Some(told) = thread_state::attach(|py| told.clone_ref(py)) else {
                return;
            };
            on_a_thread(move |py| {
                if let Err(error) = told.call1(py, (member.peer().name(), died)) {
                    error.write_unraisable(py, Some(told.bind(py)));
                }
            });
        }
    }));
    Ok(())
}
