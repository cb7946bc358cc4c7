//! The messages of PyTorch's RPC, as they travel in TensorPipe's payloads.
//!
//! Payload 0 is the type of the message ([`Kind`]), payload 1 its id, payload 2 what it says ([`Message`]),
//! payload 3 the list of its tensors ([`tensors`]). Two languages are spoken in payload 2: PyTorch's C++ writes
//! pickles of its own kind ([`jit`]); what Python functions take and return is what Python pickles ([`python`]).
//!
//! | part | job |
//! | --- | --- |
//! | [`kind`] | the types of messages |
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

mod jit;
mod kind;
mod message;
mod python;
pub(crate) mod tensors;
#[cfg(test)]
mod tests;

pub(crate) use jit::{JitValue, JitWriter};
pub(crate) use kind::Kind;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use message::write_script_call;
pub(crate) use message::{Message, ScriptCall, ScriptTarget};
pub(crate) use python::{
    Named, PROXY_PARTS, RemoteException, Udf, WorkerInfo, read_rref, read_tensor, write_rref,
    write_tensor,
};

use crate::pickle::{PickleError, View};

/// Why a message is none that PyTorch sends, or none that can be used here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The peer sent something that does not read as what it should be.
    #[error("the peer's message cannot be read: {0}")]
    Pickle(#[from] PickleError),
    /// The peer sent a message of a type that PyTorch does not have.
    #[error("the peer's message has type {0:#x}, which PyTorch does not have")]
    Kind(i64),
    /// The peer sent something that has no place where it is.
    #[error("the peer's message is wrong: {what}, found {found}")]
    Wrong {
        /// What should be there.
        what: &'static str,
        /// What is there.
        found: String,
    },
    /// The peer's message is in order, but what it contains has no meaning without Python, or without PyTorch.
    #[error(
        "{0} cannot be used by a worker without Python: send plain data, tensors or references"
    )]
    Unsupported(String),
    /// An operator or a function of TorchScript's that this worker does not serve.
    #[error(
        "this worker, a Rust program, has no {0}: declare it there by #[farref::remote(python = \"{0}\")]"
    )]
    NotServed(String),
    /// A tensor that reaches beyond its bytes.
    #[error("the peer's tensor reaches beyond its {bytes} bytes")]
    OutOfBounds {
        /// How many bytes there are.
        bytes: usize,
    },
    /// A tensor that would take more memory than is allowed.
    #[error("the tensor would take more than {limit} bytes once it is spelled out")]
    TooLarge {
        /// How many bytes are allowed.
        limit: usize,
    },
}

impl RpcError {
    fn wrong(what: &'static str, found: impl ToString) -> Self {
        let found = found.to_string();
        Self::Wrong { what, found }
    }
}

/// A number that no other worker gives: who gave it, and the counter there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct GlobalId {
    /// The worker that gave it. At most `i16::MAX` on the wire.
    pub(crate) on: u16,
    /// Its counter. At most `i64::MAX` on the wire.
    pub(crate) number: u64,
}

impl GlobalId {
    pub(crate) const fn new(on: u16, number: u64) -> Self {
        Self { on, number }
    }

    fn read(view: View<'_, '_>) -> Result<Self, RpcError> {
        let [on, number] = view.tuple_of()?;
        Self::read_parts(on, number)
    }

    fn read_parts(on: View<'_, '_>, number: View<'_, '_>) -> Result<Self, RpcError> {
        Ok(Self {
            on: read_worker(on)?,
            number: read_counter(number)?,
        })
    }

    /// The counter as PyTorch writes it.
    fn counter(self) -> i64 {
        i64::try_from(self.number).unwrap_or(i64::MAX)
    }
}

/// A worker's id: PyTorch keeps it in 16 bits, with a sign.
fn read_worker(view: View<'_, '_>) -> Result<u16, RpcError> {
    let id = view.int()?;
    let id_of_worker = i16::try_from(id).ok().and_then(|id| u16::try_from(id).ok());
    id_of_worker.ok_or_else(|| RpcError::wrong("the id of a worker is 0 to 32767", id))
}

fn read_counter(view: View<'_, '_>) -> Result<u64, RpcError> {
    let number = view.int()?;
    u64::try_from(number).map_err(|_| RpcError::wrong("a counter is not negative", number))
}

/// Which tensor of the message, or how many of something.
fn read_index(view: View<'_, '_>) -> Result<usize, RpcError> {
    let number = view.int()?;
    usize::try_from(number).map_err(|_| RpcError::wrong("an index is not negative", number))
}

/// A text that is one.
fn read_str<'a>(view: View<'_, 'a>) -> Result<&'a str, RpcError> {
    utf8(view.text()?)
}

fn utf8(bytes: &[u8]) -> Result<&str, RpcError> {
    std::str::from_utf8(bytes)
        .map_err(|_| RpcError::wrong("a name is UTF-8", format!("{} bytes", bytes.len())))
}

/// A reference to a value on its way to another worker.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Fork {
    /// The worker that has the value.
    pub(crate) owner: u16,
    /// Which value.
    pub(crate) rref: GlobalId,
    /// Which of the references to it. The receiver's, from now on.
    pub(crate) fork: GlobalId,
    /// The worker that sends it.
    pub(crate) parent: u16,
    /// The type of the value in TorchScript's words, or `PyObject`. To be passed on as it is.
    pub(crate) type_name: String,
}

impl Fork {
    /// Reads the seven items that stand for a reference in both languages.
    pub(crate) fn read(items: &[View<'_, '_>]) -> Result<Self, RpcError> {
        let [owner, rref_on, rref, fork_on, fork, parent, type_name] = items else {
            return Err(RpcError::wrong("a reference has seven parts", items.len()));
        };
        Ok(Self {
            owner: read_worker(*owner)?,
            rref: GlobalId::read_parts(*rref_on, *rref)?,
            fork: GlobalId::read_parts(*fork_on, *fork)?,
            parent: read_worker(*parent)?,
            type_name: read_str(*type_name)?.to_owned(),
        })
    }

    /// The numbers among the seven items.
    fn numbers(&self) -> [i64; 6] {
        [
            self.owner.into(),
            self.rref.on.into(),
            self.rref.counter(),
            self.fork.on.into(),
            self.fork.counter(),
            self.parent.into(),
        ]
    }
}
