//! Values one after the other in one body, each read when it is asked for.
//!
//! Each is written as a body of its own would be: two bytes that say in which form, and the value. Both forms know
//! where they end. A value that takes no bytes has the two all the same, so that there are never more values than
//! bytes.

use std::any::TypeId;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::compact::field_counts_differ;
use super::error::CodecError;
use super::fault::Fault;
use super::forms::DESCRIBED;
use super::reader::Reader;
use super::vectors::{Brought, TakenOut, copy_of, each_in};
use super::writer::Writer;
use super::{described, scope};
use crate::fingerprint;

/// Writes a value after what is in `body`. If it cannot be written, nothing is there of it; if that panics, there may be a
/// part of it.
#[inline]
pub(crate) fn write<T: Serialize + 'static>(
    value: &T,
    body: &mut Vec<u8>,
) -> Result<(), CodecError> {
    let Some(mut copy) = copy_of(value) else {
        return write_in_form(value, body);
    };
    let start = body.len();
    let vectors = TakenOut::of(&mut copy, each_in);
    body.extend_from_slice(vectors.lead());
    if let Err(error) = write_in_form(&copy, body) {
        body.truncate(start);
        return Err(error);
    }
    vectors.attach();
    Ok(())
}

/// Writes a value in the form that it needs.
#[inline]
fn write_in_form<T: Serialize + 'static>(value: &T, body: &mut Vec<u8>) -> Result<(), CodecError> {
    if fingerprint::reads_any(TypeId::of::<T>()) {
        return write_described(value, body);
    }
    let start = body.len();
    body.extend_from_slice(&[0; DESCRIBED.len()]);
    let mut writer = Writer::new(body);
    let written = value.serialize(&mut writer);
    let counts = writer.finish();
    if let Err(fault) = written {
        body.truncate(start);
        return write_otherwise(value, body, fault);
    }
    if let Some((place, _)) = body[start..].split_first_chunk_mut() {
        *place = counts.bytes();
    }
    Ok(())
}

/// In the other form, if that can carry it.
#[cold]
fn write_otherwise<T: Serialize>(
    value: &T,
    body: &mut Vec<u8>,
    fault: Fault,
) -> Result<(), CodecError> {
    if !fault.is_not_compact() {
        return Err(CodecError::new(fault));
    }
    scope::start_over();
    write_described(value, body)
}

#[cold]
fn write_described<T: Serialize>(value: &T, body: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = body.len();
    body.extend_from_slice(&DESCRIBED);
    let written = value.serialize(&mut described::Writer::new(body));
    written.map_err(|fault| {
        body.truncate(start);
        CodecError::new(fault)
    })
}

/// Reads the value that `body` begins with, as [`read`] does, and says how many bytes it takes. For what is in order
/// and in the compact form only: it is all that the loop of a program that reads many has in it.
#[inline]
pub(crate) fn read_plain<T: DeserializeOwned>(body: &[u8]) -> Option<(T, usize)> {
    let (counts, value) = body.split_first_chunk()?;
    if *counts == DESCRIBED {
        return None;
    }
    let mut reader = Reader::new(value);
    let value = T::deserialize(&mut reader).ok()?;
    let (rest, read) = reader.finish().ok()?;
    (*counts == read.bytes()).then_some((value, body.len() - rest.len()))
}

/// Reads the value that `body` begins with. Says what comes after it.
pub(crate) fn read<T: DeserializeOwned + 'static>(body: &[u8]) -> Result<(T, &[u8]), CodecError> {
    let (vectors, body) = Brought::with(body)?;
    let (mut value, rest) = read_in_form(body)?;
    if let Some(vectors) = vectors {
        vectors.put_into(&mut value, each_in)?;
    }
    Ok((value, rest))
}

#[inline]
fn read_in_form<T: DeserializeOwned>(body: &[u8]) -> Result<(T, &[u8]), CodecError> {
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
        let mut body = Vec::new();
        for row in &rows {
            write(row, &mut body).unwrap();
        }
        let mut rest = &body[..];
        for row in &rows {
            let (read, after) = read::<Row>(rest).unwrap();
            assert_eq!(&read, row);
            rest = after;
        }
        assert!(rest.is_empty());
    }

    /// Of an attempt that came to nothing, nothing goes along.
    #[test]
    fn what_is_written_twice_has_its_buffers_once() {
        #[derive(Serialize, serde::Deserialize)]
        struct Row {
            blob: crate::Blob,
            #[serde(skip_serializing_if = "Option::is_none", default)]
            left_out: Option<u32>,
        }
        let row = Row {
            blob: crate::Blob::from(vec![7_u8; 1 << 20]),
            left_out: None,
        };
        let scope = scope::WritingItems::begin();
        let mut body = Vec::new();
        write(&row, &mut body).unwrap();
        assert_eq!(body[..2], DESCRIBED, "the second attempt");
        assert_eq!(scope.take().0.len(), 1);
    }

    #[test]
    fn a_value_that_is_not_read_as_it_was_written_is_an_error() {
        let mut body = Vec::new();
        write(&(1_u8, (2_u8, 3_u8)), &mut body).unwrap();
        assert!(read::<(u8, u8, u8)>(&body).is_err());
        assert_eq!(read_plain::<(u8, u8, u8)>(&body), None);
    }

    #[test]
    fn values_that_take_no_bytes_are_counted() {
        let mut body = Vec::new();
        for _ in 0..3 {
            write(&(), &mut body).unwrap();
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
            assert!(read_plain::<String>(&body[..end]).is_none(), "{end}");
        }
        assert!(read::<String>(&body).is_ok());
        assert_eq!(read_plain(&body), Some(("text".to_owned(), body.len())));
    }

    #[test]
    fn a_value_that_cannot_be_written_leaves_nothing_behind() {
        struct Half;
        impl Serialize for Half {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let mut pair = serializer.serialize_tuple(2)?;
                serde::ser::SerializeTuple::serialize_element(&mut pair, &1_u64)?;
                Err(serde::ser::Error::custom("no second half"))
            }
        }
        let mut body = Vec::new();
        write(&1_u8, &mut body).unwrap();
        let before = body.clone();
        assert_eq!(
            write(&Half, &mut body).unwrap_err().to_string(),
            "no second half"
        );
        assert_eq!(body, before);
    }
}
