//! The encodings of values: farref's own, in its forms, or somebody else's.

use std::any::TypeId;
use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::compact::{nothing_left, read_compact};
use super::error::CodecError;
use super::fault::Fault;
use super::foreign::{self, FOREIGN};
use super::value_codec::{ValueCodec, read_by};
use super::vectors::{Brought, Look, Outgoing, TakenOut, copy_of, each_in};
use super::writer::Writer;
use super::{described, scope};
use crate::fingerprint;
use crate::support::spare;

/// What a body in the described form begins with. One in the compact form has the hash of its numbers of
/// fields there.
pub(super) const DESCRIBED: [u8; 2] = [0xff; 2];

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
    /// Farref's own, in the form that workers read and write whose functions are written in another language.
    Foreign,
    /// Somebody else's.
    Custom(Arc<dyn ValueCodec>),
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Postcard => "Codec::Postcard",
            Self::Foreign => "Codec::Foreign",
            Self::Custom(_) => "Codec::Custom",
        })
    }
}

impl Codec {
    /// The same, for who asks in the form of another language. A foreign wire has but one.
    pub(crate) fn of_foreigners(&self) -> &Self {
        match self {
            Self::Postcard | Self::Foreign => &Self::Foreign,
            Self::Custom(_) => self,
        }
    }

    /// Writes a value. References and large buffers in it go to the scope of this thread.
    pub(crate) fn encode<T: Serialize + 'static>(&self, value: &T) -> Result<Vec<u8>, CodecError> {
        match self {
            Self::Postcard => match copy_of(value) {
                Some(mut copy) => write_without_vectors(&mut copy, each_in),
                None => write(value, &[]),
            },
            Self::Foreign => foreign::write(value),
            Self::Custom(codec) => codec.encode(value),
        }
    }

    /// Writes a value whose vectors `each` finds, and of which they may be taken.
    pub(crate) fn encode_taking<T: Serialize + 'static>(
        &self,
        value: &mut T,
        each: impl FnOnce(&mut T, Look<'_>),
    ) -> Result<Vec<u8>, CodecError> {
        match self {
            Self::Postcard => write_without_vectors(value, each),
            Self::Foreign => foreign::write(value),
            Self::Custom(codec) => codec.encode(value),
        }
    }

    /// Writes a value that may be kept, or not.
    pub(crate) fn encode_outgoing<T: Serialize + 'static>(
        &self,
        value: Outgoing<'_, T>,
    ) -> Result<Vec<u8>, CodecError> {
        match value {
            Outgoing::Kept(value) => self.encode(value),
            Outgoing::Given(value, each) => self.encode_taking(value, each),
        }
    }

    /// Reads a value. References and large buffers in it come from the scope of this thread.
    pub(crate) fn decode<T: DeserializeOwned + 'static>(
        &self,
        body: &[u8],
    ) -> Result<T, CodecError> {
        self.decode_with(body, each_in)
    }

    /// The same of one whose vectors `each` finds.
    pub(crate) fn decode_with<T: DeserializeOwned>(
        &self,
        body: &[u8],
        each: impl FnOnce(&mut T, Look<'_>),
    ) -> Result<T, CodecError> {
        match self {
            Self::Postcard | Self::Foreign => {
                let (vectors, body) = Brought::with(body)?;
                let mut value = read(body)?;
                if let Some(vectors) = vectors {
                    vectors.put_into(&mut value, each)?;
                }
                Ok(value)
            }
            Self::Custom(codec) => read_by(&**codec, body),
        }
    }
}

/// Writes a value and takes its large vectors along beside it.
#[inline]
fn write_without_vectors<T: Serialize + 'static>(
    value: &mut T,
    each: impl FnOnce(&mut T, Look<'_>),
) -> Result<Vec<u8>, CodecError> {
    let vectors = TakenOut::of(value, each);
    let body = write(value, vectors.lead())?;
    vectors.attach();
    Ok(body)
}

/// Writes a value in the form that it needs, after what its body begins with.
#[inline]
fn write<T: Serialize + 'static>(value: &T, lead: &[u8]) -> Result<Vec<u8>, CodecError> {
    match fingerprint::reads_any(TypeId::of::<T>()) {
        true => write_described(value, lead),
        false => write_compact(value, lead),
    }
}

/// Reads a value in whichever form it has.
#[inline]
fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    match body.split_first_chunk() {
        Some((&DESCRIBED, body)) => read_described(body),
        Some((&FOREIGN, body)) => foreign::read(body),
        Some((counts, body)) => read_compact(Some(*counts), body),
        None if body.is_empty() => read_compact(None, body),
        None => Err(CodecError::new("its bytes end before the value begins")),
    }
}

/// Writes a value in the compact form if that can carry it.
fn write_compact<T: Serialize>(value: &T, lead: &[u8]) -> Result<Vec<u8>, CodecError> {
    // What serializes the value may write others meanwhile: those find no spare buffer.
    let mut body = spare::take(&SPARE);
    body.clear();
    body.extend_from_slice(lead);
    body.extend_from_slice(&[0; DESCRIBED.len()]);
    let mut writer = Writer::new(&mut body);
    if let Err(fault) = value.serialize(&mut writer) {
        if fault.is_not_compact() {
            scope::start_over();
            return write_described(value, lead);
        }
        return Err(CodecError::new(fault));
    }
    let counts = writer.finish();
    let own = body.get_mut(lead.len()..).unwrap_or_default();
    match own.split_first_chunk_mut() {
        Some((_, [])) => body.truncate(lead.len()),
        Some((start, _)) => *start = counts.bytes(),
        None => {}
    }
    if body.capacity() > SPARE_BYTES {
        return Ok(body);
    }
    // As large as it has to be: nothing is left over that would have to be kept along with it.
    let exact = body.clone();
    spare::keep(&SPARE, body);
    Ok(exact)
}

/// A buffer of this size at most is kept by each thread for the next value, which is then copied out of it.
const SPARE_BYTES: usize = 4 << 10;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

pub(super) fn write_described<T: Serialize>(value: &T, lead: &[u8]) -> Result<Vec<u8>, CodecError> {
    let mut body = [lead, &DESCRIBED].concat();
    let mut writer = described::Writer::new(&mut body);
    value.serialize(&mut writer).map_err(CodecError::new)?;
    Ok(body)
}

pub(super) fn write_described_at_most<T: Serialize>(
    value: &T,
    most: usize,
) -> Result<Vec<u8>, Fault> {
    let mut body = DESCRIBED.to_vec();
    value.serialize(&mut described::Writer::at_most(&mut body, most))?;
    Ok(body)
}

fn read_described<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    scope::may_read_again();
    let mut reader = described::Reader::new(body);
    let value = reader
        .part(|reader| T::deserialize(reader))
        .map_err(CodecError::new)?;
    nothing_left(reader.finish().map_err(CodecError::new)?)?;
    Ok(value)
}
