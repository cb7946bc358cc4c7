//! Writing libnop's bytes, numbers in the shortest form as libnop does.

use super::{ARRAY, BINARY, MAP, STRING, STRUCT, VARIANT};

/// An object under way.
#[derive(Clone, Debug, Default)]
pub(crate) struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Writes behind what is there.
    pub(crate) fn onto(bytes: Vec<u8>) -> Self {
        Self { bytes }
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn unsigned(&mut self, value: u64) -> &mut Self {
        if let Ok(small) = u8::try_from(value) {
            if small > 0x7f {
                self.bytes.push(0x80);
            }
            self.bytes.push(small);
        } else if let Ok(value) = u16::try_from(value) {
            self.bytes.push(0x81);
            self.bytes.extend(value.to_le_bytes());
        } else if let Ok(value) = u32::try_from(value) {
            self.bytes.push(0x82);
            self.bytes.extend(value.to_le_bytes());
        } else {
            self.bytes.push(0x83);
            self.bytes.extend(value.to_le_bytes());
        }
        self
    }

    fn begin(&mut self, prefix: u8, count: usize) -> &mut Self {
        self.bytes.push(prefix);
        self.unsigned(count as u64)
    }

    pub(crate) fn variant(&mut self, which: usize) -> &mut Self {
        self.begin(VARIANT, which)
    }

    pub(crate) fn members(&mut self, count: usize) -> &mut Self {
        self.begin(STRUCT, count)
    }

    pub(crate) fn elements(&mut self, count: usize) -> &mut Self {
        self.begin(ARRAY, count)
    }

    pub(crate) fn pairs(&mut self, count: usize) -> &mut Self {
        self.begin(MAP, count)
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        self.begin(STRING, text.len());
        self.bytes.extend_from_slice(text.as_bytes());
        self
    }

    pub(crate) fn numbers(&mut self, numbers: &[u64]) -> &mut Self {
        self.begin(BINARY, 8 * numbers.len());
        for number in numbers {
            self.bytes.extend(number.to_le_bytes());
        }
        self
    }
}
