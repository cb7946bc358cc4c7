//! Rust values as Python data: a serde format whose bytes are pickles.
//!
//! What of a pickle is no plain data (references, memory beside it, workers, tensors) is up to the wire that it travels
//! on: [`Special`] reads it, [`Outward`] writes it.
//!
//! | part | job |
//! | --- | --- |
//! | [`error`] | what is wrong with a value |
//! | [`write`](mod@write) | serde to pickle |
//! | [`read`] | pickle to serde |
//! | [`captured`] | what types of the runtime write of themselves |
//! | [`mod@array`] | tensors and arrays of numbers |
//! | [`named`], [`names`] | what Python finds by its name |
//! | [`rest`] | `*args` and `**kwargs` |
//!
//! # Invariants
//!
//! - **VC-1** Reading takes in proportion to the bytes that came: walks of the pickle are paid for out of its
//!   budget, and how deep values nest is limited.
//! - **VC-2** A value that was written here is read here as what it was.

pub mod array;
pub mod captured;
pub mod error;
pub mod named;
pub mod names;
pub mod read;
pub mod rest;
pub mod write;

pub use array::{Array, Element, TENSOR};
pub use captured::{Captured, Fields};
pub use error::{TOO_LARGE, ValueError};
pub use named::Named;
pub use names::{split_name, text_of, write_name};
pub use read::{Beside, Pair, Special, Value, keywords, read_arguments, read_value, unpacked};
pub use rest::Tuple;
pub use write::{Outward, write_value};
