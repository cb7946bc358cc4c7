//! How values become bytes and come back, with references and large buffers beside them.
//!
//! A [`Codec`] is a property of the wire. Farref's own is postcard; another agent may bring its own
//! through [`ValueCodec`]. References ([`RRef`](crate::RRef)) and large buffers
//! ([`Blob`](crate::Blob), [`Buffer`](crate::Buffer)) do not go through the codec: while a value is being
//! written or read, a [`scope`] collects or provides them, and the codec sees their index only.

mod blob;
mod buffer;
mod depth;
mod elements;
#[cfg(test)]
mod limits_tests;
mod part;
mod reader;
pub(crate) mod scope;

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

pub use blob::Blob;
pub use buffer::Buffer;
use depth::Limited;
pub(crate) use elements::Elements;
pub use elements::Width;
pub(crate) use part::{BadSource, Home, Owned, Place};
pub use part::{Part, Source};
use reader::Reader;

/// An encoded value: its body, and the buffers that travel beside it.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// What the codec wrote.
    pub body: Bytes,
    /// Buffers sent out of band, in the order in which the body refers to them.
    pub parts: Vec<Part>,
}

impl Payload {
    /// How many bytes it has in all.
    pub fn len(&self) -> usize {
        let parts = self.parts.iter().map(Part::len);
        parts.fold(self.body.len(), usize::saturating_add)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How values are written on a wire.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Codec {
    /// Farref's own: compact and not self-describing.
    #[default]
    Postcard,
    /// Somebody else's.
    Custom(Arc<dyn ValueCodec>),
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postcard => "Codec::Postcard",
            Self::Custom(_) => "Codec::Custom",
        })
    }
}

/// A foreign encoding of values.
///
/// How deep values nest is limited for every codec. How many elements a sequence has is up to this one:
/// if an element may take no bytes at all, it has to limit their number, so that no few bytes keep a
/// thread busy.
pub trait ValueCodec: Send + Sync + 'static {
    /// Writes a value.
    fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError>;

    /// Reads a value: calls `read` once with a deserializer over `body`.
    fn decode(
        &self,
        body: &[u8],
        read: &mut dyn FnMut(
            &mut dyn erased_serde::Deserializer<'_>,
        ) -> Result<(), erased_serde::Error>,
    ) -> Result<(), CodecError>;
}

/// A value that cannot be written or read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CodecError {
    message: String,
}

impl CodecError {
    /// An error with this message.
    pub fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
        }
    }
}

impl Codec {
    /// Writes a value. References and large buffers in it go to the scope of this thread.
    pub(crate) fn encode<T: Serialize>(&self, value: &T) -> Result<Vec<u8>, CodecError> {
        match self {
            Self::Postcard => postcard::to_allocvec(value).map_err(CodecError::new),
            Self::Custom(codec) => codec.encode(value),
        }
    }

    /// Reads a value. References and large buffers in it come from the scope of this thread.
    pub(crate) fn decode<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, CodecError> {
        match self {
            Self::Postcard => {
                let mut reader = Reader::new(body);
                let value = T::deserialize(&mut reader).map_err(CodecError::new)?;
                let rest = reader.finish().map_err(CodecError::new)?;
                if !rest.is_empty() {
                    return Err(CodecError::new(format_args!(
                        "{} bytes are left over",
                        rest.len()
                    )));
                }
                Ok(value)
            }
            Self::Custom(codec) => {
                let mut value = None;
                codec.decode(body, &mut |deserializer| {
                    value = Some(T::deserialize(Limited::new(deserializer))?);
                    Ok(())
                })?;
                value.ok_or_else(|| CodecError::new("the codec read nothing"))
            }
        }
    }
}
