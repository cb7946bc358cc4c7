//! The header of every message between two ranks: six numbers of eight bytes, little endian.

use bytes::{BufMut, BytesMut};

/// How long a header is.
pub(super) const HEADER: usize = 48;

/// Kinds of collectives, as they are told apart in a slot.
pub(super) const ALL_GATHER: u8 = 2;
pub(super) const BARRIER: u8 = 7;

/// Under which number the messages of a collective go: its kind, and how many there were before it.
pub(super) const fn slot(kind: u8, tag: u32) -> u64 {
    (kind as u64) << 56 | (tag as u64) << 24
}

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Bytes follow.
    Data,
    /// The sender has something to send.
    SendReady,
    /// The sender waits for something.
    ReceiveReady,
}

/// A header. Announcements have the length of what they announce.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    pub(super) slot: u64,
    pub(super) length: u64,
}

impl Header {
    pub(super) fn encode(&self, out: &mut BytesMut) {
        let (kind, body) = match self.kind {
            Kind::Data => (1, self.length),
            Kind::SendReady => (2, 0),
            Kind::ReceiveReady => (3, 0),
        };
        // The offsets are for a kind of buffer that nobody here uses.
        let offset = 0;
        for number in [
            HEADER as u64 + body,
            kind,
            self.slot,
            offset,
            self.length,
            offset,
        ] {
            out.put_u64_le(number);
        }
    }

    pub(super) fn decode(bytes: &[u8; HEADER]) -> Result<Self, String> {
        let (numbers, _) = bytes.as_chunks::<8>();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next().unwrap_or_default();
        let (total, kind, slot, offset, length, remote_offset) =
            (next(), next(), next(), next(), next(), next());
        let (kind, body) = match kind {
            1 => (Kind::Data, length),
            2 => (Kind::SendReady, 0),
            3 => (Kind::ReceiveReady, 0),
            other => return Err(format!("message {other} is unknown")),
        };
        if body.checked_add(HEADER as u64) != Some(total) {
            return Err(format!(
                "a message of {total} bytes says that it has {body}"
            ));
        }
        if offset != 0 || remote_offset != 0 {
            return Err("a message is for the middle of a buffer".to_owned());
        }
        Ok(Self { kind, slot, length })
    }
}
