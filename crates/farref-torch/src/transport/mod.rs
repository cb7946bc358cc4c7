//! TensorPipe over TCP: listeners, pipes, whole messages.
//!
//! | part | job |
//! | --- | --- |
//! | [`listen`] | takes connections in and makes pipes of them |
//! | [`connect`](mod@connect) | makes a pipe to a listener |
//! | [`handshake`] | the objects that both exchange before messages flow |
//! | [`send`] | messages on their way out |
//! | [`outflow`] | what is to be written to one connection, and how far that has got |
//! | [`receive`] | messages on their way in |
//! | [`inflow`] | frames of one connection |
//! | [`storage`] | memory that fills with the bytes of a tensor |
//! | [`message`] | what a message is, before and after |
//! | [`shared`] | what the two halves of a pipe have in common |
//!
//! A pipe carries messages both ways, so it has a sender and a receiver at both ends. It consists of three
//! connections: descriptors and payloads travel on the first, nothing on the second, the bytes of tensors on
//! the third. Every write is a frame: its length in eight bytes, little endian, then its bytes.
//!
//! # Invariants
//!
//! - **TR-1** What is written is what TensorPipe writes: four payloads per message, those without bytes as
//!   frames without bytes, tensors without bytes not at all.
//! - **TR-2** Memory grows with the bytes that have come. A length that a peer claims is checked against
//!   [`Limits`], and never allocated beyond [`storage`]'s first step because of the claim alone.
//! - **TR-3** The messages of one pipe are delivered in the order of their descriptors. No pipe waits for
//!   another.
//! - **TR-4** The first and the third connection are written at the same time: a peer that reads only one
//!   of them for a while gets all that is on that one.
//! - **TR-5** Nothing is locked while waiting: the bytes of a storage are looked at for the time of one write,
//!   and only when the socket has room.
//! - **TR-6** A connection that has not greeted costs one of a bounded number of places, for a bounded time. It
//!   holds up nobody: the oldest one goes when all places are taken.
//! - **TR-7** Pipes that are set up are bounded, and so are half-open ones, apart from each other: of these the oldest
//!   goes when there are too many. All that a pipe holds is given back when it fails to be set up in time, or when
//!   both halves are dropped.
//! - **TR-8** A pipe is over when any of its connections is closed by the peer. Messages that were complete
//!   before are still delivered, and nothing is sent any more.
//! - **TR-9** A message that is given up halfway is never followed by another one on the same pipe.
//! - **TR-10** Every connection has TCP's keepalive on. It asks the other system, not the other program, so a worker that
//!   is busy or stopped is not taken for dead. While a connection has bytes under way it asks nothing; on the second
//!   connection of a pipe there never are any.
//! - **TR-11** No connection to a listener ends before its greeting, whatever becomes of the pipe: PyTorch's would stop to
//!   listen.

mod connect;
mod error;
mod handshake;
mod inflow;
mod listen;
mod message;
mod outflow;
mod receive;
mod send;
mod shared;
mod storage;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use connect::{connect, knock};
pub use error::PipeError;
pub(crate) use listen::Listener;
pub(crate) use message::{Incoming, Outgoing, Size, StorageBytes};
pub(crate) use receive::PipeReceiver;
pub(crate) use send::PipeSender;
pub(crate) use shared::Traffic;
pub(crate) use storage::Storage;

/// How much a peer may ask for. What is sent keeps to it as well.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// The most bytes of a message without its tensors, and of its list of tensors.
    pub(crate) payload: u64,
    /// The most bytes of a message, tensors included.
    pub(crate) message: u64,
    /// The most storages of a message.
    pub(crate) tensors: usize,
    /// How long setting up a pipe may take.
    pub(crate) handshake: Duration,
    /// The most pipes that members have opened at a time. So many may be half open besides.
    pub(crate) pipes: usize,
    /// The most pipes besides that belong to nobody yet.
    pub(crate) unclaimed: usize,
}

impl Limits {
    /// Whether a message of this worker may be sent: the other side would refuse what is larger, and the pipe with it.
    /// The one place where that is decided.
    pub(crate) fn judge(&self, size: &Size) -> Result<(), PipeError> {
        let within = |what, size, limit| match size <= limit {
            true => Ok(()),
            false => Err(PipeError::TooLargeToSend { what, size, limit }),
        };
        within("a payload", size.payload, self.payload)?;
        within("a list of tensors", size.tensor_list, self.payload)?;
        let (count, most) = (size.storages as u64, self.tensors as u64);
        within("a number of tensors", count, most)?;
        let own = size.payload.saturating_add(size.tensor_list);
        let total = own.saturating_add(12).saturating_add(size.storage_bytes);
        within("a size", total, self.message)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            payload: 256 << 20,
            message: 16 << 30,
            tensors: 16 << 10,
            handshake: Duration::from_secs(10),
            pipes: 1024,
            unclaimed: 256,
        }
    }
}
