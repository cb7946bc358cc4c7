//! Pickles: Python's values as bytes, read without executing anything, and written.
//!
//! | part | job |
//! | --- | --- |
//! | [`opcode`] | the letters of the language |
//! | [`read`] | a machine that builds [`Node`]s and calls nobody: what Python would look up or call stays a name |
//! | [`view`] | walking what was read, with a budget |
//! | [`write`] | writing values so that Python reads them |
//!
//! # Invariants
//!
//! - **PK-1** Nothing is executed. A global is its name; a call is its callee and its arguments.
//! - **PK-2** What reading takes is proportional to the bytes that are read: every opcode makes at most one
//!   node, and none is made without an opcode.
//! - **PK-3** Walking ends: nodes may be shared, so that a few bytes stand for a value without end, but every
//!   step of a walk is paid for out of a budget, and depth is limited.

mod opcode;
mod read;
mod view;
mod write;

pub(crate) use read::Pickle;
pub(crate) use view::{Shape, View};
pub(crate) use write::Writer;

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
