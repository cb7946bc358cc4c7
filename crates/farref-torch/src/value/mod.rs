//! Rust values as Python data: a serde format whose bytes are pickles.
//!
//! | Rust | Python |
//! | --- | --- |
//! | `()`, `None` | `None` |
//! | `bool`, numbers, `String` | `bool`, `int`, `float`, `str` |
//! | [`Blob`](farref::Blob), bytes | `bytes` |
//! | `Vec<T>` and other sequences | `list` |
//! | tuples | `tuple` |
//! | maps | `dict` |
//! | structs | `dict` of the fields; read also from objects with such attributes, and from tuples, named or not |
//! | variants without values | their name, a `str` |
//! | other variants | a `dict` of one: the name and the value |
//! | [`farref_autograd::Tensor`], [`RawTensor`](crate::RawTensor) | `torch.Tensor` |
//! | [`RRef<T>`](farref::RRef) | `torch.distributed.rpc.RRef` |
//! | [`PyValue`](crate::PyValue) | any of these |
//!
//! Python has one `None`: `Some(None)` and `Some(())` are read back as `None`.
//!
//! | part | job |
//! | --- | --- |
//! | [`body`] | what the runtime sees of a value |
//! | [`write`] | serde to pickle |
//! | [`read`] | pickle to serde |
//! | [`captured`] | what types of the runtime write of themselves |
//! | [`tensor`] | tensors between both |
//! | [`python`] | Python data as a Rust enum |
//! | [`rest`] | `*args` and `**kwargs` |
//!
//! # Invariants
//!
//! - **VC-1** Reading takes in proportion to the bytes that came: walks of the pickle are paid for out of its
//!   budget, and how deep values nest is limited.
//! - **VC-2** A value that was written here is read here as what it was.

mod body;
mod captured;
mod python;
mod read;
mod rest;
mod tensor;
#[cfg(test)]
mod tests;
mod write;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use farref::{CodecError, ValueCodec};

pub(crate) use body::{Body, Filling, Form, Received, TensorData, TensorEntry};
pub use python::PyValue;
pub(crate) use python::{UDF, UDF_ASYNC, Udf, split_name};
pub use rest::{Keywords, Rest};
pub use tensor::RawTensor;
pub(crate) use tensor::{element_of, tensor_of};

/// What is wrong with a number that Python has and no type here.
pub(crate) const TOO_LARGE: &str = "a number of more than 64 bits";

/// A value that cannot be written for Python, or read from it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct ValueError {
    message: String,
}

impl ValueError {
    pub(crate) fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
        }
    }
}

impl serde::ser::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message)
    }
}

impl serde::de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message)
    }
}

impl From<crate::pickle::PickleError> for ValueError {
    fn from(error: crate::pickle::PickleError) -> Self {
        Self::new(error)
    }
}

impl From<crate::rpc::RpcError> for ValueError {
    fn from(error: crate::rpc::RpcError) -> Self {
        Self::new(error)
    }
}

/// What is known of the tensors that need gradients and came in messages: the shapes of all of them, and in
/// which order a program read them.
#[derive(Debug, Default)]
pub(crate) struct Arrivals(Mutex<HashMap<Received, Arrival>>);

/// The tensors of one message that need gradients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Arrival {
    /// In the order of the message's list.
    pub(crate) tensors: Vec<(crate::rpc::tensors::Dtype, Vec<usize>)>,
    /// Which of them were read, one after the other.
    pub(crate) read: Vec<usize>,
}

impl Arrivals {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Received, Arrival>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program reads one of the tensors of a message: which one it is in the order of reading. Nothing is known of
    /// messages that nobody reads, so those that are refused need not be forgotten.
    fn read(&self, received: Received, place: usize, all: &[TensorEntry]) -> Option<u32> {
        let mut arrivals = self.lock();
        let arrival = match arrivals.entry(received) {
            Entry::Occupied(known) => known.into_mut(),
            // Asked for with the lock held: a context that closes after this finds the entry.
            Entry::Vacant(vacant) if is_in_open_context() => {
                let tensors = all.iter().filter(|entry| entry.requires_grad);
                vacant.insert(Arrival {
                    tensors: tensors.map(|it| (it.dtype, it.shape.clone())).collect(),
                    read: Vec::new(),
                })
            }
            Entry::Vacant(_) => return None,
        };
        arrival.read.push(place);
        u32::try_from(arrival.read.len() - 1).ok()
    }

    pub(crate) fn get(&self, received: Received) -> Option<Arrival> {
        self.lock().get(&received).cloned()
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// The context is over.
    pub(crate) fn forget(&self, context: i64) {
        self.lock()
            .retain(|received, _| received.context != context);
    }
}

/// Whether the message that is being read was sent in a context that is not over.
fn is_in_open_context() -> bool {
    farref::context::incoming().is_some_and(|message| {
        !matches!(message.scope.check(), Err(farref::Error::ContextReleased))
    })
}

/// The encoding of values on PyTorch's wire.
#[derive(Debug, Default)]
pub(crate) struct PickleCodec {
    pub(crate) arrivals: Arc<Arrivals>,
}

impl ValueCodec for PickleCodec {
    fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
        let body = write::to_body(value).map_err(CodecError::new)?;
        body.encode().map_err(CodecError::new)
    }

    fn decode(
        &self,
        body: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecError> {
        let body = Body::decode(body).map_err(CodecError::new)?;
        read::from_body(
            &body,
            &self.arrivals,
            farref::agent::parameters(),
            |value| read(&mut <dyn erased_serde::Deserializer<'_>>::erase(value)),
        )
        .map_err(CodecError::new)
    }
}
