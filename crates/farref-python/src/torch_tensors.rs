//! Small tensors beside messages of PyTorch's layer ([`small_tensors`]), as `farref.torch._tensors` has them: tuples, in which
//! those that have come are [capsules](crate::dlpack) where they can be.

use farref_pickle::small_tensors::{self, SmallTensor};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyInt, PyList, PyTuple};

use crate::dlpack;

/// What is beside a message, if it is tensors that go so and nothing else.
pub(crate) fn write(beside: &Bound<'_, PyAny>) -> Option<Vec<u8>> {
    let beside = beside.cast::<PyTuple>().ok()?;
    let (tensors, forks, late) = (item(beside, 0)?, item(beside, 1)?, item(beside, 2)?);
    if !forks.is_none() || !late.is_none() {
        return None;
    }
    let tensors = tensors.cast::<PyList>().ok()?;
    let mut bytes = small_tensors::begin(tensors.len())?;
    for tensor in tensors {
        write_one(&mut bytes, tensor.cast::<PyTuple>().ok()?)?;
    }
    Some(bytes)
}

fn item<'py>(tuple: &Bound<'py, PyTuple>, index: usize) -> Option<Bound<'py, PyAny>> {
    tuple.get_item(index).ok()
}

fn write_one(bytes: &mut Vec<u8>, tensor: &Bound<'_, PyTuple>) -> Option<()> {
    // First what most often is not so: the memory of larger ones is lent.
    let memory = item(tensor, 4)?;
    let memory = memory.cast::<PyBytes>().ok()?;
    let (kind, stride) = (item(tensor, 0)?, item(tensor, 2)?);
    if !kind.is_exact_instance_of::<PyInt>() || !stride.is_none() {
        return None;
    }
    let size = item(tensor, 1)?;
    let size = size.cast::<PyTuple>().ok()?;
    let size = size.iter().map(|length| length.extract().ok());
    let tensor = SmallTensor {
        kind: kind.extract().ok()?,
        wants: item(tensor, 3)?.extract().ok()?,
        size: size.collect::<Option<_>>()?,
        memory: memory.as_bytes(),
    };
    tensor.write(bytes)
}

/// What is beside a message that has come, as it was before it was sent.
pub(crate) fn into_python<'py>(
    py: Python<'py>,
    tensors: Vec<SmallTensor<'_>>,
) -> PyResult<Bound<'py, PyTuple>> {
    let written = PyList::empty(py);
    for tensor in tensors {
        if let Some(capsule) = dlpack::capsule(py, &tensor) {
            written.append((py.None(), py.None(), py.None(), tensor.wants, capsule?))?;
            continue;
        }
        let (size, memory) = (
            PyTuple::new(py, tensor.size)?,
            PyByteArray::new(py, tensor.memory),
        );
        written.append((tensor.kind, size, py.None(), tensor.wants, memory))?;
    }
    (written, py.None(), py.None()).into_pyobject(py)
}
