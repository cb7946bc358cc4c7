//! The described form of a value: each part says what it is, and fields go by their names.
//!
//! It carries what the compact form cannot: types that look at what came before they know what they are
//! (`#[serde(untagged)]`, `#[serde(tag = "..")]`, `#[serde(flatten)]`, `serde_json::Value`), fields that
//! are left out (`#[serde(skip_serializing_if = "..")]`), and sequences and maps whose length is not
//! known beforehand. It takes more bytes and time, so it is used for these only.
//!
//! | part | bytes |
//! | --- | --- |
//! | number, char, text, bytes | its [`tag`], then as postcard writes it |
//! | `false`, `true`, unit, none | its tag |
//! | some | its tag, then the content |
//! | sequence, tuple | its tag, the elements, [`END`](tag::END) |
//! | map, struct | its tag, keys and values in turn, [`END`](tag::END); the keys of a struct are texts |
//! | variant without content | its name, as a text |
//! | variant with content | a map of one entry, from its name to its content |
//!
//! A newtype is its content.
//!
//! Values are written and read through trait objects. Few types need this form, but which ones shows
//! only at run time. Without trait objects the compiler would generate it for each type of a program.

mod reader;
mod writer;

use serde::de::DeserializeOwned;

use super::depth::Limited;
use super::error::CodecError;
use super::fault::Fault;
use reader::Reader;
use writer::Writer;

/// Writes a value at the end of `body`. If it fails, part of the value may be there.
pub(super) fn write(
    value: &dyn erased_serde::Serialize,
    body: &mut Vec<u8>,
) -> Result<(), CodecError> {
    write_at_most(value, body, usize::MAX).map_err(CodecError::new)
}

/// The same, up to about `most` bytes in all.
pub(super) fn write_at_most(
    value: &dyn erased_serde::Serialize,
    body: &mut Vec<u8>,
    most: usize,
) -> Result<(), Fault> {
    erased_serde::serialize(value, &mut Writer::at_most(body, most))
}

/// Reads the value at the start of `body`. Also returns the bytes behind the value.
pub(super) fn read<T: DeserializeOwned>(body: &[u8]) -> Result<(T, &[u8]), CodecError> {
    let mut value = None;
    let rest = read_by(body, &mut |reader| {
        value = Some(T::deserialize(Limited::new(reader))?);
        Ok(())
    })?;
    let value = value.ok_or_else(|| CodecError::new("the value was not read"))?;
    Ok((value, rest))
}

/// Calls `read` with a deserializer. Returns the bytes behind the value.
fn read_by<'de>(
    body: &'de [u8],
    read: &mut dyn FnMut(
        &mut dyn erased_serde::Deserializer<'de>,
    ) -> Result<(), erased_serde::Error>,
) -> Result<&'de [u8], CodecError> {
    let mut reader = Reader::new(body);
    let outcome = reader.part(|reader| {
        let mut reader = <dyn erased_serde::Deserializer<'_>>::erase(reader);
        read(&mut reader).map_err(Fault::said)
    });
    outcome.map_err(CodecError::new)?;
    reader.finish().map_err(CodecError::new)
}

/// What a part begins with.
mod tag {
    pub(super) const END: u8 = 0;
    pub(super) const FALSE: u8 = 1;
    pub(super) const TRUE: u8 = 2;
    pub(super) const I8: u8 = 3;
    pub(super) const I16: u8 = 4;
    pub(super) const I32: u8 = 5;
    pub(super) const I64: u8 = 6;
    pub(super) const I128: u8 = 7;
    pub(super) const U8: u8 = 8;
    pub(super) const U16: u8 = 9;
    pub(super) const U32: u8 = 10;
    pub(super) const U64: u8 = 11;
    pub(super) const U128: u8 = 12;
    pub(super) const F32: u8 = 13;
    pub(super) const F64: u8 = 14;
    pub(super) const CHAR: u8 = 15;
    pub(super) const STR: u8 = 16;
    pub(super) const BYTES: u8 = 17;
    pub(super) const NONE: u8 = 18;
    pub(super) const SOME: u8 = 19;
    pub(super) const UNIT: u8 = 20;
    pub(super) const SEQ: u8 = 21;
    pub(super) const MAP: u8 = 22;
}
