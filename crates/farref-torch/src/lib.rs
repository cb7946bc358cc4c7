//! PyTorch's own wire: a farref worker in an unmodified `torch.distributed.rpc` group.

#![forbid(unsafe_code)]
#![allow(
    dead_code,
    unused_imports,
    reason = "the parts are here before what puts them together"
)]

#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod nop;
mod pickle;
mod pipe;
mod rpc;
mod transport;
mod value;
#[cfg(test)]
mod vectors;

pub use nop::NopError;
pub use pickle::PickleError;
pub use rpc::RpcError;
pub use rpc::tensors::Dtype;
pub use transport::PipeError;
pub use value::{PyValue, RawTensor};

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::fuzzing::{messages, objects, pickles, tensor_lists};
}
