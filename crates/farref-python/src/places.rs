//! The lines of the program that make references, which leak reports name.

use farref::functions::Place;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// What is said of a value that stays with its worker.
pub(crate) enum Made<'a, 'py> {
    /// A call of this makes it.
    By(&'a Bound<'py, PyAny>),
    /// A call of this method.
    ByMethod(&'a str),
    /// It is this.
    Value(&'a Bound<'py, PyAny>),
}

/// Makes a reference, for the line of the program that asks for it.
pub(crate) fn make<T>(py: Python<'_>, made: &Made<'_, '_>, make: impl FnOnce() -> T) -> T {
    // Where it cannot be known, for what reason ever, the reference is made all the same.
    match here(py, made) {
        Ok(place) => place.enter(make),
        Err(_) => make(),
    }
}

fn here(py: Python<'_>, made: &Made<'_, '_>) -> PyResult<Place> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let module =
        MODULE.get_or_try_init(py, || Ok::<_, PyErr>(py.import("farref._places")?.unbind()))?;
    let module = module.bind(py);
    let (file, line): (String, u32) = module.call_method0(intern!(py, "line"))?.extract()?;
    let what = match made {
        Made::By(called) => {
            let what = module.call_method1(intern!(py, "made_by"), (called,))?;
            what.extract::<String>()?
        }
        Made::ByMethod(method) => format!("result of the method `{method}`"),
        Made::Value(value) => value.get_type().qualname()?.to_string(),
    };
    Ok(Place::new(&file, line, &what))
}
