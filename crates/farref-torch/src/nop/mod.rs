//! libnop: how TensorPipe writes its own objects (greetings, brochures, descriptors).
//!
//! Every value begins with a byte that says what it is; small numbers are that byte. What is here is what
//! TensorPipe uses.
//!
//! | byte | what follows |
//! | --- | --- |
//! | `00`..`7f`, `c0`..`ff` | nothing: the number itself, the latter negative |
//! | `80`..`83`, `84`..`87` | an unsigned, a signed number of 1, 2, 4, 8 bytes, little endian |
//! | `b8` | a variant: which one, then its value |
//! | `b9`, `ba` | a struct, an array: how many members, then those |
//! | `bb` | a map: how many pairs, then those |
//! | `bc`, `bd` | bytes, a string: how many, then those |
//! | `be` | nothing, where there could be something |
//!
//! # Invariants
//!
//! - **NP-1** What reading takes is proportional to the bytes that are read: a count is never believed beyond
//!   what the bytes left could hold.

mod read;
mod write;

pub(crate) use read::Reader;
pub(crate) use write::Writer;

const VARIANT: u8 = 0xb8;
const STRUCT: u8 = 0xb9;
const ARRAY: u8 = 0xba;
const MAP: u8 = 0xbb;
const BINARY: u8 = 0xbc;
const STRING: u8 = 0xbd;
const NIL: u8 = 0xbe;

/// Why bytes are no object that TensorPipe writes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NopError {
    /// The bytes end in the middle.
    #[error("the object ends in the middle")]
    Truncated,
    /// Something else is there than belongs there.
    #[error("expected {expected}, found byte {found:#04x}")]
    Unexpected {
        /// What belongs there.
        expected: &'static str,
        /// What is there.
        found: u8,
    },
    /// A count that cannot be right.
    #[error("{what} of {count} where {expected} was expected")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many.
        count: u64,
        /// How many there should be.
        expected: &'static str,
    },
    /// A text that is none.
    #[error("a text that is not UTF-8")]
    Text,
    /// Bytes follow the object.
    #[error("{0} bytes follow the object")]
    Trailing(usize),
}
