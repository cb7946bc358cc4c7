//! TensorPipe over TCP: listeners, pipes, whole messages.
//!
//! | part | job |
//! | --- | --- |
//! | [`listen`] | takes connections in and makes pipes of them |
//! | [`connect`](mod@connect) | makes a pipe to a listener |
//! | [`handshake`] | the objects that both exchange before messages flow |
//! | [`send`] | messages on their way out |
//! | [`frame_writer`] | what is to be written to one connection, and how far that has got |
//! | [`receive`] | messages on their way in |
//! | [`frame_reader`] | frames of one connection |
//! | [`storage`] | memory that fills with the bytes of a tensor |
//! | [`cma`] | tensors through memory |
//! | [`cma_domain`](mod@cma_domain) | which processes can read each other's memory |
//! | [`peer_process`] | the process at the other end of a connection |
//! | [`message`] | what a message is, before and after |
//! | [`limits`], [`error`] | how much a peer may ask for; what goes wrong |
//! | [`shared`] | what the two halves of a pipe have in common |
//!
//! A pipe carries messages both ways, so it has a sender and a receiver at both ends. It consists of three
//! connections: descriptors and payloads travel on the first, nothing on the second, the bytes of tensors on
//! the third. Within a host it may have four: the third says where in its memory the sender has a tensor, and the fourth when
//! the receiver has read it there. Every write is a frame: its length in eight bytes, little endian, then its bytes.
//!
//! # Invariants
//!
//! - **TR-1** What is written is what TensorPipe writes: four payloads per message, those without bytes as
//!   frames without bytes, tensors without bytes not at all.
//! - **TR-2** Memory grows with the bytes that have come. A length that a peer claims is checked against
//!   [`Limits`], and never allocated beyond [`storage`]'s first step because of the claim alone. (What is read out of a
//!   peer's memory has come when it is read. It costs that peer little to have much of it, so there the limits are all.)
//! - **TR-3** The messages of one pipe are delivered in the order of their descriptors. No pipe waits for
//!   another.
//! - **TR-4** The first and the third connection are written at the same time: a peer that reads only one
//!   of them for a while gets all that is on that one.
//! - **TR-5** Nothing is locked while waiting: the bytes of a storage are looked at for the time of one write,
//!   and only when the socket has room. Those that are read through memory are not locked at all; those among them that may
//!   move are copied.
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
//! - **TR-12** Memory is read only of a process that has the other end of the connection on which it says where, within this
//!   host and made by the same user, whatever it says of itself. Where that may take long, it holds up nobody else.
//! - **TR-13** What a peer was told to read stays where it is until the peer has read it. If it is not to be read after all, the
//!   connection is shut down first; and what was read counts only if it was not shut down by then.

mod cma;
#[cfg(target_os = "linux")]
mod cma_domain;
#[cfg(not(target_os = "linux"))]
mod cma_elsewhere;
mod connect;
mod error;
mod frame_reader;
mod frame_writer;
mod handshake;
mod limits;
mod listen;
mod message;
#[cfg(target_os = "linux")]
mod peer_process;
mod receive;
mod send;
mod shared;
mod storage;
#[cfg(test)]
mod tests;

#[cfg(target_os = "linux")]
pub(crate) use cma_domain::cma_domain;
#[cfg(not(target_os = "linux"))]
pub(crate) use cma_elsewhere::cma_domain;
pub(crate) use connect::{connect, probe};
pub use error::PipeError;
pub(crate) use frame_writer::COPY_LIMIT;
pub(crate) use limits::Limits;
pub(crate) use listen::Listener;
pub(crate) use message::{Incoming, Lent, Outgoing, Size, StorageBytes};
pub(crate) use receive::PipeReceiver;
pub(crate) use send::PipeSender;
pub(crate) use shared::Traffic;
pub(crate) use storage::Storage;

#[cfg(not(target_os = "linux"))]
use cma_elsewhere::PeerProcess;
#[cfg(target_os = "linux")]
use peer_process::PeerProcess;
