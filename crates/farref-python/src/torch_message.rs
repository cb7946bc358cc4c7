//! Messages of PyTorch's layer: what it has pickled goes as it is ([`TorchMessage`]).
//!
//! PyTorch pickles calls and answers itself, and keeps tensors and references out of the pickle. Those go beside it: small tensors
//! as they are ([`torch_tensors`](crate::torch_tensors)), everything else as a pickle of farref's. So most messages are pickled once.

use farref_pickle::small_tensors;
pub(crate) use farref_pickle::torch_message::Grad;
use farref_pickle::torch_message::TorchMessage;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::objects::{Object, Pickled};
use crate::torch_tensors;

/// A message that is going to be sent.
pub(crate) struct Leaving<'a, 'py> {
    pub(crate) sender: u32,
    pub(crate) pickle: &'a [u8],
    /// Tensors and references.
    pub(crate) beside: Option<Bound<'py, PyAny>>,
    pub(crate) grad: Option<Grad>,
}

impl Leaving<'_, '_> {
    pub(crate) fn into_pickled(self) -> PyResult<Pickled> {
        let tensors = self.beside.as_ref().and_then(torch_tensors::write);
        let beside = match (&self.beside, &tensors) {
            (Some(beside), None) => Some(Pickled::of(beside)?),
            _ => None,
        };
        let message = TorchMessage {
            sender: self.sender,
            grad: self.grad,
            beside: tensors
                .as_deref()
                .or_else(|| beside.as_ref().map(Pickled::bytes)),
            pickle: self.pickle,
        };
        let too_much = || PyValueError::new_err("too much beside a message: send less at once");
        let bytes = message.write().ok_or_else(too_much)?;
        Ok(Pickled::with_beside_of(bytes, beside))
    }
}

/// What `farref.torch._calls` has made of an answer: the pickle, what is beside it, what autograd says.
pub(crate) fn answer(message: &Bound<'_, PyAny>) -> PyResult<Object> {
    let (pickle, beside, grad): (Bound<'_, PyBytes>, Option<Bound<'_, PyAny>>, Option<Grad>) =
        message.extract()?;
    let leaving = Leaving {
        sender: 0,
        pickle: pickle.as_bytes(),
        beside,
        grad,
    };
    leaving.into_pickled().map(Object::Pickled)
}

/// A message that has come: the pickle, what is beside it, what autograd says, and who sends it.
pub(crate) fn arrived(py: Python<'_>, message: Pickled) -> PyResult<Bound<'_, PyTuple>> {
    let read = TorchMessage::read(message.bytes()).ok_or_else(unknown)?;
    let pickle = PyBytes::new(py, read.pickle);
    let (grad, sender) = (read.grad, read.sender);
    let beside = match read.beside {
        Some(beside) if small_tensors::are_these(beside) => {
            let tensors = small_tensors::read(beside).ok_or_else(unknown)?;
            Some(torch_tensors::into_python(py, tensors)?.into_any())
        }
        Some(beside) => {
            let beside = beside.to_vec();
            Some(message.with_pickle(beside).unpickle(py)?)
        }
        None => None,
    };
    (pickle, beside, grad, sender).into_pyobject(py)
}

/// The pickle of a message that has come.
pub(crate) fn pickle_of<'py>(py: Python<'py>, message: &Pickled) -> PyResult<Bound<'py, PyBytes>> {
    let read = TorchMessage::read(message.bytes()).ok_or_else(unknown)?;
    Ok(PyBytes::new(py, read.pickle))
}

fn unknown() -> PyErr {
    PyValueError::new_err("a message of another worker is no message of PyTorch's layer")
}
