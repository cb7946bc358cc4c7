//! Results that are not there yet: what [`begun`](crate::begun) calls are to programs.
//!
//! # Invariants
//!
//! - **FU-1** Callbacks are the program's: they run on threads that may wait, those of one future in the order in which they
//!   were added; one that was added in a coroutine runs on its event loop.

use std::sync::Arc;
use std::time::Instant;

use farref::Pending;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::begun::{Begun, Nothing, Outcome, Reader};
use crate::errands;
use crate::errors::{alive, exception, to_python};
use crate::objects::Object;
use crate::runtime::{self, duration, on_a_thread};
use crate::user_code;

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
pub(crate) struct PyFuture(Arc<Begun<Plainly>>);

/// How farref's own layer reads what a call ended with.
struct Plainly;

impl Reader for Plainly {
    type Then = Then;
    type UntilOver = ();

    fn read(&self, py: Python<'_>, outcome: Outcome) -> PyResult<Py<PyAny>> {
        match outcome {
            Ok(object) => object.into_python(py).map(Bound::unbind),
            Err(error) => Err(to_python(py, error)),
        }
    }

    fn nothing(py: Python<'_>, why: Nothing) -> PyErr {
        let (class, text) = match why {
            Nothing::GivenUp => ("Cancelled", "the call was cancelled"),
            Nothing::BeingRead => (
                "Deadlock",
                "reading the result of the call asks for the result of the call",
            ),
            Nothing::Interrupted => (
                "CannotBeSent",
                "the result of the call was not read to its end: reading it was interrupted",
            ),
        };
        exception(py, class, text)
    }

    fn tell(then: Vec<Then>) {
        call_all(then);
    }
}

/// A callback: FU-1.
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
        Ok(self.0.give_up())
    }

    /// Whether it was cancelled, here: by `cancel()`.
    fn cancelled(&self) -> bool {
        self.0.is_given_up()
    }

    /// Calls `function` with this future when it has ended: on a thread of farref's, or if it is added in a coroutine, on its
    /// event loop. It may wait, on a thread.
    fn add_done_callback(slf: Bound<'_, Self>, function: Py<PyAny>) -> PyResult<()> {
        alive()?;
        let running = slf.py().import("farref._loop")?.getattr("running")?;
        let event_loop = running.call0()?;
        slf.get().0.when_over(Then {
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
        let (mut kept, mut removed) = (Vec::new(), 0);
        let mut failed = Ok(());
        // Comparing is the program's code: without the lock.
        for then in self.0.take_told() {
            match then.function.bind(py).eq(function) {
                Ok(true) => removed += 1,
                Ok(false) => kept.push(then),
                Err(error) => {
                    failed = Err(error);
                    kept.push(then);
                }
            }
        }
        self.0.give_back_told(kept);
        failed.map(|()| removed)
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let wait = slf.py().import("farref._loop")?.getattr("wait_for")?;
        wait.call1((slf,))?.call_method0("__await__")
    }

    fn __repr__(&self) -> &'static str {
        match (self.0.is_given_up(), self.0.is_over()) {
            (true, _) => "<farref.Future cancelled>",
            (false, true) => "<farref.Future ended>",
            (false, false) => "<farref.Future pending>",
        }
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.traverse(&visit)
    }

    fn __clear__(&self) {
        self.0.clear();
    }
}

impl PyFuture {
    pub(crate) fn new(pending: Pending<Object>) -> Self {
        Self(Begun::new(pending, Plainly))
    }

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
}
