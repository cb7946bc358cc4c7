//! What precedes a message's own bytes: the prefix, what the ends of a link say to each other, and the
//! table of parts.
//!
//! An entry of the table says how long a part is, how wide its elements are, and where it is: the highest two bits are
//! the width, as a power of two; the next two are 0 if the part's bytes are in the stream, 1 if the eight bytes there are
//! their address in the sender's memory, and 2 if nothing is there and they are in a region whose descriptor came with the
//! frame; the others are the length in bytes. No limit on messages comes near them.

use farref_proto::Frame;
use serde::{Deserialize, Serialize};

use crate::codec::Width;
use crate::native::transport::MemoryClaim;

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
    /// Something about the sender's memory, or the receiver's.
    Memory(MemoryFrame),
}

/// What the ends of a stream say about each other's memory. Each direction is on its own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum MemoryFrame {
    /// The sender's memory may be read, and this is how to know that it is the sender's.
    Offer(MemoryClaim),
    /// It was found to be as the receiver of this has claimed: large parts need not be sent, only their addresses.
    MayName,
    /// It is not read, at least for now: large parts are sent.
    Declined,
    /// The sender of this is still reading a part that it was given the address of.
    Reading,
    /// The sender of this takes descriptors of regions: parts that are in one need not be sent.
    TakesRegions,
}

/// Where the bytes of a part are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the stream.
    Inline,
    /// In the sender's memory; the stream has their address.
    Named,
    /// In a region, whose descriptor comes with the first byte of the frame.
    Region,
}

/// How many bytes an address has in the stream.
pub(super) const ADDRESS: usize = size_of::<u64>();

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

/// Where the width begins, and where the place does.
const WIDTH: u32 = 62;
const PLACE: u32 = 60;

/// The entry of a part.
pub(super) fn part_entry(length: usize, width: Width, place: Place) -> u64 {
    let place = match place {
        Place::Inline => 0,
        Place::Named => 1,
        Place::Region => 2,
    };
    length as u64 | place << PLACE | u64::from(width.log2()) << WIDTH
}

/// The length, the width and the place that an entry says. None is a place that nobody knows.
pub(super) fn read_part_entry(entry: u64) -> (u64, Width, Option<Place>) {
    let width = match entry >> WIDTH {
        0 => Width::One,
        1 => Width::Two,
        2 => Width::Four,
        _ => Width::Eight,
    };
    let place = match entry >> PLACE & 0b11 {
        0 => Some(Place::Inline),
        1 => Some(Place::Named),
        2 => Some(Place::Region),
        _ => None,
    };
    (entry & !(u64::MAX << PLACE), width, place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_what_was_written() {
        for width in [Width::One, Width::Two, Width::Four, Width::Eight] {
            for length in [0, 8, 1 << 40] {
                for place in [Place::Inline, Place::Named, Place::Region] {
                    assert_eq!(
                        read_part_entry(part_entry(length, width, place)),
                        (length as u64, width, Some(place))
                    );
                }
            }
        }
        assert_eq!(
            part_entry(5, Width::One, Place::Inline),
            5,
            "bytes are what they always were"
        );
        let unknown = 5 | 3 << PLACE;
        assert_eq!(read_part_entry(unknown), (5, Width::One, None));
    }
}
