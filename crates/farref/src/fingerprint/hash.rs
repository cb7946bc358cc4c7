//! The hash that fingerprints are made with.

use farref_proto::Fingerprint;

/// FNV-1a with 64 bits: fixed for good, because both sides of a call must compute the same (FP-1).
#[derive(Clone, Copy)]
pub(super) struct Hash(pub(super) u64);

impl Hash {
    pub(super) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    /// Adds text, and its length first: "ab" and "c" are not "a" and "bc".
    pub(super) const fn part(self, text: &str) -> Self {
        self.number(text.len() as u64).bytes(text.as_bytes())
    }

    pub(super) const fn number(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(super) const fn bytes(self, bytes: &[u8]) -> Self {
        let mut hash = self.0;
        // Not an iterator: names are hashed when they are compiled.
        let mut rest = bytes;
        while let [byte, others @ ..] = rest {
            hash = (hash ^ *byte as u64).wrapping_mul(0x100_0000_01b3);
            rest = others;
        }
        Self(hash)
    }

    pub(super) fn fingerprint(self) -> Fingerprint {
        Fingerprint(self.0).native()
    }
}
