//! The bytes of the TCPStore protocol: requests as values, and back. No I/O.
//!
//! A request is one byte that says what is wanted, then fields: integers are little-endian, byte
//! strings are a `u64` length and the bytes, lists are a `u64` count and the items. Nothing else
//! frames a request, so its end is known only from its fields: [`Request::parse`] first measures,
//! then copies, and a request that is not all there yet costs no more than the measuring.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::dialect::StoreDialect;
use super::error::ProtocolError;
use crate::store::limits::{MAX_KEY, MAX_KEYS, MAX_VALUE};

/// Keys of programs begin with a slash on the wire. These two do not and are nobody's: a farref server
/// that is asked whether they are there tells about itself. This one says that it is a farref server.
pub(super) const IS_FARREF: &[u8] = b"farref";
/// This one is there if an old client has been.
pub(super) const HAD_OLD_CLIENTS: &[u8] = b"farref/old clients";
/// Counts the workers that have come, without a slash, for PyTorch.
pub(super) const ARRIVALS: &[u8] = b"init/";

/// Answers to [`Request::Check`].
pub(super) const READY: u8 = 0;
pub(super) const NOT_READY: u8 = 1;

/// Answers to [`Request::Wait`], [`Request::Barrier`] and [`Request::CancelWait`].
pub(super) const STOP_WAITING: u8 = 0;
pub(super) const WAIT_CANCELLED: u8 = 1;

/// Everything a client can ask.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Request {
    Validate(u32),
    Set(Bytes, Bytes),
    CompareSet {
        key: Bytes,
        expected: Bytes,
        desired: Bytes,
    },
    Get(Bytes),
    Add(Bytes, i64),
    Check(Vec<Bytes>),
    Wait(Vec<Bytes>),
    KeyCount,
    Delete(Bytes),
    Append(Bytes, Bytes),
    MultiGet(Vec<Bytes>),
    MultiSet(Vec<(Bytes, Bytes)>),
    CancelWait,
    Ping(u32),
    QueuePush(Bytes, Bytes),
    QueuePop(Bytes),
    QueueLen(Bytes),
    ListKeys,
    Barrier(Bytes, i64),
}

/// The fields that follow the first byte of a request.
#[derive(Clone, Copy)]
enum Field {
    Fixed(usize),
    Key,
    Value,
    Keys,
    Pairs,
}

impl Request {
    /// Takes one request off the front of `buffer`; `None`, and the buffer untouched, if it is not
    /// all there yet. `limit` bounds the size of the whole request.
    pub(super) fn parse(
        dialect: StoreDialect,
        buffer: &mut BytesMut,
        limit: usize,
    ) -> Result<Option<Self>, ProtocolError> {
        let Some((&first, fields)) = buffer.split_first() else {
            return Ok(None);
        };
        let unknown = ProtocolError::UnknownRequest(first);
        let Some(code) = dialect.today(first) else {
            return Err(unknown);
        };
        let shape = shape(code).ok_or(unknown)?;
        let mut measure = Measure {
            bytes: fields,
            at: 0,
            limit,
        };
        for field in shape {
            if measure.skip(*field)?.is_none() {
                return Ok(None);
            }
        }
        let size = measure.at;
        buffer.advance(1);
        let mut fields = Fields(&buffer[..size]);
        let request = Self::read(code, &mut fields);
        buffer.advance(size);
        request.map(Some)
    }

    /// Appends the bytes of this request.
    pub(super) fn encode(
        &self,
        dialect: StoreDialect,
        out: &mut BytesMut,
    ) -> Result<(), ProtocolError> {
        let code = self.code();
        let number = dialect.number(code);
        out.put_u8(number.ok_or(ProtocolError::NotThen(code))?);
        self.encode_fields(out);
        Ok(())
    }

    fn encode_fields(&self, out: &mut BytesMut) {
        match self {
            Self::Validate(number) | Self::Ping(number) => out.put_u32_le(*number),
            Self::Set(key, value) | Self::Append(key, value) | Self::QueuePush(key, value) => {
                put_bytes(out, key);
                put_bytes(out, value);
            }
            Self::CompareSet {
                key,
                expected,
                desired,
            } => {
                put_bytes(out, key);
                put_bytes(out, expected);
                put_bytes(out, desired);
            }
            Self::Get(key) | Self::Delete(key) | Self::QueuePop(key) | Self::QueueLen(key) => {
                put_bytes(out, key);
            }
            Self::Add(key, number) | Self::Barrier(key, number) => {
                put_bytes(out, key);
                out.put_i64_le(*number);
            }
            Self::Check(keys) | Self::Wait(keys) | Self::MultiGet(keys) => {
                out.put_u64_le(keys.len() as u64);
                keys.iter().for_each(|key| put_bytes(out, key));
            }
            Self::MultiSet(pairs) => {
                out.put_u64_le(pairs.len() as u64);
                for (key, value) in pairs {
                    put_bytes(out, key);
                    put_bytes(out, value);
                }
            }
            Self::KeyCount | Self::CancelWait | Self::ListKeys => {}
        }
    }

    /// Whether it may come from a client that only finds out who serves it.
    pub(super) fn is_probe(&self) -> bool {
        match self {
            Self::KeyCount => true,
            Self::Check(keys) => keys.iter().all(|key| key == IS_FARREF),
            _ => false,
        }
    }

    /// What its list of keys takes in memory.
    pub(super) fn weight(&self) -> usize {
        match self {
            Self::Check(keys) | Self::Wait(keys) | Self::MultiGet(keys) => {
                keys.iter().map(|key| key.len() + 64).sum()
            }
            _ => 0,
        }
    }

    fn code(&self) -> u8 {
        match self {
            Self::Validate(..) => 0,
            Self::Set(..) => 1,
            Self::CompareSet { .. } => 2,
            Self::Get(..) => 3,
            Self::Add(..) => 4,
            Self::Check(..) => 5,
            Self::Wait(..) => 6,
            Self::KeyCount => 7,
            Self::Delete(..) => 8,
            Self::Append(..) => 9,
            Self::MultiGet(..) => 10,
            Self::MultiSet(..) => 11,
            Self::CancelWait => 12,
            Self::Ping(..) => 13,
            Self::QueuePush(..) => 14,
            Self::QueuePop(..) => 15,
            Self::QueueLen(..) => 16,
            Self::ListKeys => 17,
            Self::Barrier(..) => 18,
        }
    }

    /// Reads fields that have been measured and so are all there.
    fn read(code: u8, fields: &mut Fields<'_>) -> Result<Self, ProtocolError> {
        Ok(match code {
            0 => Self::Validate(fields.u32()),
            1 => Self::Set(fields.bytes(), fields.bytes()),
            2 => Self::CompareSet {
                key: fields.bytes(),
                expected: fields.bytes(),
                desired: fields.bytes(),
            },
            3 => Self::Get(fields.bytes()),
            4 => Self::Add(fields.bytes(), fields.i64()),
            5 => Self::Check(fields.list(Fields::bytes)),
            6 => Self::Wait(fields.list(Fields::bytes)),
            7 => Self::KeyCount,
            8 => Self::Delete(fields.bytes()),
            9 => Self::Append(fields.bytes(), fields.bytes()),
            10 => Self::MultiGet(fields.list(Fields::bytes)),
            11 => Self::MultiSet(fields.list(|fields| (fields.bytes(), fields.bytes()))),
            12 => Self::CancelWait,
            13 => Self::Ping(fields.u32()),
            14 => Self::QueuePush(fields.bytes(), fields.bytes()),
            15 => Self::QueuePop(fields.bytes()),
            16 => Self::QueueLen(fields.bytes()),
            17 => Self::ListKeys,
            18 => Self::Barrier(fields.bytes(), fields.i64()),
            code => return Err(ProtocolError::UnknownRequest(code)),
        })
    }
}

fn shape(code: u8) -> Option<&'static [Field]> {
    use Field::{Fixed, Key, Keys, Pairs, Value};
    Some(match code {
        0 | 13 => &[Fixed(4)],
        1 | 9 | 14 => &[Key, Value],
        2 => &[Key, Value, Value],
        3 | 8 | 15 | 16 => &[Key],
        4 | 18 => &[Key, Fixed(8)],
        5 | 6 | 10 => &[Keys],
        7 | 12 | 17 => &[],
        11 => &[Pairs],
        _ => return None,
    })
}

/// Walks over fields without keeping them, and refuses lengths as soon as they are seen.
struct Measure<'a> {
    bytes: &'a [u8],
    at: usize,
    limit: usize,
}

impl Measure<'_> {
    fn skip(&mut self, field: Field) -> Result<Option<()>, ProtocolError> {
        match field {
            Field::Fixed(size) => self.advance(size),
            Field::Key => self.string("key", MAX_KEY),
            Field::Value => self.string("value", MAX_VALUE),
            Field::Keys => self.list(&[Field::Key]),
            Field::Pairs => self.list(&[Field::Key, Field::Value]),
        }
    }

    fn list(&mut self, item: &[Field]) -> Result<Option<()>, ProtocolError> {
        let Some(count) = self.length("list of keys", MAX_KEYS)? else {
            return Ok(None);
        };
        for _ in 0..count {
            for field in item {
                if self.skip(*field)?.is_none() {
                    return Ok(None);
                }
            }
        }
        Ok(Some(()))
    }

    fn string(&mut self, what: &'static str, limit: usize) -> Result<Option<()>, ProtocolError> {
        match self.length(what, limit)? {
            Some(size) => self.advance(size),
            None => Ok(None),
        }
    }

    fn length(&mut self, what: &'static str, limit: usize) -> Result<Option<usize>, ProtocolError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(bytes) = rest.first_chunk::<8>() else {
            return Ok(None);
        };
        let size = u64::from_le_bytes(*bytes);
        if size > limit as u64 {
            return Err(ProtocolError::TooLong { what, size, limit });
        }
        self.at += 8;
        Ok(Some(size as usize))
    }

    fn advance(&mut self, size: usize) -> Result<Option<()>, ProtocolError> {
        // `at` is at most the buffer's length and `size` at most `MAX_VALUE`: no overflow.
        let end = self.at + size;
        if end > self.limit {
            return Err(ProtocolError::TooLong {
                what: "request",
                size: end as u64,
                limit: self.limit,
            });
        }
        if end > self.bytes.len() {
            return Ok(None);
        }
        self.at = end;
        Ok(Some(()))
    }
}

/// Reads fields that have been measured. Every piece gets an allocation of its own, so that a small
/// value kept for long does not keep a large receive buffer.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn u32(&mut self) -> u32 {
        self.0.get_u32_le()
    }

    fn i64(&mut self) -> i64 {
        self.0.get_i64_le()
    }

    fn bytes(&mut self) -> Bytes {
        let size = self.0.get_u64_le() as usize;
        self.0.copy_to_bytes(size)
    }

    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> T) -> Vec<T> {
        let count = self.0.get_u64_le();
        (0..count).map(|_| item(self)).collect()
    }
}

/// Appends a byte string.
pub(super) fn put_bytes(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u64_le(bytes.len() as u64);
    out.put_slice(bytes);
}

/// Takes a one-byte answer, which must be 0 or 1.
pub(super) fn take_flag(buffer: &mut BytesMut) -> Result<Option<u8>, ProtocolError> {
    match buffer.first() {
        None => Ok(None),
        Some(0 | 1) => Ok(Some(buffer.get_u8())),
        Some(&other) => Err(ProtocolError::UnknownAnswer(other)),
    }
}

/// Takes an integer answer.
pub(super) fn take_i64(buffer: &mut BytesMut) -> Result<Option<i64>, ProtocolError> {
    Ok((buffer.len() >= 8).then(|| buffer.get_i64_le()))
}

/// Takes a byte-string answer.
pub(super) fn take_bytes(buffer: &mut BytesMut) -> Result<Option<Bytes>, ProtocolError> {
    let Some(length) = buffer.first_chunk::<8>() else {
        return Ok(None);
    };
    let size = u64::from_le_bytes(*length);
    if size > MAX_VALUE as u64 {
        return Err(ProtocolError::TooLong {
            what: "value",
            size,
            limit: MAX_VALUE,
        });
    }
    let size = size as usize;
    if buffer.len() - 8 < size {
        return Ok(None);
    }
    buffer.advance(8);
    Ok(Some(buffer.split_to(size).freeze()))
}
