//! Reading the compact form.

use serde::de::DeserializeOwned;

use super::error::CodecError;
use super::reader::Reader;

pub(super) fn read_compact<T: DeserializeOwned>(
    counts: Option<[u8; 2]>,
    body: &[u8],
) -> Result<T, CodecError> {
    let mut reader = Reader::new(body);
    let value = T::deserialize(&mut reader).map_err(CodecError::new)?;
    let (rest, read) = reader.finish().map_err(CodecError::new)?;
    if counts.is_some_and(|counts| counts != read.bytes()) {
        return Err(field_counts_differ());
    }
    nothing_left(rest)?;
    Ok(value)
}

#[cold]
pub(super) fn field_counts_differ() -> CodecError {
    CodecError::new(
        "it is read with other fields than it is written with: `#[serde(skip_serializing)]` needs \
         `skip_deserializing` as well, and a tuple cannot leave out elements",
    )
}

/// Whether the value took all bytes.
pub(super) fn nothing_left(rest: &[u8]) -> Result<(), CodecError> {
    match rest.len() {
        0 => Ok(()),
        left => Err(CodecError::new(format_args!(
            "{left} bytes are left over: it is not read as it was written"
        ))),
    }
}
