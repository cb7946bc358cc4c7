//! Whether a value is read with as many fields as it was written with.
//!
//! Compact values have no names, and no number of fields. If a type writes fewer fields than it reads,
//! as with `#[serde(skip_serializing)]` and a `default`, all that follows would be taken for something
//! else, often without an error. So both sides hash the number of fields of each struct, tuple and
//! variant, in the order in which these end, and the reader compares.

/// The hash so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FieldCounts(u32);

impl FieldCounts {
    pub(super) const fn new() -> Self {
        Self(0x811c_9dc5)
    }

    /// A struct, tuple or variant ends that had this many fields. FNV-1a, with whole numbers.
    #[inline]
    pub(super) fn add(&mut self, fields: usize) {
        self.0 = (self.0 ^ fields as u32).wrapping_mul(0x0100_0193);
    }

    /// As it travels: two bytes, and never [`DESCRIBED`](super::forms::DESCRIBED),
    /// [`VECTORS`](super::vectors::VECTORS) or [`FOREIGN`](super::foreign::FOREIGN).
    #[inline]
    pub(super) fn bytes(self) -> [u8; 2] {
        let folded = (self.0 ^ (self.0 >> 16)) as u16;
        folded.min(u16::MAX - 3).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::super::foreign::FOREIGN;
    use super::super::forms::DESCRIBED;
    use super::super::vectors::VECTORS;
    use super::*;

    #[test]
    fn no_hash_is_taken_for_the_mark_of_a_form() {
        for folded in 0..=u32::from(u16::MAX) {
            let bytes = FieldCounts(folded).bytes();
            assert!(![FOREIGN, VECTORS, DESCRIBED].contains(&bytes), "{bytes:?}");
        }
    }
}
