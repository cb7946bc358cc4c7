//! Pickles: Python's values as bytes, read without executing anything, and written.
//!
//! | part | job |
//! | --- | --- |
//! | `opcode` | the letters of the language |
//! | `read` | a machine that builds `read::Node`s and calls nobody: what Python would look up or call stays a name |
//! | `view` | walking what was read, with a budget |
//! | `sharing` | what is in a value more than once |
//! | `write` | writing values so that Python reads them |
//!
//! # Invariants
//!
//! - **PK-1** Nothing is executed. A global is its name; a call is its callee and its arguments.
//! - **PK-2** What reading takes is proportional to the bytes that are read, and bounded: every opcode makes at most one
//!   node, none is made without an opcode, and there are at most `read::MAX_PARTS` of all that is kept while reading.
//! - **PK-3** Walking ends: nodes may be shared, so that a few bytes stand for a value without end, but every
//!   step of a walk is paid for out of a budget, and depth is limited.
//! - **PK-4** Honest values pass: each part of a value that shares nothing may be looked at `view::LOOKS`
//!   times, however large the value. Numbers, and texts of up to 480 bytes, may be shared without limit. Longer
//!   texts, lists and the like that are shared count as often as they are used; what a value may come to that
//!   way is in proportion to its bytes, and never less than `view::FLOOR` steps.

mod opcode;
mod read;
mod sharing;
#[cfg(test)]
mod tests;
mod view;
mod write;

pub use read::Pickle;
pub use view::{Called, Shape, View};
pub use write::Writer;

/// A pickle of nothing.
pub const EMPTY_TUPLE_PICKLE: &[u8] = &[opcode::EMPTY_TUPLE, opcode::STOP];

/// Why bytes are no pickle that this crate understands.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PickleError {
    /// The bytes end in the middle.
    #[error("the pickle ends in the middle")]
    Truncated,
    /// Bytes follow the end.
    #[error("{0} bytes follow the pickle")]
    Trailing(usize),
    /// An opcode that nobody writes to us.
    #[error("opcode {0:#04x} is not understood")]
    Opcode(u8),
    /// A version of the language that is too new.
    #[error("pickles of protocol {0} are not understood")]
    Protocol(u8),
    /// An opcode finds too little on the stack, or the wrong thing.
    #[error("{0} does not fit what comes before it")]
    Misplaced(&'static str),
    /// A value is asked for that was never stored.
    #[error("nothing was stored under {0}")]
    NoSuchMemo(u32),
    /// The value is not what was expected.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What was expected.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// The value nests too deep or is too large once it is spelled out.
    #[error("the value is too deep or too large")]
    TooLarge,
}
