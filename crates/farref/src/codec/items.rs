//! Values one after the other in one body, each read when it is asked for.
//!
//! Each is written as a body of its own would be: two bytes that say in which form, and the value. Both forms know
//! where they end. A value that takes no bytes has the two all the same, so that there are never more values than
//! bytes.

use std::any::TypeId;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::CodecError;
use super::forms::{DESCRIBED, field_counts_differ};
use super::reader::Reader;
use super::vectors::{Brought, TakenOut, copy_of, each_in};
use super::writer::Writer;
use super::{described, scope};
use crate::fingerprint;

/// Writes a value into `buffer`, in the place of whatever was there. If that panics, the buffer is empty.
pub(crate) fn write<T: Serialize + 'static>(
    value: &T,
    buffer: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let Some(mut copy) = copy_of(value) else {
        return write_led(value, &[], buffer);
    };
    let vectors = TakenOut::of(&mut copy, each_in);
    write_led(&copy, &vectors.lead, buffer)?;
    vectors.attach();
    Ok(())
}

/// Writes a value after what it begins with.
#[inline]
fn write_led<T: Serialize + 'static>(
    value: &T,
    lead: &[u8],
    buffer: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let mut start = std::mem::take(buffer);
    start.clear();
    start.extend_from_slice(lead);
    if fingerprint::reads_any(TypeId::of::<T>()) {
        return write_described(value, start, buffer);
    }
    start.extend_from_slice(&[0; DESCRIBED.len()]);
    let mut writer = Writer::new(start);
    let written = value.serialize(&mut writer);
    let (mut body, counts) = writer.finish();
    match written {
        Ok(()) => {
            let own = body.get_mut(lead.len()..).unwrap_or_default();
            if let Some((start, _)) = own.split_first_chunk_mut() {
                *start = counts.bytes();
            }
            *buffer = body;
            Ok(())
        }
        Err(fault) if fault.is_not_compact() => {
            scope::start_over();
            body.truncate(lead.len());
            write_described(value, body, buffer)
        }
        Err(fault) => Err(CodecError::new(fault)),
    }
}

#[cold]
fn write_described<T: Serialize>(
    value: &T,
    mut start: Vec<u8>,
    buffer: &mut Vec<u8>,
) -> Result<(), CodecError> {
    start.extend_from_slice(&DESCRIBED);
    let mut writer = described::Writer::new(start);
    value.serialize(&mut writer).map_err(CodecError::new)?;
    *buffer = writer.finish();
    Ok(())
}

/// Reads the value that `body` begins with. Says what comes after it.
pub(crate) fn read<T: DeserializeOwned + 'static>(body: &[u8]) -> Result<(T, &[u8]), CodecError> {
    let (vectors, body) = Brought::with(body)?;
    let (mut value, rest) = read_plain(body)?;
    if let Some(vectors) = vectors {
        vectors.put_into(&mut value, each_in)?;
    }
    Ok((value, rest))
}

#[inline]
fn read_plain<T: DeserializeOwned>(body: &[u8]) -> Result<(T, &[u8]), CodecError> {
    match body.split_first_chunk() {
        Some((&DESCRIBED, body)) => {
            scope::may_read_again();
            let mut reader = described::Reader::new(body);
            let value = reader
                .part(|reader| T::deserialize(reader))
                .map_err(CodecError::new)?;
            Ok((value, reader.finish().map_err(CodecError::new)?))
        }
        Some((counts, body)) => {
            let mut reader = Reader::new(body);
            let value = T::deserialize(&mut reader).map_err(CodecError::new)?;
            let (rest, read) = reader.finish().map_err(CodecError::new)?;
            if *counts != read.bytes() {
                return Err(field_counts_differ());
            }
            Ok((value, rest))
        }
        None => Err(CodecError::new("its bytes end before the value begins")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_both_forms_are_read_one_after_the_other() {
        #[derive(Serialize, serde::Deserialize, PartialEq, Debug)]
        struct Row {
            #[serde(skip_serializing_if = "Option::is_none", default)]
            left_out: Option<u32>,
            name: String,
        }
        let row = |left_out, name: &str| Row {
            left_out,
            name: name.to_owned(),
        };
        let rows = [row(None, "one"), row(Some(2), "two"), row(None, "")];
        let (mut body, mut buffer) = (Vec::new(), Vec::new());
        for row in &rows {
            write(row, &mut buffer).unwrap();
            body.extend_from_slice(&buffer);
        }
        let mut rest = &body[..];
        for row in &rows {
            let (read, after) = read::<Row>(rest).unwrap();
            assert_eq!(&read, row);
            rest = after;
        }
        assert!(rest.is_empty());
    }

    #[test]
    fn values_that_take_no_bytes_are_counted() {
        let (mut body, mut buffer) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            write(&(), &mut buffer).unwrap();
            body.extend_from_slice(&buffer);
        }
        let mut rest = &body[..];
        for _ in 0..3 {
            rest = read::<()>(rest).unwrap().1;
        }
        assert!(read::<()>(rest).is_err());
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        let mut body = Vec::new();
        write(&"text".to_owned(), &mut body).unwrap();
        for end in 0..body.len() {
            assert!(read::<String>(&body[..end]).is_err(), "{end}");
        }
        assert!(read::<String>(&body).is_ok());
    }
}
