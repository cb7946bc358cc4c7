//! Far references, as Python sees them.

use std::task::{Context, Poll, Waker};

use farref::RRef;
use pyo3::exceptions::PyAttributeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::calls::{self, Building, Limit};
use crate::errors::{alive, exception, to_python};
use crate::interpreter;
use crate::objects::{self, Object};
use crate::peers::PyPeer;
use crate::places::{self, Made};
use crate::runtime;
use crate::scope;

/// A far reference: a value on some worker, which lives as long as somebody holds it.
///
/// Call its methods where it is with `call`, begin them with `start`, or leave their results there with `remote`.
///
/// ```pycon
/// >>> import collections, farref
/// >>> with farref.testing.Cluster("a", "b") as cluster:
/// ...     words = cluster["a"].peer("b").remote(collections.Counter, "abracadabra")
/// ...     words.call.most_common(1)
/// ...     words.call.update("bbbbb")
/// ...     words.to_here()["b"]
/// ...     del words  # nobody holds it: freed on "b"
/// [('a', 5)]
/// 7
///
/// ```
#[pyclass(frozen, name = "RRef", module = "farref", generic, weakref)]
pub(crate) struct PyRRef {
    rref: RRef<Object>,
    limit: Limit,
}

impl PyRRef {
    pub(crate) fn new(rref: RRef<Object>) -> Self {
        Self::limited(rref, Limit::default())
    }

    fn limited(rref: RRef<Object>, limit: Limit) -> Self {
        Self { rref, limit }
    }

    pub(crate) fn rref(&self) -> &RRef<Object> {
        &self.rref
    }

    fn methods(&self, how: How) -> Methods {
        Methods {
            on: Self::limited(self.rref.clone(), self.limit),
            how,
        }
    }
}

impl Drop for PyRRef {
    fn drop(&mut self) {
        if interpreter::has_forked() {
            // IN-2: what this process has is a copy of somebody else's. One more that is never dropped keeps it.
            std::mem::forget(self.rref.clone());
        }
    }
}

#[pymethods]
impl PyRRef {
    /// Methods of the value: `rref.call.method(..)` waits for what they return.
    #[getter]
    fn call(&self) -> Methods {
        self.methods(How::Call)
    }

    /// Methods of the value: `rref.start.method(..)` returns a Future.
    #[getter]
    fn start(&self) -> Methods {
        self.methods(How::Start)
    }

    /// Methods of the value: `rref.remote.method(..)` leaves the result there, and returns an RRef to it.
    #[getter]
    fn remote(&self) -> Methods {
        self.methods(How::Remote)
    }

    /// The same reference, whose uses may take so many seconds; None: as long as they like.
    #[pyo3(signature = (seconds))]
    fn timeout(&self, seconds: Option<f64>) -> PyResult<Self> {
        Ok(Self::limited(self.rref.clone(), Limit::seconds(seconds)?))
    }

    /// A copy of the value; on the worker that has it, the value itself.
    fn to_here<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        alive()?;
        if self.rref.is_owner() {
            return self.local_value(py);
        }
        let call = scope::enter(|| self.rref.to_here());
        self.limit.apply(Building(call)).wait(py)
    }

    /// The value itself, on the worker that has it. Waits until it is there.
    fn local_value<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        alive()?;
        let there = match self.limit.duration() {
            None => scope::enter(|| runtime::wait_if_allowed(py, self.rref.local()))?,
            Some(limit) => match scope::enter(|| {
                runtime::wait_at_most(py, self.rref.local(), limit)
            })? {
                Some(there) => there,
                None => {
                    let text =
                        format!("the value was not there within {limit:?}: it is still being made");
                    return Err(exception(py, "Timeout", &text));
                }
            },
        };
        match there {
            Ok(object) => match &*object {
                Object::Here(value) => Ok(value.bind(py)),
                Object::Pickled(_) | Object::Unsendable(_) => Err(PyAttributeError::new_err(
                    "the value is no object of this process",
                )),
            },
            Err(error) => Err(to_python(py, error)),
        }
    }

    /// Waits until the owner knows that this worker holds the reference.
    fn confirmed(&self, py: Python<'_>) -> PyResult<()> {
        alive()?;
        runtime::wait_if_allowed(py, self.rref.confirmed())?.map_err(|error| to_python(py, error))
    }

    /// Whether the owner knows that this worker holds the reference. Looks, and does not wait.
    #[getter]
    fn is_confirmed(&self) -> bool {
        let confirmed = std::pin::pin!(self.rref.confirmed());
        let mut context = Context::from_waker(Waker::noop());
        matches!(confirmed.poll(&mut context), Poll::Ready(Ok(())))
    }

    /// The worker that has the value.
    #[getter]
    fn owner(&self, py: Python<'_>) -> PyResult<PyPeer> {
        let owner = self.rref.owner().map_err(|error| to_python(py, error))?;
        Ok(PyPeer::new(owner))
    }

    /// Whether the value is on this worker.
    #[getter]
    fn is_owner(&self) -> bool {
        self.rref.is_owner()
    }

    /// A text that tells this reference from all others of the group.
    #[getter]
    fn id(&self, py: Python<'_>) -> PyResult<String> {
        self.rref.id().map_err(|error| to_python(py, error))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        objects::send_reference(py, &self.rref)
    }

    fn __eq__(&self, other: &Self) -> bool {
        self.rref == other.rref
    }

    fn __hash__(&self) -> u64 {
        use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
        BuildHasherDefault::<DefaultHasher>::default().hash_one(&self.rref)
    }

    fn __repr__(&self) -> String {
        match (self.rref.owner(), self.rref.id()) {
            (Ok(owner), Ok(id)) => format!("RRef({id} on {:?})", owner.name()),
            (Err(error), _) | (_, Err(error)) => format!("RRef({error})"),
        }
    }
}

/// What becomes of a method's result.
#[derive(Clone, Copy, Debug)]
enum How {
    Call,
    Start,
    Remote,
}

/// Special methods that are called like others, of containers and iterators for the most part.
const SPECIAL: [&str; 11] = [
    "__call__",
    "__len__",
    "__getitem__",
    "__setitem__",
    "__delitem__",
    "__contains__",
    "__iter__",
    "__next__",
    "__enter__",
    "__exit__",
    "__bool__",
];

impl How {
    fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Start => "start",
            Self::Remote => "remote",
        }
    }
}

/// The methods of a far value, by their names.
#[pyclass(frozen, module = "farref._core")]
pub(crate) struct Methods {
    on: PyRRef,
    how: How,
}

#[pymethods]
impl Methods {
    fn __getattr__(&self, name: String) -> PyResult<Method> {
        // What Python looks for by itself is not there: it would be asked of the worker that has the value.
        let is_special = name.starts_with("__") && name.ends_with("__");
        if is_special && !SPECIAL.contains(&name.as_str()) {
            return Err(PyAttributeError::new_err(format!(
                "{name} is not called from afar: write a function that gets the reference, uses `rref.local_value()`, and is \
                 called on `rref.owner`"
            )));
        }
        Ok(Method {
            on: PyRRef::limited(self.on.rref.clone(), self.on.limit),
            how: self.how,
            name,
        })
    }

    /// The value itself is called.
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.__getattr__("__call__".to_owned())?
            .__call__(py, args, kwargs)
    }

    fn __repr__(&self) -> String {
        let (how, on) = (self.how.name(), self.on.__repr__());
        format!("<{how}: methods of {on}>")
    }
}

/// One method of a far value.
#[pyclass(frozen, module = "farref._core")]
pub(crate) struct Method {
    on: PyRRef,
    how: How,
    name: String,
}

#[pymethods]
impl Method {
    #[pyo3(signature = (*args, **kwargs))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        kwargs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let call = calls::method(self.on.rref(), &self.name, args, kwargs)?;
        let call = self.on.limit.apply(call);
        match self.how {
            How::Call => call.wait(py),
            How::Start => Ok(Bound::new(py, call.start())?.into_any()),
            How::Remote => {
                let made = Made::ByMethod(&self.name);
                let rref = places::make(py, &made, || call.remote());
                Ok(Bound::new(py, PyRRef::new(rref))?.into_any())
            }
        }
    }

    fn __repr__(&self) -> String {
        let (how, on) = (self.how.name(), self.on.__repr__());
        format!("<{how}.{}: a method of {on}>", self.name)
    }
}
