//! What is asked of `farref.torch._calls`, which says what calls of PyTorch's layer are.

use farref::Error;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

use crate::errors::to_python;
use crate::objects::Object;
use crate::torch_message::arrived;

/// A function of `farref.torch._calls`.
pub(crate) fn helper<'py>(
    py: Python<'py>,
    found: &'static PyOnceLock<Py<PyAny>>,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    helper_of(py, found, "farref.torch._calls", name)
}

/// A function of another module.
pub(crate) fn helper_of<'py>(
    py: Python<'py>,
    found: &'static PyOnceLock<Py<PyAny>>,
    module: &str,
    name: &str,
) -> PyResult<&'py Bound<'py, PyAny>> {
    let find = || Ok::<_, PyErr>(py.import(module)?.getattr(name)?.unbind());
    Ok(found.get_or_try_init(py, find)?.bind(py))
}

/// Where a call goes, and what is done about its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    /// PyTorch's number of the other worker.
    pub(crate) to: u32,
    pub(crate) seconds: Option<f64>,
}

impl Route {
    /// What a call ended with, for PyTorch's layer.
    pub(crate) fn read(
        self,
        py: Python<'_>,
        outcome: Result<Object, Error>,
    ) -> PyResult<Py<PyAny>> {
        static VALUE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        static ERROR: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        match outcome {
            Ok(Object::Pickled(message)) => {
                let message = arrived(py, message)?;
                let value = helper(py, &VALUE, "answered")?.call1((self.to, message))?;
                Ok(value.unbind())
            }
            Ok(_) => Err(no_message()),
            Err(error) => {
                let error = to_python(py, error).into_value(py);
                let error = helper(py, &ERROR, "as_torch_says")?.call1((error, self.seconds))?;
                Err(PyErr::from_value(error))
            }
        }
    }
}

/// What came is something else.
pub(crate) fn no_message() -> PyErr {
    PyRuntimeError::new_err("what came is no message of PyTorch's layer")
}
