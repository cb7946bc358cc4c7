//! Farref's own wire: sessions over TCP, Unix sockets and pipes within the process.
//!
//! From the top to the bottom; what is above uses what is below, and never the other way:
//!
//! | part | job |
//! | --- | --- |
//! | [`agent`] | the [`Agent`](crate::agent::Agent) that the runtime talks to |
//! | [`accept`] | listening, and the acceptor's end of handshakes |
//! | [`starvation`] | reading and writing for a program that keeps its runtime from it |
//! | [`link`] | one peer: session, queue, present connection; dialing, sending, receiving; the table of all links |
//! | [`inquiry`] | questions that need no session: what a worker does, whether an earlier life is still there |
//! | [`endpoint`] | what all links share: configuration, what it asks of its worker, clock, tasks, counters |
//! | [`handshake`] | what is said first on each stream |
//! | [`frame`] | messages as bytes |
//! | [`transport`] | what carries the bytes: TCP, Unix sockets, pipes within the process |
//!
//! A message goes from the runtime into a session's queue ([`Agent::enqueue`]); [`Agent::flush`]
//! writes it to the socket from the calling thread. The peer's reader task parses it out of its buffer and
//! delivers it to the runtime ([`Inbound::receive`]). No task is woken on the way but the reader.
//!
//! Streams are read and written on the program's runtime. All else (accepting, dialing, handshakes, the timer,
//! reading and writing for starved tasks) runs on the [I/O thread](crate::support::io_thread), which no program can keep from running.
//!
//! [`Agent::enqueue`]: crate::agent::Agent::enqueue
//! [`Agent::flush`]: crate::agent::Agent::flush
//! [`Inbound::receive`]: crate::agent::Inbound::receive

mod accept;
mod agent;
mod endpoint;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod handshake;
mod inquiry;
mod link;
mod starvation;
#[cfg(test)]
mod tests;
mod transport;

pub(crate) use agent::NativeAgent;
pub(crate) use endpoint::{Identity, NativeConfig, WireCallbacks};
pub(crate) use handshake::{Rejection, VERSION as WIRE_VERSION};
pub(crate) use inquiry::{ObserverConnection, ObserverConnectionError, Predecessors};
pub(crate) use transport::{BindOptions, Bound};
pub use transport::{MemoryNetwork, Tls};
