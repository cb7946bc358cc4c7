//! Tensors on a GPU between two processes that both use it: shared, as they are by default, and copied, as they are to
//! other hosts; beside an empty call, `torch.distributed.rpc`, page-locked copies and a bare socket.
//!
//! | part | job |
//! | --- | --- |
//! | `on_a_gpu`, `gpu`, `shared`, `copied` | what touches a GPU, with the feature `cuda` only |
//! | [`figures`] | what is recorded of it, and what it is held against |
//! | [`torch`] | the same with PyTorch |

#[cfg(feature = "cuda")]
mod copied;
mod figures;
#[cfg(feature = "cuda")]
mod gpu;
#[cfg(feature = "cuda")]
mod on_a_gpu;
#[cfg(feature = "cuda")]
mod shared;
mod torch;

#[cfg(feature = "cuda")]
pub(super) use on_a_gpu::measure;
