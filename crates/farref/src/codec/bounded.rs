//! Writing a value that must not be large: it ends at the limit, and not when all of it has been written.

use std::any::TypeId;

use postcard::ser_flavors::Flavor;
use serde::Serialize;

use super::error::CodecError;
use super::fault::Fault;
use super::forms::{Codec, write_described_at_most};
use crate::fingerprint;

impl Codec {
    /// Writes a value in farref's own codec, outside of any scope, as [`encode`](Self::encode) does. None if it takes
    /// more than `most` bytes, for the most part: names and tags do not count where it would fit without.
    pub(crate) fn encode_at_most<T: Serialize + 'static>(
        value: &T,
        most: usize,
    ) -> Result<Option<Vec<u8>>, CodecError> {
        if !fingerprint::reads_any(TypeId::of::<T>()) {
            match postcard::serialize_with_flavor(value, Room(most)) {
                Ok(()) => return Self::Postcard.encode(value).map(Some),
                Err(postcard::Error::SerializeBufferFull) => return Ok(None),
                // It has no length beforehand, or it says what is the matter.
                Err(_) => {}
            }
        }
        match write_described_at_most(value, most) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(fault) if fault.is_full() => Ok(None),
            Err(fault) => Err(CodecError::new(fault)),
        }
    }
}

/// Writes nothing, and says when there is no more room.
struct Room(usize);

impl Flavor for Room {
    type Output = ();

    fn try_push(&mut self, _: u8) -> postcard::Result<()> {
        self.try_extend(&[0])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or(postcard::Error::SerializeBufferFull)?;
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Bytes, up to so many.
pub(super) struct Bounded<'b> {
    pub(super) bytes: &'b mut Vec<u8>,
    pub(super) most: usize,
}

impl Flavor for Bounded<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() > self.most.saturating_sub(self.bytes.len()) {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl Fault {
    /// Whether there was no room for it.
    fn is_full(&self) -> bool {
        matches!(self.postcard(), Some(postcard::Error::SerializeBufferFull))
    }
}
