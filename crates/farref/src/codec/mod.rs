//! How values become bytes and come back, with references and large buffers beside them.
//!
//! A [`Codec`] is a property of the wire. Another agent may bring its own through [`ValueCodec`]. Farref's
//! own has two forms, and the first two bytes of a body say which one it has:
//!
//! - the compact one, which is postcard: no names, no types, only values. The two bytes are a hash by
//!   which the reader notices a type that does not write all the fields it reads ([`count`]). A value that
//!   takes no bytes has no bytes before it either.
//! - the [`described`] one, for whatever else serde can write.
//!
//! Which one it is decides the sender: described is what reads whatever comes (known from the tracing of
//! its type, [`fingerprint`](crate::fingerprint)) and what turns out not to be compact while it is
//! written.
//! References ([`RRef`](crate::RRef)) and large buffers
//! ([`Blob`](crate::Blob), [`Buffer`](crate::Buffer)) do not go through the codec: while a value is being
//! written or read, a [`scope`] collects or provides them, and the codec sees their index only.

mod blob;
mod buffer;
mod count;
mod depth;
mod described;
mod elements;
mod fault;
#[cfg(test)]
mod limits_tests;
mod part;
mod reader;
pub(crate) mod scope;
#[cfg(test)]
mod serde_tests;
mod writer;

use std::any::TypeId;
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
use writer::Writer;

use crate::fingerprint;

/// What a body in the described form begins with. One in the compact form has the hash of its numbers of
/// fields there.
const DESCRIBED: [u8; 2] = [0xff; 2];

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
    /// Farref's own: postcard for what that can carry, and with names and types for what it cannot.
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
    pub(crate) fn encode<T: Serialize + 'static>(&self, value: &T) -> Result<Vec<u8>, CodecError> {
        match self {
            Self::Postcard if fingerprint::reads_any(TypeId::of::<T>()) => write_described(value),
            Self::Postcard => write_compact(value),
            Self::Custom(codec) => codec.encode(value),
        }
    }

    /// Reads a value. References and large buffers in it come from the scope of this thread.
    pub(crate) fn decode<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, CodecError> {
        match self {
            Self::Postcard => match body.split_first_chunk() {
                Some((&DESCRIBED, body)) => read_described(body),
                Some((counts, body)) => read_compact(Some(*counts), body),
                None if body.is_empty() => read_compact(None, body),
                None => Err(CodecError::new("its bytes end before the value begins")),
            },
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

/// Writes a value in the compact form if that can carry it.
fn write_compact<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut writer = Writer::new(vec![0; DESCRIBED.len()]);
    if let Err(fault) = value.serialize(&mut writer) {
        if fault.is_not_compact() {
            scope::start_over();
            return write_described(value);
        }
        return Err(CodecError::new(fault));
    }
    let (mut body, counts) = writer.finish();
    match body.split_first_chunk_mut() {
        Some((_, [])) => body.clear(),
        Some((start, _)) => *start = counts.bytes(),
        None => {}
    }
    Ok(body)
}

fn write_described<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut writer = described::Writer::new(DESCRIBED.to_vec());
    value.serialize(&mut writer).map_err(CodecError::new)?;
    Ok(writer.finish())
}

fn read_compact<T: DeserializeOwned>(
    counts: Option<[u8; 2]>,
    body: &[u8],
) -> Result<T, CodecError> {
    let mut reader = Reader::new(body);
    let value = T::deserialize(&mut reader).map_err(CodecError::new)?;
    let (rest, read) = reader.finish().map_err(CodecError::new)?;
    if counts.is_some_and(|counts| counts != read.bytes()) {
        return Err(CodecError::new(
            "it is read with other fields than it is written with: `#[serde(skip_serializing)]` needs \
             `skip_deserializing` as well, and a tuple cannot leave out elements",
        ));
    }
    nothing_left(rest)?;
    Ok(value)
}

fn read_described<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    let mut reader = described::Reader::new(body);
    let value = T::deserialize(&mut reader).map_err(CodecError::new)?;
    nothing_left(reader.finish().map_err(CodecError::new)?)?;
    Ok(value)
}

fn nothing_left(rest: &[u8]) -> Result<(), CodecError> {
    match rest.len() {
        0 => Ok(()),
        left => Err(CodecError::new(format_args!(
            "{left} bytes are left over: it is not read as it was written"
        ))),
    }
}
