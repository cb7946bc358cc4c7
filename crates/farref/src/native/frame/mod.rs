//! What travels on a stream after the handshake.
//!
//! | bytes | what |
//! | --- | --- |
//! | 4 | length of the head, little endian like all of these |
//! | 4 | number of parts |
//! | 8 | length of the body |
//! | head | [`FrameHead`](head::FrameHead), and after it, if that is data, [`MessageHead`](message_head::MessageHead): both in postcard |
//! | 8 for each part | its length, and above it in the highest four bits how wide its elements are, and where it is |
//! | body | what the codec wrote |
//! | parts | one after the other; of one that is to be read out of the sender's memory, its address there; of one that is in a region, nothing |
//!
//! # Invariants
//!
//! - **FR-1** Every length is checked against its limit before anything is allocated for it.
//! - **FR-2** Memory is used in proportion to what has been received, not to what was announced: at
//!   most a few times the heads, and the payload once. Address space that is reserved and not
//!   touched may be [`RESERVE_AHEAD`] times what has been received and a constant. What is read out of
//!   the peer's memory counts as received; it costs the peer nothing but to have it, so only the limit on
//!   messages bounds that. Memory is handed out in pages, of 2 MiB where the system has such for a large
//!   piece. What is in a region is the peer's, and read where it is.
//! - **FR-3** No input makes the decoder panic, and what it says does not depend on how the input was
//!   split.
//! - **FR-4** Large pieces are copied neither on the way out nor, but for what came in the same read
//!   as their head, on the way in.
//! - **FR-5** A part is read out of the peer's memory, or taken as a region, only where the peer was told that it may say
//!   so. On all other streams a part that is said to be there is a fault of the peer's.
//! - **FR-6** For each part that is in a region one descriptor has come with the frame, in the order of the parts, and no
//!   others come. What is not sealed memory of that length, all of it there, is a fault of the peer's.
//! - **FR-7** A payload that is larger than this worker takes, or that there is no memory for, is passed over as it comes.
//!   Its message arrives, and whoever reads it is told why: only its call fails, and what follows it is as good as ever.
//!
//! [`RESERVE_AHEAD`]: filling::RESERVE_AHEAD

mod batch;
mod decode;
mod error;
mod filling;
mod head;
mod limits;
mod message_head;
mod packet;
mod plain;
mod received;
mod recycle;
#[cfg(test)]
mod tests;
mod varint;

pub(super) use batch::{Batch, UserCodeBarred, large_regions};
pub(super) use decode::{DecodedFrame, Decoder, NamedPiece, PieceSource};
pub(super) use error::FrameError;
pub(super) use filling::{Filling, Space};
pub(super) use head::MemoryFrame;
pub(super) use limits::Limits;
pub(super) use packet::Packet;
pub(super) use received::ReceivedMessage;
pub(super) use recycle::Recycler;
