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
//! | [`error`] | what is wrong with a value |
//! | [`body`] | what the runtime sees of a value |
//! | [`write`] | serde to pickle |
//! | [`read`] | pickle to serde |
//! | [`arrivals`] | which tensors came that need gradients |
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

mod arrivals;
mod body;
mod captured;
mod error;
mod python;
mod read;
mod rest;
mod tensor;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use farref::{CodecError, ValueCodec};

pub(crate) use arrivals::Arrivals;
pub(crate) use body::{Body, Form, Received, Replacement, TensorData, TensorEntry};
pub(crate) use error::TOO_LARGE;
pub use python::PyValue;
pub(crate) use python::{UDF, UDF_ASYNC, UdfCall, split_name};
pub use rest::{Keywords, Rest};
pub use tensor::RawTensor;
pub(crate) use tensor::{element_of, tensor_of};

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
