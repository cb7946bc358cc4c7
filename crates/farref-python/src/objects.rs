//! Python's objects as values of the runtime.
//!
//! An object stays what it is with the worker that has it. On its way to another it is a pickle, with buffers and
//! references beside it; it is unpickled by the thread that wants it, and by nobody who only hands it on.

use std::cell::RefCell;

use farref::functions::{CallScope, ForeignType};
use farref::{Blob, Buffer, Peer, RRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::buffers::{self, Received};
use crate::errors;
use crate::ownership::Owned;
use crate::thread_state;
use crate::user_code;

/// An object of Python.
#[derive(Debug)]
pub(crate) enum Object {
    /// On the worker that has it.
    Here(Live),
    /// On its way, or just arrived.
    Pickled(Pickled),
    /// It was to be sent, and cannot be pickled: why.
    Unsendable(String),
}

// A reference to it is one to anything: a Rust value, too.
farref::__private::inventory::submit! {
    ForeignType::of::<Object>().called("Python object")
}

/// An object that is with the worker that has it, until it is dropped.
#[derive(Debug)]
pub(crate) struct Live(Option<Py<PyAny>>);

/// An object as bytes, and what travels beside them: `docs/protocol.md`, FO-1. Rust workers see the same bytes in their way
/// (`farref-pickle`).
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Pickled {
    /// Whether it is what to call, its arguments and those that have names; otherwise it is a value.
    is_call: bool,
    pickle: Blob,
    buffers: Vec<Buffer>,
    references: Vec<RRef<Object>>,
    peers: Vec<Peer>,
    /// Whether it came in a message that was made in a context.
    #[serde(skip, default = "comes_in_context")]
    in_context: bool,
}

fn comes_in_context() -> bool {
    farref::context::incoming().is_some()
}

/// References and peers that are in the value that is being pickled or unpickled.
#[derive(Default)]
struct Beside {
    references: Vec<RRef<Object>>,
    peers: Vec<Peer>,
    in_context: bool,
}

thread_local! {
    /// What is being pickled by this thread. Pickling runs the program's code, which may pickle other things meanwhile.
    static SENDING: RefCell<Vec<Beside>> = const { RefCell::new(Vec::new()) };
    static RECEIVING: RefCell<Vec<Beside>> = const { RefCell::new(Vec::new()) };
}

/// The innermost value that this thread pickles or unpickles: taken off again whatever happens.
struct Scope(&'static std::thread::LocalKey<RefCell<Vec<Beside>>>);

impl Scope {
    fn enter(stack: &'static std::thread::LocalKey<RefCell<Vec<Beside>>>, beside: Beside) -> Self {
        stack.with_borrow_mut(|stack| stack.push(beside));
        Self(stack)
    }

    fn leave(self) -> Beside {
        let beside = self.0.with_borrow_mut(Vec::pop).unwrap_or_default();
        std::mem::forget(self);
        beside
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        drop(self.0.with_borrow_mut(Vec::pop));
    }
}

/// Pickles of so many bytes are copied neither before they are sent nor when they have come. With smaller ones it is not worth
/// what it takes.
const LARGE: usize = 1 << 16;

/// Whether there can be no tensor in it: it is pickled faster then.
fn is_plain(value: &Bound<'_, PyAny>) -> bool {
    value.is_none()
        || value.is_exact_instance_of::<PyInt>()
        || value.is_exact_instance_of::<PyFloat>()
        || value.is_exact_instance_of::<PyString>()
        || value.is_exact_instance_of::<PyBytes>()
        || value.is_exact_instance_of::<PyBool>()
}

/// A function of `farref._pickling`.
fn helper<'py>(
    py: Python<'py>,
    cell: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    let function = cell.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("farref._pickling")?.getattr(name)?.unbind())
    })?;
    Ok(function.bind(py))
}

impl Pickled {
    /// Pickles an object. Its large buffers and its references go beside.
    pub(crate) fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        Self::dumped(value, false, is_plain(value), None)
    }

    /// The same of what a function has returned, and what may go on changing: memory that is not its own is copied.
    fn of_result(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        match is_plain(value) {
            true => Self::dumped(value, false, true, None),
            false => Self::dumped(value, false, false, Some(&Owned::of(value))),
        }
    }

    /// What to call, its arguments, and those that have names.
    pub(crate) fn of_call(
        called: &Bound<'_, PyAny>,
        args: &Bound<'_, PyTuple>,
        kwargs: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let is_plain = kwargs.is_none() && args.iter().all(|arg| is_plain(&arg));
        let call = (called, args, kwargs).into_pyobject(called.py())?;
        Self::dumped(call.as_any(), true, is_plain, None)
    }

    fn dumped(
        value: &Bound<'_, PyAny>,
        is_call: bool,
        is_plain: bool,
        owned: Option<&Owned>,
    ) -> PyResult<Self> {
        static DUMPS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = value.py();
        let scope = Scope::enter(&SENDING, Beside::default());
        let (pickle, lent): (Bound<'_, PyBytes>, Bound<'_, PyList>) = user_code::call(
            helper(py, &DUMPS, "dumps")?,
            &(value, is_plain).into_pyobject(py)?,
            None,
        )?
        .extract()?;
        let Beside {
            references, peers, ..
        } = scope.leave();
        let buffers = lent.iter().map(|lent| {
            let (memory, item): (Bound<'_, PyAny>, usize) = lent.extract()?;
            let may_change = match owned {
                None => false,
                Some(owned) => {
                    let shows = memory.getattr("obj")?;
                    !shows.is_exact_instance_of::<PyBytes>() && !owned.has(&shows)
                }
            };
            buffers::lend(&memory, item, may_change)
        });
        Ok(Self {
            is_call,
            buffers: buffers.collect::<PyResult<_>>()?,
            pickle: match pickle.as_bytes() {
                small if small.len() < LARGE => small.to_vec().into(),
                _ => buffers::lend_bytes(&pickle)?,
            },
            references,
            peers,
            in_context: false,
        })
    }

    /// The pickle.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.pickle
    }

    /// These bytes, and beside them what is beside another.
    pub(crate) fn with_beside_of(bytes: Vec<u8>, other: Option<Self>) -> Self {
        match other {
            Some(other) => other.with_pickle(bytes),
            None => Self {
                is_call: false,
                pickle: bytes.into(),
                buffers: Vec::new(),
                references: Vec::new(),
                peers: Vec::new(),
                in_context: false,
            },
        }
    }

    /// The same with another pickle.
    pub(crate) fn with_pickle(self, pickle: Vec<u8>) -> Self {
        Self {
            pickle: pickle.into(),
            ..self
        }
    }

    /// The object.
    pub(crate) fn unpickle(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        static LOADS: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let loads = helper(py, &LOADS, "loads")?;
        let pickle = match self.pickle.len() {
            0..LARGE => PyBytes::new(py, &self.pickle).into_any(),
            _ => Bound::new(py, Received::kept(self.pickle))?.into_any(),
        };
        let beside = Beside {
            references: self.references,
            peers: self.peers,
            in_context: self.in_context,
        };
        if self.buffers.is_empty() {
            let _scope = Scope::enter(&RECEIVING, beside);
            return user_code::call(loads, &PyTuple::new(py, [pickle])?, None);
        }
        let received = self.buffers.into_iter().map(Received::new);
        let received = PyList::new(py, received.collect::<PyResult<Vec<_>>>()?)?;
        let _scope = Scope::enter(&RECEIVING, beside);
        let args = PyTuple::new(py, [pickle, received.into_any()])?;
        user_code::call(loads, &args, None)
    }
}

impl Object {
    pub(crate) fn here(value: Bound<'_, PyAny>) -> Self {
        Self::Here(Live(Some(value.unbind())))
    }

    /// What a function has returned. If it goes back to the caller it is pickled now, as long as the interpreter is had.
    pub(crate) fn returned(value: Bound<'_, PyAny>, scope: Option<&CallScope>) -> Self {
        if scope.is_none_or(CallScope::result_stays) {
            return Self::here(value);
        }
        match Pickled::of_result(&value) {
            Ok(pickled) => Self::Pickled(pickled),
            // Told to the caller by who sends it.
            Err(error) => Self::Unsendable(errors::one_line(value.py(), &error)),
        }
    }

    /// The object, on the worker that has it.
    pub(crate) fn look<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::Here(value) => Ok(value.bind(py)),
            // A value that stays was made here, by the functions above.
            Self::Pickled(_) | Self::Unsendable(_) => Err(PyTypeError::new_err(
                "the value is no object of this process",
            )),
        }
    }

    /// The object, for who got it.
    pub(crate) fn into_python(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        match self {
            Self::Here(live) => Ok(live.bind(py)),
            Self::Pickled(pickled) => {
                let read = pickled.unpickle(py);
                read.map_err(|error| errors::unreadable(py, error, "the result of the call"))
            }
            Self::Unsendable(why) => Err(errors::exception(py, "CannotBeSent", &why)),
        }
    }
}

impl Live {
    pub(crate) fn bind<'py>(&self, py: Python<'py>) -> Bound<'py, PyAny> {
        match &self.0 {
            Some(value) => value.bind(py).clone(),
            None => py.None().into_bound(py),
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // Destructors of the program run here, where the runtime lets them run, and not whenever somebody comes by.
        thread_state::attach(|py| {
            if let Some(object) = self.0.take() {
                user_code::release(py, object);
            }
        });
        // The interpreter is gone, and the object with it.
        std::mem::forget(self.0.take());
    }
}

impl Serialize for Object {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Pickled(pickled) => pickled.serialize(serializer),
            Self::Unsendable(why) => Err(S::Error::custom(why)),
            Self::Here(value) => {
                let pickled = thread_state::attach(|py| {
                    Pickled::of(&value.bind(py)).map_err(|error| errors::one_line(py, &error))
                });
                let pickled =
                    pickled.unwrap_or_else(|| Err("its interpreter is ending".to_owned()));
                pickled.map_err(S::Error::custom)?.serialize(serializer)
            }
        }
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Pickled::deserialize(deserializer).map(Self::Pickled)
    }
}

/// What stands in a pickle for a reference: its place among those beside it.
pub(crate) fn send_reference<'py>(
    py: Python<'py>,
    rref: &RRef<Object>,
) -> PyResult<Bound<'py, PyTuple>> {
    let index = SENDING.with_borrow_mut(|stack| {
        let references = &mut stack.last_mut()?.references;
        references.push(rref.clone());
        Some(references.len() - 1)
    });
    let index = index.ok_or_else(|| not_in_a_call("an RRef"))?;
    placeholder(py, "_reference", index)
}

/// The same for a peer.
pub(crate) fn send_peer<'py>(py: Python<'py>, peer: &Peer) -> PyResult<Bound<'py, PyTuple>> {
    let index = SENDING.with_borrow_mut(|stack| {
        let peers = &mut stack.last_mut()?.peers;
        peers.push(peer.clone());
        Some(peers.len() - 1)
    });
    let index = index.ok_or_else(|| not_in_a_call("a Peer"))?;
    placeholder(py, "_peer", index)
}

fn placeholder<'py>(
    py: Python<'py>,
    function: &str,
    index: usize,
) -> PyResult<Bound<'py, PyTuple>> {
    let function = py.import("farref._core")?.getattr(function)?;
    (function, (index,)).into_pyobject(py)
}

fn not_in_a_call(what: &str) -> PyErr {
    PyValueError::new_err(format!(
        "{what} cannot be pickled by itself, only sent in the arguments or the result of a call: the worker that gets it has \
         to know who holds it"
    ))
}

/// Whether the value that is being unpickled came inside of a context.
pub(crate) fn came_in_context() -> bool {
    RECEIVING.with_borrow(|stack| stack.last().is_some_and(|beside| beside.in_context))
}

/// The reference that the pickle which is being read has at this place.
pub(crate) fn received_reference(index: usize) -> PyResult<RRef<Object>> {
    let found = RECEIVING.with_borrow(|stack| stack.last()?.references.get(index).cloned());
    found.ok_or_else(|| not_in_a_call("an RRef"))
}

/// The same for a peer.
pub(crate) fn received_peer(index: usize) -> PyResult<Peer> {
    let found = RECEIVING.with_borrow(|stack| stack.last()?.peers.get(index).cloned());
    found.ok_or_else(|| not_in_a_call("a Peer"))
}
