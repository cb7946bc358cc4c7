//! PyTorch's own wire: a farref worker in an unmodified `torch.distributed.rpc` group.
//!
//! The group's other workers are Python processes that import torch and know nothing of this. They call functions of
//! the Rust program by the names that they have in Python, hold references to its values, and have theirs held and
//! called by it. References, their counting and distributed autograd are PyTorch's protocol, message by message; so
//! is the way in and out.
//!
//! ```python
//! # The Python side, as it was before there was a Rust worker.
//! import torch.distributed.rpc as rpc
//! import features                   # has a function `lookup`, which the Rust worker serves under that name
//!
//! rpc.init_rpc("worker0", rank=0, world_size=2)
//! rpc.rpc_sync("rust", features.lookup, args=(["far", "wide"],))
//! ```
//!
//! ```no_run
//! use farref_torch::{TorchGroup, py_call};
//!
//! #[farref::remote(python = "features.lookup")]
//! async fn lookup(names: Vec<String>) -> Vec<f64> {
//!     names.iter().map(|name| name.len() as f64).collect()
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let worker = TorchGroup::new("rust").master("127.0.0.1", 29500).rank(1).world_size(2).join().await?;
//! let root: f64 = py_call(&worker.peer("worker0")?, "math.sqrt", (2.0,)).await?;
//! worker.serve().await?; // until Python's `rpc.shutdown()`
//! # Ok(())
//! # }
//! ```
//!
//! # What is what
//!
//! | Rust | Python |
//! | --- | --- |
//! | [`TorchGroup::join`], [`Worker::shutdown`](farref::Worker::shutdown), [`Worker::serve`](farref::Worker::serve) | `rpc.init_rpc`, `rpc.shutdown` |
//! | `#[farref::remote(python = "module.function")]` | `rpc_sync(worker, module.function, ..)` finds it |
//! | `#[farref::remote(python = "module.Class")]` on an `impl` block | `remote(worker, module.Class, ..)`, `rref.rpc_sync().method(..)` |
//! | [`py_call`], [`PyCall`], [`py_remote`], [`py_method`] | functions, classes, methods that the Rust program calls |
//! | [`RRef<T>`](farref::RRef), [`PyObject`] | `RRef` |
//! | `()`, `bool`, numbers, `String`, `Vec`, tuples, maps, structs | `None`, `bool`, `int`, `float`, `str`, `list`, `tuple`, `dict`, `dict` |
//! | [`Blob`](farref::Blob) | `bytes` |
//! | [`farref_autograd::Tensor`], [`RawTensor`] | `torch.Tensor` |
//! | [`PyValue`] | any of these |
//! | an error; [`PyException`] | `RuntimeError`; an exception of that class |
//! | [`farref_autograd::Context`], [`torch_context`] | `dist_autograd.context()` |
//! | `RRef<`[`Parameter`](farref_autograd::Parameter)`>` | what `DistributedOptimizer` steps |
//!
//! The wire has neither authentication nor encryption, and PyTorch's workers execute whatever they are sent: it is for
//! networks where all are trusted. What comes in here is read, never executed.
//!
//! `docs/torch.md` in the repository tells the rest: what is served without Python and what cannot be, how it fails, how
//! it is tested.

#![forbid(unsafe_code)]

use farref_pickle::pickle;

mod agent;
mod aten;
mod context;
mod deadline;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod gloo;
mod group;
mod join;
mod nop;
mod optim;
mod pipe;
mod python;
mod rpc;
#[cfg(test)]
mod torch_python;
mod transport;
mod value;
#[cfg(test)]
mod vectors;

pub use context::{torch_context, torch_context_id};
pub use farref_pickle::{Keywords, PickleError, PyException, Rest};
pub use gloo::GlooError;
pub use group::GroupError;
pub use join::{JoinError, TorchGroup};
pub use nop::NopError;
pub use python::{PyCall, PyObject, py_async_method, py_call, py_method, py_remote};
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
