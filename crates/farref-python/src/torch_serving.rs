//! Calls of PyTorch's layer, on the worker that is called.
//!
//! # Invariants
//!
//! - **TV-1** As DE-1 and DE-2 of [`deferred`](crate::deferred): functions run on threads that may wait, and for nobody.
//! - **TV-2** What autograd has to do about an answer that has tensors is done when that has gone out, by the thread that has
//!   carried out the call, while the caller is at it; or before the next call is carried out, if that comes first.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};

use farref::functions::CallScope;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;

use crate::coroutines::{Answer, Completion};
use crate::errors::{Raised, interpreter_ends, raised};
use crate::objects::{Object, Pickled};
use crate::requests::attached;
use crate::runtime::on_a_thread;
use crate::torch_layer::{helper, helper_of};
use crate::torch_message::{answer, arrived};
use crate::user_code;

static SERVED: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// TV-2: whether this thread has left something to be done.
    static LEFT: Cell<bool> = const { Cell::new(false) };
}

/// TV-2: called by a thread that has no more calls to carry out for now.
pub(crate) fn see_to_what_is_left(py: Python<'_>) {
    static MAKE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    if !LEFT.take() {
        return;
    }
    let done = helper_of(py, &MAKE, "farref.torch._edges", "make_left")
        .and_then(|make| user_code::call(make, &PyTuple::empty(py), None));
    if let Err(error) = done {
        error.write_unraisable(py, None);
    }
}

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
                false => {
                    let answer = answer(&answered)?;
                    LEFT.set(!answered.get_item(2)?.is_none());
                    Ok(answer)
                }
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

/// Gradients of a backward pass, for whoever waits until this worker is through with them: `farref.torch._passes`.
#[farref::remote(name = "farref.torch::gradients")]
pub(crate) fn gradients(request: Pickled) -> Result<Object, Raised> {
    static SERVE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    CallScope::outside(|| {
        attached(|py| {
            let request = arrived(py, request)?;
            let serve = helper_of(py, &SERVE, "farref.torch._passes", "serve_gradients")?;
            answer(&user_code::call(serve, &request, None)?)
        })
    })
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
