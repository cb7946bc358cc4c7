//! What went wrong, as exceptions: the classes are Python's, in `farref/_errors.py`.

use farref::{Error, Misuse};
use farref_pickle::{PyException, PythonError};
use pyo3::exceptions::{PyException as PyBaseClass, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

/// An exception that a function raised, on its way to who called it.
pub(crate) type Raised = PythonError;

/// An exception of a function that was called.
pub(crate) fn raised(py: Python<'_>, error: &PyErr) -> Raised {
    described(py, error).unwrap_or_else(|failed| {
        let message = format!("{error} (and it cannot be described: {failed})");
        Raised::new("RuntimeError".to_owned(), message, String::new(), None)
    })
}

fn described(py: Python<'_>, error: &PyErr) -> PyResult<Raised> {
    let describe = py.import("farref._errors")?.getattr("describe")?;
    let value = error.value(py);
    if let Some(traceback) = error.traceback(py) {
        value.setattr("__traceback__", traceback)?;
    }
    let described = describe.call1((value,))?;
    let (class, message, traceback, pickle) = described.extract()?;
    Ok(Raised::new(class, message, traceback, pickle))
}

/// A function could not be run, because its interpreter ends.
pub(crate) fn interpreter_ends() -> Raised {
    let message =
        "the worker's Python is ending: end workers with shutdown() before their programs end";
    let class = "RuntimeError".to_owned();
    Raised::new(class, message.to_owned(), String::new(), None)
}

/// The exception, for code of the same worker.
pub(crate) fn again(py: Python<'_>, raised: &Raised) -> PyErr {
    rebuilt(py, raised, &raised.to_string()).unwrap_or_else(|failed| failed)
}

/// The exception again, for who called.
fn rebuilt(py: Python<'_>, raised: &Raised, text: &str) -> PyResult<PyErr> {
    let rebuild = py.import("farref._errors")?.getattr("rebuild")?;
    let pickle = raised.pickle().map(|bytes| PyBytes::new(py, bytes));
    let parts = (raised.class(), raised.message(), raised.traceback());
    let exception = rebuild.call1((text, parts.0, parts.1, parts.2, pickle))?;
    Ok(PyErr::from_value(exception))
}

/// An exception as its class and message.
pub(crate) fn one_line(py: Python<'_>, error: &PyErr) -> String {
    let class = error
        .get_type(py)
        .name()
        .map_or_else(|_| "an exception".to_owned(), |name| name.to_string());
    format!("{class}: {}", error.value(py))
}

/// An error of farref's as an exception.
pub(crate) fn to_python(py: Python<'_>, error: Error) -> PyErr {
    let text = error.to_string();
    if let Some(raised) = error.downcast_ref::<Raised>() {
        return rebuilt(py, raised, &text).unwrap_or_else(|failed| failed);
    }
    let class = class_of(&error);
    let made = || {
        // A Rust function may say which class it means.
        if let Some(exception) = PyException::of(&error) {
            let class = py.import("builtins")?.getattr_opt(exception.class())?;
            if let Some(class) = class.filter(is_exception) {
                return class.call1((exception.message(),));
            }
        }
        let class = py.import("farref._errors")?.getattr(class)?;
        class.call1((text.as_str(),))
    };
    match made() {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(text),
    }
}

/// Whether it is a class of exceptions, and none of those that end a program.
fn is_exception(class: &Bound<'_, PyAny>) -> bool {
    let exception = class.py().get_type::<PyBaseClass>();
    class
        .cast::<PyType>()
        .is_ok_and(|class| class.is_subclass(&exception).unwrap_or(false))
}

/// A class for each kind.
fn class_of(error: &Error) -> &'static str {
    match error {
        Error::Remote(_) => "RemoteError",
        Error::PeerLost { .. } => "PeerLost",
        Error::OwnerLost { .. } => "OwnerLost",
        Error::CreatorLost { .. } => "CreatorLost",
        Error::ContextLost { .. } => "ContextLost",
        Error::ContextReleased => "ContextReleased",
        Error::Timeout { .. } => "Timeout",
        Error::Deadlock { .. } => "Deadlock",
        Error::NotAuthorized { .. } => "NotAuthorized",
        Error::TooManyCalls { .. } => "TooManyCalls",
        Error::Cancelled { .. } => "Cancelled",
        Error::NoSuchFunction { .. } | Error::SignatureMismatch { .. } | Error::TypeMismatch(_) => {
            "Mismatch"
        }
        Error::Codec { .. } | Error::NotSerializable { .. } => "CannotBeSent",
        Error::NotOwner { .. } => "NotOwner",
        Error::NoSuchPeer { .. } => "NoSuchPeer",
        Error::Reference(_) | Error::ForeignReference { .. } => "ReferenceMisused",
        Error::NotMember { .. } => "NotMember",
        Error::Evicted { .. } => "Evicted",
        Error::Minority { .. } => "Minority",
        Error::Rendezvous(_) => "RendezvousError",
        Error::Bind(_) | Error::Config(_) | Error::DuplicateFunction { .. } => "ConfigError",
        Error::Misuse(Misuse::NotLinked) => "ConfigError",
        Error::ShutdownTimeout { .. } => "ShutdownTimeout",
        Error::Leaked(_) => "Leaked",
        _ => "Error",
    }
}
