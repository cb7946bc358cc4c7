//! PyTorch's own wire: a farref worker in an unmodified `torch.distributed.rpc` group.

#![forbid(unsafe_code)]
#![expect(
    dead_code,
    unused_imports,
    reason = "the parts are here before what puts them together"
)]

mod gloo;
mod group;
mod nop;
mod pickle;
mod pipe;

pub use gloo::GlooError;
pub use group::GroupError;
pub use nop::NopError;
pub use pickle::PickleError;

/// Entry points for the fuzzers in `fuzz/`. Each takes any bytes at all and must neither panic nor hang.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    /// What a rank of Gloo publishes and sends.
    pub fn gloo(data: &[u8]) {
        crate::gloo::fuzz(data);
    }

    /// What members of a group put into the store, and tell each other before RPC is up.
    pub fn group(data: &[u8]) {
        crate::group::fuzz(data);
    }
}
