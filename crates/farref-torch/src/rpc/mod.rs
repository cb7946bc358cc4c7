//! The messages of PyTorch's RPC, as they travel in TensorPipe's payloads.
//!
//! Payload 0 is the type of the message ([`Kind`]), payload 1 its id, payload 2 what it says ([`Message`]),
//! payload 3 the list of its tensors ([`tensors`]). Two languages are spoken in payload 2: PyTorch's C++ writes
//! pickles of its own kind ([`jit`]); what Python functions take and return is what Python pickles ([`python`]).
//!
//! | part | job |
//! | --- | --- |
//! | [`error`] | what is wrong with a message |
//! | [`kind`] | the types of messages |
//! | [`reference`] | what both languages write of a reference |
//! | [`message`] | payload 2 of each type |
//! | [`jit`] | values the way PyTorch's C++ pickles them |
//! | [`python`] | the few objects of PyTorch's that Python pickles contain |
//! | [`tensors`] | payload 3: the tensors of a message, as views of the storages that travel beside it |
//!
//! # Invariants
//!
//! - **RM-1** What is written is what PyTorch writes with the same content, byte for byte, wherever PyTorch
//!   has no choice itself.
//! - **RM-2** Nothing that a peer sends makes a reader panic, or take more than in proportion to what was sent:
//!   readers borrow from the payload, and walk pickles with the budget of those.
//! - **RM-3** Messages in messages come to an end: what is wrapped for autograd is not wrapped itself, and what
//!   is wrapped for profiling is not profiled itself. So there are three levels at most.

mod error;
mod jit;
mod kind;
mod message;
mod python;
mod reference;
pub(crate) mod tensors;
#[cfg(test)]
mod tests;

pub use error::RpcError;
pub(crate) use jit::{JitValue, JitWriter};
pub(crate) use kind::Kind;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use message::write_script_call;
pub(crate) use message::{Message, ScriptCall, ScriptTarget};
pub(crate) use python::{
    Named, PROXY_PARTS, RemoteException, Udf, WorkerInfo, read_rref, read_tensor, write_rref,
    write_tensor,
};
pub(crate) use reference::{Fork, GlobalId};
