//! What the table of parts says of each: how long it is, and how wide its elements are.
//!
//! The highest two bits are the width, as a power of two; the others are the length in bytes. No limit
//! on messages comes near them.

use crate::codec::Width;

/// Where the width begins.
const SHIFT: u32 = 62;

/// The entry of a part.
pub(super) fn write(length: usize, width: Width) -> u64 {
    length as u64 | u64::from(width.log2()) << SHIFT
}

/// The length and the width that an entry says.
pub(super) fn read(entry: u64) -> (u64, Width) {
    let width = match entry >> SHIFT {
        0 => Width::One,
        1 => Width::Two,
        2 => Width::Four,
        _ => Width::Eight,
    };
    (entry & !(u64::MAX << SHIFT), width)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_says_what_was_written() {
        for width in [Width::One, Width::Two, Width::Four, Width::Eight] {
            for length in [0, 8, 1 << 40] {
                assert_eq!(read(write(length, width)), (length as u64, width));
            }
        }
        assert_eq!(write(5, Width::One), 5, "bytes are what they always were");
    }
}
