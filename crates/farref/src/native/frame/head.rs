//! What precedes a message's own bytes: the prefix, what the ends of a link say to each other, and the
//! table of parts.
//!
//! An entry of the table says how long a part is, and how wide its elements are: the highest two bits are the
//! width, as a power of two; the others are the length in bytes. No limit on messages comes near them.

use farref_proto::Frame;
use serde::{Deserialize, Serialize};

use crate::codec::Width;

/// The length of what precedes the head.
pub(super) const PREFIX: usize = 16;

/// The first part of a head: what the two ends of a link say to each other.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum FrameHead {
    /// A frame of the session. The payload stands for the message that follows; it is how long that
    /// message has waited to be sent, in nanoseconds, if that matters.
    Session(Frame<Option<u64>>),
    /// The end that made the connection is asked to add the stream for bulk data.
    OpenBulk,
}

/// The same frame with another payload.
pub(super) fn map_payload<P, Q, E>(
    frame: Frame<P>,
    map: impl FnOnce(P) -> Result<Q, E>,
) -> Result<Frame<Q>, E> {
    Ok(match frame {
        Frame::Data {
            lane,
            seq,
            acks,
            payload,
        } => Frame::Data {
            lane,
            seq,
            acks,
            payload: map(payload)?,
        },
        Frame::Ack { acks } => Frame::Ack { acks },
        Frame::Ping { generation, acks } => Frame::Ping { generation, acks },
        Frame::Pong { generation, acks } => Frame::Pong { generation, acks },
    })
}

/// Where the width begins.
const SHIFT: u32 = 62;

/// The entry of a part.
pub(super) fn part_entry(length: usize, width: Width) -> u64 {
    length as u64 | u64::from(width.log2()) << SHIFT
}

/// The length and the width that an entry says.
pub(super) fn read_part_entry(entry: u64) -> (u64, Width) {
    let width = match entry >> SHIFT {
        0 => Width::One,
        1 => Width::Two,
        2 => Width::Four,
        _ => Width::Eight,
    };
    (entry & !(u64::MAX << SHIFT), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_what_was_written() {
        for width in [Width::One, Width::Two, Width::Four, Width::Eight] {
            for length in [0, 8, 1 << 40] {
                assert_eq!(
                    read_part_entry(part_entry(length, width)),
                    (length as u64, width)
                );
            }
        }
        assert_eq!(
            part_entry(5, Width::One),
            5,
            "bytes are what they always were"
        );
    }
}
