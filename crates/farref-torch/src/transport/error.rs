//! What goes wrong with pipes, and whose fault it is.

use std::io;
use std::time::Duration;

use crate::nop::NopError;

/// Why there is no pipe, or no message on it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PipeError {
    /// The address is none: whoever published or configured it is to correct it.
    #[error("{address:?} is not an address: uv://ip:port is expected")]
    Address {
        /// What is there instead of an address.
        address: String,
    },
    /// This worker cannot listen there: another address or port is to be chosen.
    #[error("cannot listen on {address}: {error}")]
    Bind {
        /// Where it was tried.
        address: String,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// Nobody answers there: the peer is not running, or the network is in between.
    #[error("cannot connect to {address}: {error}")]
    Unreachable {
        /// Where it was tried.
        address: String,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// The peer took too long to set up a pipe.
    #[error("the pipe was not set up within {0:?}: the peer, or the network, is too slow")]
    Deadline(Duration),
    /// The peer closed a connection in the middle of something.
    #[error("the peer closed the connection {0}")]
    Closed(&'static str),
    /// A connection broke.
    #[error("the connection broke {doing}: {error}")]
    Broken {
        /// What was going on.
        doing: &'static str,
        /// What the system says.
        #[source]
        error: io::Error,
    },
    /// The peer sent an object that TensorPipe does not send.
    #[error("the peer sent {what} that is none: {error}")]
    Malformed {
        /// What it should be.
        what: &'static str,
        /// Why it is not.
        #[source]
        error: NopError,
    },
    /// The peer has no transport or channel in common with this worker, though all of PyTorch's workers do.
    #[error("the peer does not offer the transport uv and the channel basic")]
    NothingInCommon,
    /// The peer did what TensorPipe does not do.
    #[error("the peer breaks the rules of TensorPipe: {0}")]
    Rules(&'static str),
    /// The peer asked for a connection that nobody waits for.
    #[error("the peer brought a connection under the number {0}, which nobody waits for")]
    Unknown(u64),
    /// The peer sends a tensor that is not in the memory of the processor.
    #[error(
        "the peer sends a tensor of another device than the processor, which this worker cannot take"
    )]
    Device,
    /// A message of the peer is larger than this worker allows: allow more, or let the peer send less.
    #[error("the peer announces {what} of {size}, more than the limit of {limit}")]
    TooLarge {
        /// Of what there is too much.
        what: &'static str,
        /// How much.
        size: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// A message of this worker is larger than is allowed. Nothing of it was sent.
    #[error("a message of this worker has {what} of {size}, more than the limit of {limit}")]
    TooLargeToSend {
        /// Of what there is too much.
        what: &'static str,
        /// How much.
        size: u64,
        /// How much is allowed.
        limit: u64,
    },
    /// The system has no memory for what the peer sends.
    #[error("there is no memory for {0} bytes")]
    OutOfMemory(u64),
    /// A storage of this worker does not show the bytes that it has: whoever made it is at fault.
    #[error("a storage of this worker does not show its bytes")]
    Storage,
    /// An earlier message was given up halfway, so nothing can follow it.
    #[error("an earlier message was given up halfway; the pipe is of no use any more")]
    Torn,
    /// The peer has closed the pipe.
    #[error("the peer has closed the pipe")]
    Over,
    /// All pipes that are allowed are in use: allow more, or let fewer peers connect.
    #[error("there are {0} pipes already, which is the limit")]
    Full(usize),
    /// The listener has stopped.
    #[error("the listener has stopped")]
    Stopped,
}
