//! Values and calls between Rust and Python workers, on farref's own wire.
//!
//! | part | job |
//! | --- | --- |
//! | [`wire`] | a value's bytes behind the mark of the foreign form |
//! | [`codec`] | Rust values as those bytes |
//! | [`arrays`] | tensors and arrays in them |
//! | [`calls`] | calling Python |
//! | [`data`] | Python data as a Rust enum |
//! | [`raised`] | exceptions of Python's |

mod arrays;
mod calls;
mod codec;
mod data;
mod raised;
#[cfg(test)]
mod tensor_tests;
#[cfg(test)]
mod tests;
mod wire;

pub use calls::{PyCall, PyObject, py_call, py_method, py_remote};
pub use data::PyValue;
pub use raised::PythonError;

/// For fuzzers.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing {
    use farref::{Blob, Width};

    pub(crate) use super::codec::PickleCodec;
    use super::wire::{Bytes, Memory, Wire};

    /// The bytes of a value with that pickle, and with memory beside it.
    pub(crate) fn body_of(pickle: &[u8], is_call: bool) -> Vec<u8> {
        let memory = |width, bytes: &[u8]| Memory::Here(width, Bytes::of(bytes));
        let wire = Wire {
            is_call,
            pickle: Blob::from(pickle.to_vec()),
            buffers: vec![
                memory(Width::Four, &[0, 0, 128, 63, 0, 0, 0, 64]),
                memory(Width::Eight, &[1; 16]),
                memory(Width::One, b""),
            ],
            references: vec![0],
            peers: Vec::new(),
        };
        postcard::to_allocvec(&wire).unwrap_or_default()
    }
}
