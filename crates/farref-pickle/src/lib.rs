//! Rust and Python workers in one group, on farref's own wire.
//!
//! A group may have workers of both kinds: Rust programs, and Python programs that use the package `farref`. Each calls
//! the other's functions by their Python names. A Rust program needs this crate for it: with it, its values are written
//! as the pickles that Python reads, and Python's pickles are read as data. **Nothing of a pickle is executed.**
//!
//! Python calls what Rust declares with `python = ".."`:
//!
//! ```
//! use farref_pickle as _; // so that it is linked
//!
//! #[farref::remote(python = "maths.double")]
//! async fn double(number: i64) -> i64 {
//!     2 * number
//! }
//! ```
//!
//! ```python
//! me.peer("rust").call("maths.double", 21)  # 42
//! ```
//!
//! Rust calls Python's functions with [`py_call`], leaves their results there with [`py_remote`], and calls methods with
//! [`py_method`]. The caller need not know which kind of worker it calls: `py_call` finds Rust functions as well.
//!
//! | Rust | Python |
//! | --- | --- |
//! | `()`, `None` | `None` |
//! | `bool`, numbers, `String` | `bool`, `int`, `float`, `str` |
//! | [`Blob`](farref::Blob) | `bytes`; read also from what lends its memory, as numpy's arrays do |
//! | [`Buffer`](farref::Buffer) | `memoryview`, without a copy; read from the same |
//! | `Vec<T>` and other sequences | `list` |
//! | tuples | `tuple` |
//! | maps | `dict` |
//! | structs | `dict` of the fields; read also from objects with such attributes, and from tuples, named or not |
//! | variants without values | their name, a `str` |
//! | other variants | a `dict` of one: the name and the value |
//! | [`RRef<T>`](farref::RRef) | `farref.RRef` |
//! | [`Peer`](farref::Peer) | `farref.Peer` |
//! | `farref_autograd::Tensor` | `torch.Tensor`, without a copy; of numpy where there is no torch. Read from either |
//! | `Vec<f32>`, `Vec<Vec<i64>>`, .. | read also from tensors and arrays of so many dimensions |
//! | `f64`, `i64`, `bool`, .. | read also from numbers of numpy's, and tensors that are one number |
//! | [`PyValue`] | any plain data |
//!
//! Tensors are data on this way. Contexts of autograd do not cross languages: inside of one, a tensor that needs gradients is
//! refused in either direction with an error that says so, and one that is detached goes.
//!
//! Python has one `None`: `Some(None)` and `Some(())` are read back as `None`.
//!
//! An exception that a function of Python raises is an [`Error::Remote`](farref::Error::Remote) here, and a
//! [`PythonError`] if it is asked ([`Error::downcast_ref`](farref::Error::downcast_ref)). An error of a Rust function is
//! a `farref.RemoteError` there, or of the class that [`PyException`] names.

#![forbid(unsafe_code)]

mod exception;
#[cfg(any(test, feature = "fuzzing"))]
mod fuzzing;
mod native;
#[doc(hidden)]
#[expect(missing_debug_implementations, reason = "for farref's own crates")]
pub mod pickle;
#[doc(hidden)]
pub mod small_tensors;
#[doc(hidden)]
pub mod torch_message;
#[doc(hidden)]
#[expect(missing_debug_implementations, reason = "for farref's own crates")]
pub mod value;

pub use exception::PyException;
#[doc(hidden)]
pub use exception::{builtin, split};
pub use native::{PyCall, PyObject, PyValue, PythonError, py_call, py_method, py_remote};
pub use pickle::PickleError;
pub use value::rest::{Keywords, Rest};

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::fuzzing::values;
}
