//! PyTorch's own wire: a farref worker in an unmodified `torch.distributed.rpc` group.

#![forbid(unsafe_code)]
#![expect(
    dead_code,
    reason = "the parts are here before what puts them together"
)]

mod nop;
mod pickle;
mod pipe;
mod transport;

pub use nop::NopError;
pub use pickle::PickleError;
pub use transport::PipeError;
