//! What stands in pickles for what travels beside them: functions that Python calls when it reads one, by these names.

use pyo3::prelude::*;

use crate::objects;
use crate::peers::PyPeer;
use crate::references::PyRRef;

/// The reference that a pickle has at this place.
#[pyfunction]
pub(crate) fn _reference(index: usize) -> PyResult<PyRRef> {
    objects::received_reference(index).map(PyRRef::new)
}

/// The peer that a pickle has at this place.
#[pyfunction]
pub(crate) fn _peer(index: usize) -> PyResult<PyPeer> {
    objects::received_peer(index).map(PyPeer::new)
}

/// Whether the value that is being unpickled came inside of a context.
#[pyfunction]
pub(crate) fn _came_in_context() -> bool {
    objects::came_in_context()
}
