//! Rust values as Python data on PyTorch's wire: the serde format of `farref-pickle`, with what PyTorch has besides plain
//! data.
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
//! | [`write`] | what of a value is no plain data, into a pickle |
//! | [`read`] | the same out of a pickle; where in a message's pickle the value is |
//! | [`arrivals`] | which tensors came that need gradients |
//! | [`tensor`] | tensors between both |
//! | [`python`] | Python data as a Rust enum |
//!
//! The invariants VC-1 and VC-2 are `farref-pickle`'s.

mod arrivals;
mod body;
mod python;
mod read;
mod tensor;
#[cfg(test)]
mod tests;
mod write;

use std::sync::Arc;

use farref::{CodecError, ValueCodec};

pub(crate) use arrivals::Arrivals;
pub(crate) use body::{Body, Form, Received, Replacement, TensorData, TensorEntry};
pub(crate) use farref_pickle::value::{TOO_LARGE, split_name};
pub use python::PyValue;
pub(crate) use python::{UDF, UDF_ASYNC, UdfCall};
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
