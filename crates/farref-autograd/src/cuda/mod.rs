//! Tensors on CUDA devices, and how they travel.
//!
//! A tensor on `cuda:N` is a value like any other: an argument, a result, part of a structure, behind a reference, in a
//! context with its backward pass. It arrives on a CUDA device, by default on the one with the same number; a
//! [`DeviceMap`] says otherwise. Between two processes of one host that see the same GPU **nothing is copied**:
//! the receiver uses the memory where it is, and the sender keeps it until the receiver, or whoever that handed it
//! to, has let go of it or has died. Everywhere else the elements are copied through page-locked memory.
//!
//! ```no_run
//! use farref_autograd::{Tensor, cuda};
//! use farref_autograd::candle::{self, DType};
//!
//! #[farref::remote]
//! fn double(x: Tensor) -> Result<Tensor, farref_autograd::Error> {
//!     Ok(Tensor::from((&*x * 2.0)?)) // on the GPU, where it came from
//! }
//!
//! # async fn example(me: &farref::Worker) -> Result<(), Box<dyn std::error::Error>> {
//! let gpu = cuda::device(0)?; // tensors that others are to use without a copy are made on this
//! let peer = me.peer("worker1")?;
//! cuda::meet(me, &peer).await?; // not needed: then the first tensors are copied
//! let x = Tensor::from(candle::Tensor::ones((1024, 1024), DType::F32, &gpu)?);
//! let doubled = double::on(&peer, x).await?;
//! assert!(doubled.device().is_cuda());
//! # Ok(())
//! # }
//! ```
//!
//! # How memory is shared
//!
//! The two processes [meet](meet) first, in the background: each says which GPUs it sees and opens the other's pool of device
//! memory. A tensor then travels as the place of its memory and a far reference to it: the reference is what keeps it,
//! counts who uses it, and outlives none of them. What the sender's stream was given before is done before the receiver's
//! stream goes on; and the reference is dropped when the receiver's stream has done what it was given before the tensor was
//! dropped.
//!
//! The memory is the same on both sides: whoever changes it in place changes it for all. A tensor that comes for the second time is kept at hand for a moment after it came last, so that
//! it need not be mapped again: so long its owner keeps its memory, too.
//!
//! # Invariants
//!
//! - **CT-1** Memory that another process uses is kept until its reference is released, by that process or for it, and after that as long as
//!   the process lives and may use it.
//! - **CT-2** A reference to memory is released after the work that was given to the stream before the tensor was dropped.
//! - **CT-3** What cannot be shared is copied: nothing waits for another process, and nothing fails for want of a meeting.
//! - **CT-4** Nothing that a peer says of its memory is believed unchecked, and of what it says no more is kept than a limit.
//! - **CT-5** What is known of a peer is forgotten when that life of it is over, however the two have met.
//! - **CT-6** All threads of a process give their work on a device to one stream: so it is done in the order in which it was given, and the
//!   event of an export, or of a release, stands for all of it.
//! - **CT-7** Memory that is handed on, or comes home, is waited for as far as the one who sends it has worked on it. And a tensor is not sent on whose
//!   owner died before its work on it was seen to be done.

mod alias;
mod at_hand;
mod attempt;
mod device;
mod device_map;
mod kept;
mod meeting;
mod memory;
mod peers;
mod travel;
mod watching;

pub use device::{Options, Usage, device, is_available, usage};
pub use device_map::{DeviceMap, Target};
pub use meeting::{Path, meet};
pub use peers::map_devices;
pub(crate) use travel::{copied, leaving, shared};
