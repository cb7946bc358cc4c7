//! What travels on a stream after the handshake.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | length of the head, little endian like all of these |
//! | 4 | number of parts |
//! | 8 | length of the body |
//! | head | [`Wire`], and after it, if that is data, [`Head`](packet::Head): both in postcard |
//! | 8 for each part | its length, and above it in the highest two bits how wide its elements are |
//! | body | what the codec wrote |
//! | parts | one after the other |
//!
//! # Invariants
//!
//! - **FR-1** Every length is checked against its limit before anything is allocated for it.
//! - **FR-2** Memory is used in proportion to what has been received, not to what was announced: at
//!   most a few times the heads, and the payload once. Address space that is reserved and not
//!   touched may be [`RESERVE_AHEAD`] times what has been received and a constant.
//! - **FR-3** No input makes the decoder panic, and what it says does not depend on how the input was
//!   split.
//! - **FR-4** Large pieces are copied neither on the way out nor, but for what came in the same read
//!   as their head, on the way in.
//!
//! [`RESERVE_AHEAD`]: filling::RESERVE_AHEAD

mod batch;
mod decode;
mod filling;
mod packet;
mod part_entry;
mod recycle;
#[cfg(test)]
mod tests;

use farref_proto::Frame;
use serde::{Deserialize, Serialize};

use crate::codec::Width;
pub(super) use batch::{Batch, NotHere};
pub(super) use decode::{Decoder, Limits, Space};
pub(super) use packet::{Incoming, Packet};
pub(super) use recycle::Recycler;

/// The length of what precedes the head.
const PREFIX: usize = 16;

/// The first part of a head: what the two ends of a link say to each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Wire {
    /// A frame of the session. The payload stands for the message that follows; it is how long that
    /// message has waited to be sent, in nanoseconds, if that matters.
    Session(Frame<Option<u64>>),
    /// The end that made the connection is asked to add the stream for bulk data.
    OpenBulk,
}

/// What a frame brought.
#[derive(Debug)]
pub(super) enum Received {
    /// A frame of the session.
    Session(Frame<Incoming>),
    /// The peer has bulk data to send, and no stream for it.
    OpenBulk,
}

/// What no correct peer sends. The connection is of no use any more.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum FrameError {
    #[error("peer announces a head of {length} bytes, at most {limit} are taken")]
    HeadTooLarge { length: u32, limit: u32 },
    #[error("peer announces a message of {parts} parts, at most {limit} are taken")]
    TooManyParts { parts: u32, limit: u32 },
    #[error("peer announces a message of more than {limit} bytes")]
    MessageTooLarge { limit: u64 },
    #[error("peer announces a part of {length} bytes with elements of {}", width.bytes())]
    UnevenPart { length: u64, width: Width },
    #[error("peer sent a head that cannot be read: {0}")]
    BadHead(postcard::Error),
    #[error("peer sent a head with {0} bytes too many")]
    TrailingHead(usize),
    #[error("peer sent a payload where none belongs")]
    UnexpectedPayload,
    /// Not the peer's fault, and no less the end of this message.
    #[error("there is no memory for a message of {0} bytes")]
    OutOfMemory(u64),
}
