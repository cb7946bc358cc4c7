//! Other workers of the group, as Python sees them.

use farref::Peer;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::calls::{Limit, PythonCall};
use crate::futures::PyFuture;
use crate::interpreter;
use crate::objects;
use crate::places::{self, Made};
use crate::references::PyRRef;

/// A worker of the group: call its functions, or leave values with it.
///
/// ```pycon
/// >>> import farref, operator
/// >>> with farref.testing.Cluster("trainer", "ps") as cluster:
/// ...     ps = cluster["trainer"].peer("ps")
/// ...     ps.call(operator.add, 1, 2)       # the value comes back
/// ...     pending = ps.start(operator.add, 3, 4)  # runs now, is waited for later
/// ...     pending.result()
/// 3
/// 7
///
/// ```
#[pyclass(frozen, name = "Peer", module = "farref")]
pub(crate) struct PyPeer {
    peer: Peer,
    limit: Limit,
}

impl PyPeer {
    pub(crate) fn new(peer: Peer) -> Self {
        Self {
            peer,
            limit: Limit::default(),
        }
    }

    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for PyPeer {
    fn drop(&mut self) {
        if interpreter::has_forked() {
            // IN-2, as with references.
            std::mem::forget(self.peer.clone());
        }
    }
}

#[pymethods]
impl PyPeer {
    /// Its name, by which the group knows it.
    #[getter]
    fn name(&self) -> &str {
        self.peer.name()
    }

    /// Its rank.
    #[getter]
    fn rank(&self) -> u32 {
        self.peer.rank()
    }

    /// Whether it is this worker itself.
    #[getter]
    fn is_me(&self) -> bool {
        self.peer.is_me()
    }

    /// Whether it is a member of the group, as far as is known here.
    #[getter]
    fn is_alive(&self) -> bool {
        self.peer.is_alive()
    }

    /// Whether it has a time limit of its own.
    #[getter]
    fn _is_limited(&self) -> bool {
        !matches!(self.limit, Limit::OfTheWorker)
    }

    /// The same worker, whose calls may take so many seconds; None: as long as they like.
    ///
    /// ```pycon
    /// >>> import farref, time
    /// >>> with farref.testing.Cluster("a", "b") as cluster:
    /// ...     b = cluster["a"].peer("b")
    /// ...     try:
    /// ...         b.timeout(0.05).call(time.sleep, 0.5)
    /// ...     except farref.Timeout:
    /// ...         print("too slow")
    /// too slow
    ///
    /// ```
    #[pyo3(signature = (seconds))]
    fn timeout(&self, seconds: Option<f64>) -> PyResult<Self> {
        Ok(Self {
            peer: self.peer.clone(),
            limit: Limit::seconds(seconds)?,
        })
    }

    /// Calls a function there, and waits for what it returns. A function is anything that can be imported there too:
    /// it travels by its name. A text is the name of one: so are functions of Rust workers called
    /// (`#[farref::remote(python = "..")]`). Exceptions that it raises are raised here.
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn call<'py>(
        &self,
        function: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = function.py();
        let call = PythonCall::new(function, args, kwargs)?;
        self.limit
            .or_of(function)?
            .apply(call.on(&self.peer))
            .wait(py)
    }

    /// Begins a call, and returns a Future of what it returns.
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn start(
        &self,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyFuture> {
        let call = PythonCall::new(function, args, kwargs)?;
        Ok(self
            .limit
            .or_of(function)?
            .apply(call.on(&self.peer))
            .start())
    }

    /// Calls a function there, and leaves what it returns there: an RRef to it comes back at once.
    #[pyo3(signature = (function, /, *args, **kwargs))]
    fn remote(
        &self,
        function: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<PyRRef> {
        let call = PythonCall::new(function, args, kwargs)?;
        let limit = self.limit.or_of(function)?;
        let call = limit.apply(call.on(&self.peer));
        let made = Made::By(function);
        let rref = places::make(function.py(), &made, || call.remote());
        Ok(PyRRef::new(rref))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        objects::send_peer(py, &self.peer)
    }

    fn __repr__(&self) -> String {
        format!("Peer({:?}, rank={})", self.peer.name(), self.peer.rank())
    }

    fn __eq__(&self, other: &Self) -> bool {
        (self.peer.rank(), self.peer.name()) == (other.peer.rank(), other.peer.name())
    }

    fn __hash__(&self) -> u64 {
        self.peer.rank().into()
    }
}
