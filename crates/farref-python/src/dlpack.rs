//! Memory of small tensors: read where it is, and made a tensor in one step, by DLPack's structure in a capsule, as
//! `torch._C._from_dlpack` takes it.
//!
//! # Invariants
//!
//! - **DL-1** What is said of a tensor fits its memory ([`SmallTensor::layout`]): whoever sent it may have said anything.
//! - **DL-2** The memory belongs to whoever has taken it out of the capsule, which then has another name, and otherwise to the
//!   capsule. Who has it gives it back once, by the deleter, on any thread and without the interpreter.

use std::ffi::{CStr, c_void};

use farref_pickle::small_tensors::SmallTensor;
use pyo3::ffi::{self, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

/// Capsules that nobody has taken a tensor out of.
const FRESH: &CStr = c"dltensor";

/// `kDLCPU`
const CPU: i32 = 1;

/// `DLDataType`
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Elements {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// `DLTensor`
#[repr(C)]
struct RawTensor {
    data: *mut c_void,
    device_type: i32,
    device_id: i32,
    ndim: i32,
    elements: Elements,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// `DLManagedTensor`
#[repr(C)]
struct Managed {
    tensor: RawTensor,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// What a tensor consists of. What `managed` points to is here, on the heap, and is not touched by anybody else.
struct Owned {
    managed: Managed,
    /// Aligned as memory for any type of elements.
    memory: Vec<u128>,
    shape: Vec<i64>,
    strides: Vec<i64>,
}

/// A type of elements.
struct Kind {
    /// As PyTorch calls it.
    name: &'static str,
    bytes: u8,
    /// `DLDataTypeCode`, if all versions of PyTorch take it so.
    code: Option<u8>,
}

const fn kind(name: &'static str, bytes: u8, code: Option<u8>) -> Kind {
    Kind { name, bytes, code }
}

const SIGNED: Option<u8> = Some(0);
const UNSIGNED: Option<u8> = Some(1);
const FLOAT: Option<u8> = Some(2);
const BFLOAT: Option<u8> = Some(4);

/// In messages types of elements are places in this list, so new ones are put at its end.
const KINDS: [Kind; 18] = [
    kind("float32", 4, FLOAT),
    kind("float64", 8, FLOAT),
    kind("float16", 2, FLOAT),
    kind("bfloat16", 2, BFLOAT),
    kind("uint8", 1, UNSIGNED),
    kind("int8", 1, SIGNED),
    kind("int16", 2, SIGNED),
    kind("int32", 4, SIGNED),
    kind("int64", 8, SIGNED),
    kind("bool", 1, None),
    kind("complex64", 8, None),
    kind("complex128", 16, None),
    kind("complex32", 4, None),
    kind("uint16", 2, None),
    kind("uint32", 4, None),
    kind("uint64", 8, None),
    kind("float8_e4m3fn", 1, None),
    kind("float8_e5m2", 1, None),
];

/// The names of all types of elements, with their bytes, in their places.
#[pyfunction]
pub(crate) fn torch_elements() -> Vec<(&'static str, u8)> {
    KINDS.iter().map(|kind| (kind.name, kind.bytes)).collect()
}

/// The type in this place, if a tensor of it can be made in one step.
fn elements(place: u8) -> Option<Elements> {
    let kind = KINDS.get(usize::from(place))?;
    Some(Elements {
        code: kind.code?,
        bits: 8 * kind.bytes,
        lanes: 1,
    })
}

fn aligned(bytes: &[u8]) -> Vec<u128> {
    let (whole, rest) = bytes.as_chunks::<16>();
    let mut memory = Vec::with_capacity(whole.len() + 1);
    memory.extend(whole.iter().map(|bytes| u128::from_ne_bytes(*bytes)));
    let mut last = [0; 16];
    for (to, from) in last.iter_mut().zip(rest) {
        *to = *from;
    }
    memory.push(u128::from_ne_bytes(last));
    memory
}

/// A copy of its memory, to be made a tensor. None if it does not fit (DL-1), or the type of its elements is not known to all.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    tensor: &SmallTensor<'_>,
) -> Option<PyResult<Bound<'py, PyAny>>> {
    let elements = elements(tensor.kind)?;
    let (shape, strides) = tensor.layout(elements.bits / 8)?;
    let ndim = i32::try_from(shape.len()).ok()?;
    let mut owned = Box::new(Owned {
        managed: Managed {
            tensor: RawTensor {
                data: std::ptr::null_mut(),
                device_type: CPU,
                device_id: 0,
                ndim,
                elements,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
            },
            manager: std::ptr::null_mut(),
            deleter: Some(delete),
        },
        memory: aligned(tensor.memory),
        shape,
        strides,
    });
    owned.managed.tensor.data = owned.memory.as_mut_ptr().cast();
    owned.managed.tensor.shape = owned.shape.as_mut_ptr();
    owned.managed.tensor.strides = owned.strides.as_mut_ptr();
    let owned = Box::into_raw(owned);
    // SAFETY: It was made just now, and nobody else has it.
    let managed = unsafe {
        (*owned).managed.manager = owned.cast();
        &raw mut (*owned).managed
    };
    // SAFETY: The interpreter is attached, and the name lives for ever. What the capsule has stays where it is (DL-2).
    let made = unsafe {
        let capsule = ffi::PyCapsule_New(managed.cast(), FRESH.as_ptr(), Some(forget));
        Bound::from_owned_ptr_or_err(py, capsule)
    };
    if made.is_err() {
        // SAFETY: Nobody has got it.
        unsafe { delete(managed) };
    }
    Some(made)
}

/// A copy of so many bytes of a tensor's memory, which its caller has in its hands. Where ctypes has the same, it takes ten times as
/// long after a wait.
#[pyfunction]
pub(crate) fn torch_bytes(py: Python<'_>, address: usize, number: usize) -> Bound<'_, PyBytes> {
    if address == 0 || isize::try_from(number).is_err() {
        return PyBytes::new(py, &[]);
    }
    // SAFETY: `farref.torch._tensors` says what PyTorch has told it of a tensor that it refers to while this runs. With the interpreter
    // attached this is as good as ctypes: only code of this package calls it.
    let bytes = unsafe { std::slice::from_raw_parts(address as *const u8, number) };
    PyBytes::new(py, bytes)
}

/// DL-2
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: It is called once, with what `capsule` has made, by whoever has it.
    drop(unsafe { Box::from_raw((*managed).manager.cast::<Owned>()) });
}

/// A capsule goes. If its tensor was taken out, it is that one's (DL-2).
unsafe extern "C" fn forget(capsule: *mut PyObject) {
    // SAFETY: Python calls this for a capsule of `capsule`'s, with the interpreter attached.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, FRESH.as_ptr()) != 0 {
            delete(ffi::PyCapsule_GetPointer(capsule, FRESH.as_ptr()).cast());
        }
    }
}
