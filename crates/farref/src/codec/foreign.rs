//! The form in which values go to and come from workers whose functions are written in another language.
//!
//! A body in this form begins with [`FOREIGN`]. What follows is that language's: of Python, a pickle and what travels
//! beside it, in postcard (`docs/protocol.md`, FO-1). It is read and written by
//!
//! - the program itself, if its functions are the ones that are written in that language (it has
//!   [handlers](crate::functions::ForeignHandlers)): its values *are* those bytes, and what stands behind the mark is
//!   one of them, in postcard;
//! - a [`ValueCodec`] that another crate has brought ([`ForeignCodec`]): Rust values, as that language sees them.
//!
//! A program that has neither refuses such values, with an error that says what it lacks.

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::compact::read_compact;
use super::error::CodecError;
use super::value_codec::{ValueCodec, read_by};
use super::writer::Writer;

/// What a body in this form begins with. One in the compact form has the hash of its numbers of fields there.
pub(super) const FOREIGN: [u8; 2] = [0xfd, 0xff];

/// Whether a body is in this form.
pub(crate) fn is_foreign(body: &[u8]) -> bool {
    body.starts_with(&FOREIGN)
}

/// How Rust values are written for another language, and read from it, on farref's own wire.
///
/// For crates that bring another language. Submitted at link time, as functions are; a program has one of them.
pub struct ForeignCodec(&'static dyn ValueCodec);

impl ForeignCodec {
    /// This one.
    pub const fn new(codec: &'static dyn ValueCodec) -> Self {
        Self(codec)
    }
}

impl std::fmt::Debug for ForeignCodec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ForeignCodec")
    }
}

inventory::collect!(ForeignCodec);

/// Says that the program's own values are those of another language. Submitted with its
/// [handlers](crate::functions::ForeignHandlers).
#[derive(Debug)]
pub struct OwnValues;

inventory::collect!(OwnValues);

/// How this program has such values.
enum Way {
    AsTheyAre,
    By(&'static dyn ValueCodec),
}

fn way() -> Result<Way, CodecError> {
    if inventory::iter::<OwnValues>().next().is_some() {
        return Ok(Way::AsTheyAre);
    }
    match inventory::iter::<ForeignCodec>().next() {
        Some(ForeignCodec(codec)) => Ok(Way::By(*codec)),
        None => Err(CodecError::new(
            "this program does not know Python's values: link the crate farref-pickle into it (`use farref_pickle as _;`)",
        )),
    }
}

#[cold]
pub(super) fn write<T: Serialize>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut body = FOREIGN.to_vec();
    match way()? {
        Way::AsTheyAre => {
            let written = value.serialize(&mut Writer::new(&mut body));
            written.map_err(CodecError::new)?;
        }
        Way::By(codec) => body.extend(codec.encode(value)?),
    }
    Ok(body)
}

/// Reads what stands behind the mark.
#[cold]
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, CodecError> {
    match way()? {
        Way::AsTheyAre => read_compact(None, body),
        Way::By(codec) => read_by(codec, body),
    }
}
