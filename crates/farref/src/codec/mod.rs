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

/// Bodies of up to this size are copied when they have to be kept. Larger ones have a buffer of their
/// own.
const SMALL_BODY: usize = 32 << 10;

/// An encoded value: its body, and the buffers that travel beside it.
///
/// ```
/// use farref::{Part, Payload};
///
/// // As an agent makes it of what it has read from its wire.
/// let payload = Payload {
///     body: vec![1, 2, 3].into(),
///     parts: vec![Part::from(bytes::Bytes::from_static(b"large"))],
/// };
/// assert_eq!((payload.len(), payload.is_empty()), (8, false));
/// assert!(Payload::default().is_empty());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Payload {
    /// What the codec wrote.
    pub body: Bytes,
    /// Buffers sent out of band, in the order in which the body refers to them.
    pub parts: Vec<Part>,
}

impl Payload {
    /// Whether it has buffers whose destructors may be the program's.
    pub(crate) fn has_programs_buffers(&self) -> bool {
        self.parts.iter().any(Part::is_programs)
    }

    /// How many bytes it has in all.
    ///
    /// ```
    /// use farref::{Part, Payload};
    ///
    /// /// What an agent with frames of limited size might ask.
    /// fn fits(payload: &Payload, most: usize) -> bool {
    ///     payload.len() <= most
    /// }
    ///
    /// let parts = vec![Part::from(bytes::Bytes::from(vec![0; 1000]))];
    /// let payload = Payload { body: vec![0; 30].into(), parts };
    /// assert!(fits(&payload, 1030));
    /// assert!(!fits(&payload, 1029));
    /// ```
    pub fn len(&self) -> usize {
        let parts = self.parts.iter().map(Part::len);
        parts.fold(self.body.len(), usize::saturating_add)
    }

    /// The same in memory of its own, if it is small: a small body may be a slice of a far larger buffer
    /// that many messages came in, and would keep all of that.
    pub(crate) fn detached(mut self) -> Self {
        if self.body.len() <= SMALL_BODY {
            self.body = Bytes::copy_from_slice(&self.body);
        }
        self
    }

    /// Whether there is nothing in it.
    ///
    /// ```
    /// use farref::Payload;
    ///
    /// // Arguments of a function that has none.
    /// assert!(Payload::default().is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How values are written on a wire.
///
/// An [`Agent`](crate::agent::Agent) says which one its wire has.
///
/// ```
/// use std::sync::Arc;
///
/// use farref::{Codec, CodecError, ValueCodec};
///
/// struct Json;
///
/// impl ValueCodec for Json {
/// #    fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
/// #        serde_json::to_vec(value).map_err(CodecError::new)
/// #    }
/// #    fn decode(
/// #        &self,
/// #        body: &[u8],
/// #        read: &mut dyn FnMut(
/// #            &mut dyn erased_serde::Deserializer<'_>,
/// #        ) -> Result<(), erased_serde::Error>,
/// #    ) -> Result<(), CodecError> {
/// #        let mut json = serde_json::Deserializer::from_slice(body);
/// #        read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json)).map_err(CodecError::new)
/// #    }
///     // As at `ValueCodec`.
/// }
///
/// let foreign = Codec::Custom(Arc::new(Json));
/// assert!(matches!(foreign, Codec::Custom(_)));
/// assert!(matches!(Codec::default(), Codec::Postcard));
/// ```
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
///
/// ```
/// use farref::{CodecError, ValueCodec};
///
/// struct Json;
///
/// impl ValueCodec for Json {
///     fn encode(&self, value: &dyn erased_serde::Serialize) -> Result<Vec<u8>, CodecError> {
///         serde_json::to_vec(value).map_err(CodecError::new)
///     }
///
///     fn decode(
///         &self,
///         body: &[u8],
///         read: &mut dyn FnMut(
///             &mut dyn erased_serde::Deserializer<'_>,
///         ) -> Result<(), erased_serde::Error>,
///     ) -> Result<(), CodecError> {
///         let mut json = serde_json::Deserializer::from_slice(body);
///         read(&mut <dyn erased_serde::Deserializer<'_>>::erase(&mut json)).map_err(CodecError::new)
///     }
/// }
///
/// let body = Json.encode(&("far", 7))?;
/// assert_eq!(body, br#"["far",7]"#);
///
/// // The runtime brings `read`, which knows the type.
/// let mut value: Option<(String, u32)> = None;
/// Json.decode(&body, &mut |json| {
///     value = Some(erased_serde::deserialize(json)?);
///     Ok(())
/// })?;
/// assert_eq!(value, Some(("far".to_owned(), 7)));
/// # Ok::<(), CodecError>(())
/// ```
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
///
/// ```
/// use farref::{Buffer, CodecError};
///
/// let odd = Buffer::from_vec(vec![1_u8, 2, 3]);
/// let error: CodecError = odd.into_vec::<u16>().unwrap_err();
/// assert_eq!(error.to_string(), "3 bytes are no whole number of elements of 2 bytes");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CodecError {
    message: String,
}

impl CodecError {
    /// An error with this message.
    ///
    /// ```
    /// use farref::CodecError;
    ///
    /// // Of whatever error a foreign encoding has.
    /// fn read(text: &str) -> Result<u32, CodecError> {
    ///     text.parse().map_err(CodecError::new)
    /// }
    ///
    /// assert_eq!(read("7"), Ok(7));
    /// assert_eq!(read("x"), Err(CodecError::new("invalid digit found in string")));
    /// ```
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
