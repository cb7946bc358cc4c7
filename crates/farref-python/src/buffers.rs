//! Memory of Python's objects as buffers of messages, and the other way round.
//!
//! Python's buffer protocol is in the stable interface of Python 3.11 and later;
//! what is used of it here has the same layout in 3.10, so it is declared by hand.
//!
//! # Invariants
//!
//! - **PB-1** Memory that was lent is given back exactly once, with the interpreter attached, and never by a thread of the
//!   wire: [`errands`](crate::errands) does it.
//! - **PB-2** Memory that a Python object shows is its own: nothing else in the process writes to it or reads it.

use std::ffi::{c_char, c_int, c_void};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use farref::{Blob, Buffer, Source, Width};
use pyo3::exceptions::{PyBufferError, PyMemoryError};
use pyo3::ffi::{Py_ssize_t, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::errands;

/// `Py_buffer`.
#[repr(C)]
struct RawView {
    buf: *mut c_void,
    obj: *mut PyObject,
    len: Py_ssize_t,
    itemsize: Py_ssize_t,
    readonly: c_int,
    ndim: c_int,
    format: *mut c_char,
    shape: *mut Py_ssize_t,
    strides: *mut Py_ssize_t,
    suboffsets: *mut Py_ssize_t,
    internal: *mut c_void,
}

/// `PyBUF_SIMPLE`: contiguous bytes.
const SIMPLE: c_int = 0;

unsafe extern "C" {
    fn PyObject_GetBuffer(object: *mut PyObject, view: *mut RawView, flags: c_int) -> c_int;
    fn PyBuffer_Release(view: *mut RawView);
}

/// A view into a Python object's memory, which the object keeps where it is until the view is released.
struct View(Box<RawView>);

// SAFETY: The memory is pinned by the view until `PyBuffer_Release`; reading it needs no interpreter. A program that
// writes to it meanwhile changes what is sent, as with every system that sends without a copy: what is read of it is bytes,
// for which every value is a valid one, and nothing here relies on reading the same twice.
unsafe impl Send for View {}
// SAFETY: As above; it is only read.
unsafe impl Sync for View {}

impl View {
    fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(RawView {
            buf: std::ptr::null_mut(),
            obj: std::ptr::null_mut(),
            len: 0,
            itemsize: 0,
            readonly: 0,
            ndim: 0,
            format: std::ptr::null_mut(),
            shape: std::ptr::null_mut(),
            strides: std::ptr::null_mut(),
            suboffsets: std::ptr::null_mut(),
            internal: std::ptr::null_mut(),
        });
        // SAFETY: The object is alive, the interpreter attached, and the view stays where it is until it is released.
        if unsafe { PyObject_GetBuffer(object.as_ptr(), &raw mut *view, SIMPLE) } != 0 {
            return Err(PyErr::take(object.py())
                .unwrap_or_else(|| PyBufferError::new_err("the object lends no buffer")));
        }
        Ok(Self(view))
    }

    fn bytes(&self) -> &[u8] {
        match usize::try_from(self.0.len) {
            Ok(0) | Err(_) => &[],
            // SAFETY: The view says that so many bytes are there, and it has not been released.
            Ok(len) => unsafe { std::slice::from_raw_parts(self.0.buf.cast(), len) },
        }
    }

    fn release(mut self, _attached: Python<'_>) {
        // SAFETY: The interpreter is attached, and nobody has released it before: this takes it (PB-1).
        unsafe { PyBuffer_Release(&raw mut *self.0) }
    }
}

/// Memory that a Python object has lent, until this is dropped.
struct Lent {
    view: Option<View>,
    width: Width,
}

impl Lent {
    fn bytes(&self) -> &[u8] {
        self.view.as_ref().map_or(&[], View::bytes)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(view) = self.view.take() {
            errands::run(move |py| view.release(py));
        }
    }
}

impl Source for Lent {
    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Whoever receives it has memory of that, on whose alignment the elements can rely.
    fn width(&self) -> Width {
        self.width
    }

    fn look(&self, range: Range<usize>, look: &mut dyn FnMut(&[u8])) {
        look(self.bytes().get(range).unwrap_or_default());
    }

    fn address(&self) -> Option<usize> {
        Some(self.bytes().as_ptr().addr())
    }
}

/// Smaller ones are copied: that takes less time than giving them back.
const LARGE: usize = 64 << 10;

/// The memory of an object. If it is large and does not change it is not copied: it belongs to the message until that has
/// arrived. `item`: how many bytes an element of it has.
pub(crate) fn lend(object: &Bound<'_, PyAny>, item: usize, may_change: bool) -> PyResult<Buffer> {
    let view = View::of(object)?;
    let width = match item {
        // Numbers of more bytes consist of such, as complex ones do.
        item if item.is_multiple_of(8) => Width::Eight,
        4 => Width::Four,
        2 => Width::Two,
        _ => Width::One,
    };
    let width = match view.bytes().len().is_multiple_of(width.bytes()) {
        true => width,
        false => Width::One,
    };
    if may_change || view.bytes().len() < LARGE {
        let copied = copied(view.bytes(), width);
        view.release(object.py());
        return Ok(copied);
    }
    let lent = Lent {
        view: Some(view),
        width,
    };
    Ok(Buffer::from_source(Arc::new(lent)))
}

fn copied(bytes: &[u8], width: Width) -> Buffer {
    macro_rules! numbers {
        ($number:ty) => {{
            let mut numbers: Vec<$number> = vec![0; bytes.len() / size_of::<$number>()];
            bytemuck::cast_slice_mut(&mut numbers).copy_from_slice(bytes);
            numbers.into()
        }};
    }
    match width {
        Width::One => bytes.to_vec().into(),
        Width::Two => numbers!(u16),
        Width::Four => numbers!(u32),
        Width::Eight => numbers!(u64),
    }
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}

/// The bytes of an object, which nobody can change, in the same way.
pub(crate) fn lend_bytes(object: &Bound<'_, PyBytes>) -> PyResult<Blob> {
    let lent = Lent {
        view: Some(View::of(object)?),
        width: Width::One,
    };
    Ok(Bytes::from_owner(lent).into())
}

/// How many references there are to an object.
pub(crate) fn references(object: &Bound<'_, PyAny>) -> isize {
    // SAFETY: The object is alive, and the interpreter attached.
    unsafe { pyo3::ffi::Py_REFCNT(object.as_ptr()) }
}

/// Memory that came with a message, and belongs to a Python object now.
#[pyclass(frozen, module = "farref._core")]
pub(crate) struct Received(Numbers);

/// As vectors of elements of the width that they came with: so they need not be copied.
enum Numbers {
    One(Vec<u8>),
    Two(Vec<u16>),
    Four(Vec<u32>),
    Eight(Vec<u64>),
    /// Bytes that are only read.
    Kept(Bytes),
}

impl Numbers {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::One(numbers) => numbers,
            Self::Two(numbers) => bytemuck::cast_slice(numbers),
            Self::Four(numbers) => bytemuck::cast_slice(numbers),
            Self::Eight(numbers) => bytemuck::cast_slice(numbers),
            Self::Kept(bytes) => bytes,
        }
    }
}

impl Received {
    /// Bytes that are only read.
    pub(crate) fn kept(blob: Blob) -> Self {
        Self(Numbers::Kept(blob.into_bytes()))
    }

    pub(crate) fn new(buffer: Buffer) -> PyResult<Self> {
        let no_memory =
            |error| PyMemoryError::new_err(format!("a buffer that came cannot be kept: {error}"));
        Ok(Self(match buffer.width() {
            Width::One => Numbers::One(buffer.into_vec().map_err(no_memory)?),
            Width::Two => Numbers::Two(buffer.into_vec().map_err(no_memory)?),
            Width::Four => Numbers::Four(buffer.into_vec().map_err(no_memory)?),
            Width::Eight => Numbers::Eight(buffer.into_vec().map_err(no_memory)?),
        }))
    }
}

#[pymethods]
impl Received {
    /// Where it begins. Python makes an array of it that keeps this object.
    #[getter]
    fn address(&self) -> usize {
        self.0.bytes().as_ptr().addr()
    }

    /// How many bytes it has.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.bytes().len()
    }
}
