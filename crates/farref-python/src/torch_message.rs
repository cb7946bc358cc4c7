//! Messages of PyTorch's layer: what it has pickled goes as it is ([`TorchMessage`]).
//!
//! PyTorch pickles calls and answers itself, and keeps tensors and references out of the pickle. Those go beside it, as a pickle
//! of farref's: so most messages, which have neither, are pickled once.

pub(crate) use farref_pickle::torch_message::Grad;
use farref_pickle::torch_message::TorchMessage;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};

use crate::objects::{Object, Pickled};

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
        let beside = self.beside.as_ref().map(Pickled::of).transpose()?;
        let message = TorchMessage {
            sender: self.sender,
            grad: self.grad,
            beside: beside.as_ref().map(Pickled::bytes),
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
    let read = TorchMessage::read(message.bytes()).ok_or_else(|| {
        PyValueError::new_err("a message of another worker is no message of PyTorch's layer")
    })?;
    let pickle = PyBytes::new(py, read.pickle);
    let (grad, sender) = (read.grad, read.sender);
    let beside = match read.beside.map(<[u8]>::to_vec) {
        Some(beside) => Some(message.with_pickle(beside).unpickle(py)?),
        None => None,
    };
    (pickle, beside, grad, sender).into_pyobject(py)
}
