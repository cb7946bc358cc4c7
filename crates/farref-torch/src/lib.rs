//! PyTorch's own wire: a farref worker in an unmodified `torch.distributed.rpc` group.

#![forbid(unsafe_code)]
#![allow(
    dead_code,
    unused_imports,
    reason = "the parts are here before what puts them together"
)]

mod agent;
mod context;
mod exception;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod gloo;
mod group;
mod join;
mod nop;
mod pickle;
mod pipe;
mod python;
mod rpc;
mod transport;
mod value;
#[cfg(test)]
mod vectors;

pub use context::{torch_context, torch_context_id};
pub use exception::PyException;
pub use gloo::GlooError;
pub use group::GroupError;
pub use join::{JoinError, TorchGroup};
pub use nop::NopError;
pub use pickle::PickleError;
pub use python::{PyCall, PyObject, py_call, py_method, py_remote};
pub use rpc::RpcError;
pub use rpc::tensors::Dtype;
pub use transport::PipeError;
pub use value::{PyValue, RawTensor};

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::fuzzing::{messages, objects, pickles, tensor_lists, values};

    /// What a rank of Gloo publishes and sends.
    pub fn gloo(data: &[u8]) {
        crate::gloo::fuzz(data);
    }

    /// What members of a group put into the store, and tell each other before RPC is up.
    pub fn group(data: &[u8]) {
        crate::group::fuzz(data);
    }
}
