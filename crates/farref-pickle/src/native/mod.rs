//! Values and calls between Rust and Python workers, on farref's own wire.
//!
//! | part | job |
//! | --- | --- |
//! | [`wire`] | a value's bytes behind the mark of the foreign form |
//! | [`codec`] | Rust values as those bytes |
//! | [`calls`] | calling Python |
//! | [`data`] | Python data as a Rust enum |
//! | [`raised`] | exceptions of Python's |

mod calls;
mod codec;
mod data;
mod raised;
#[cfg(test)]
mod tests;
mod wire;

pub use calls::{PyCall, PyObject, py_call, py_method, py_remote};
pub use data::PyValue;
pub use raised::PythonError;
