//! Reading libnop's bytes.

use super::{ARRAY, BINARY, MAP, NIL, NopError, STRING, STRUCT, VARIANT};

/// What is left to read.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// There must be nothing left.
    pub(crate) fn finish(self) -> Result<(), NopError> {
        match self.rest.len() {
            0 => Ok(()),
            more => Err(NopError::Trailing(more)),
        }
    }

    fn byte(&mut self) -> Result<u8, NopError> {
        let [byte] = self.array()?;
        Ok(byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], NopError> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or(NopError::Truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], NopError> {
        let count = usize::try_from(count).map_err(|_| NopError::Truncated)?;
        let taken = self.rest.split_at_checked(count);
        let (bytes, rest) = taken.ok_or(NopError::Truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn expect(&mut self, prefix: u8, expected: &'static str) -> Result<(), NopError> {
        match self.byte()? {
            found if found == prefix => Ok(()),
            found => Err(NopError::Unexpected { expected, found }),
        }
    }

    /// A number that is not negative.
    pub(crate) fn unsigned(&mut self) -> Result<u64, NopError> {
        let expected = "a number that is not negative";
        let prefix = self.byte()?;
        let signed = match prefix {
            0x00..=0x7f => return Ok(prefix.into()),
            0x80 => return self.byte().map(u64::from),
            0x81 => return self.array().map(u16::from_le_bytes).map(u64::from),
            0x82 => return self.array().map(u32::from_le_bytes).map(u64::from),
            0x83 => return self.array().map(u64::from_le_bytes),
            0x84 => self.array().map(i8::from_le_bytes).map(i64::from)?,
            0x85 => self.array().map(i16::from_le_bytes).map(i64::from)?,
            0x86 => self.array().map(i32::from_le_bytes).map(i64::from)?,
            0x87 => self.array().map(i64::from_le_bytes)?,
            found => return Err(NopError::Unexpected { expected, found }),
        };
        u64::try_from(signed).map_err(|_| NopError::Unexpected {
            expected,
            found: prefix,
        })
    }

    /// Which of the variants; its value follows.
    pub(crate) fn variant(&mut self) -> Result<u64, NopError> {
        self.expect(VARIANT, "a variant")?;
        self.unsigned()
    }

    /// A struct of so many members, which follow.
    pub(crate) fn members(&mut self, members: u64) -> Result<(), NopError> {
        self.expect(STRUCT, "a struct")?;
        match self.unsigned()? {
            count if count == members => Ok(()),
            count => Err(NopError::Count {
                what: "a struct",
                count,
                expected: "another number of members",
            }),
        }
    }

    /// How many elements of an array follow.
    pub(crate) fn elements(&mut self) -> Result<usize, NopError> {
        self.expect(ARRAY, "an array")?;
        self.count("an array")
    }

    /// How many pairs of a map follow.
    pub(crate) fn pairs(&mut self) -> Result<usize, NopError> {
        self.expect(MAP, "a map")?;
        self.count("a map")
    }

    /// Every element takes a byte at least, so more cannot follow than bytes do (NP-1).
    fn count(&mut self, what: &'static str) -> Result<usize, NopError> {
        let count = self.unsigned()?;
        let fits = usize::try_from(count).ok();
        fits.filter(|count| *count <= self.rest.len())
            .ok_or(NopError::Count {
                what,
                count,
                expected: "no more than bytes are left",
            })
    }

    pub(crate) fn text(&mut self) -> Result<&'a str, NopError> {
        self.expect(STRING, "a text")?;
        let length = self.unsigned()?;
        std::str::from_utf8(self.take(length)?).map_err(|_| NopError::Text)
    }

    /// Numbers of eight bytes, one after the other.
    pub(crate) fn numbers(&mut self) -> Result<Vec<u64>, NopError> {
        self.expect(BINARY, "bytes")?;
        let length = self.unsigned()?;
        let (numbers, rest) = self.take(length)?.as_chunks();
        if !rest.is_empty() {
            return Err(NopError::Count {
                what: "bytes",
                count: length,
                expected: "a multiple of eight",
            });
        }
        Ok(numbers
            .iter()
            .map(|bytes| u64::from_le_bytes(*bytes))
            .collect())
    }

    /// Whether there is something where there need not be; it follows.
    pub(crate) fn is_there(&mut self) -> bool {
        match self.rest.split_first() {
            Some((&NIL, rest)) => {
                self.rest = rest;
                false
            }
            _ => true,
        }
    }
}
