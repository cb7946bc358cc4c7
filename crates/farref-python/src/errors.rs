//! What went wrong, as exceptions: the classes are Python's, in `farref/_errors.py`.

use farref::{Error, Misuse};
use farref_pickle::{PyException, PythonError};
use pyo3::exceptions::{
    PyAttributeError, PyException as PyBaseClass, PyImportError, PyRuntimeError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::interpreter;

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

/// Something that came cannot be read: what reading it raised is the cause. What is to end a program does so.
pub(crate) fn unreadable(py: Python<'_>, error: PyErr, what: &str) -> PyErr {
    let is_missing =
        error.is_instance_of::<PyImportError>(py) || error.is_instance_of::<PyAttributeError>(py);
    if !is_missing {
        return not_sent(py, error, "CannotBeSent", |why| {
            format!("{what} cannot be read: {why}")
        });
    }
    not_sent(py, error, "Mismatch", |why| {
        format!(
            "{what} cannot be read: {why}. Functions and classes travel by their names: both workers need them, in a module \
             that both can import"
        )
    })
}

/// Something cannot be pickled.
pub(crate) fn unsendable(py: Python<'_>, error: PyErr, what: &str) -> PyErr {
    not_sent(py, error, "CannotBeSent", |why| {
        format!("{what} cannot be pickled: {why}")
    })
}

fn not_sent(py: Python<'_>, error: PyErr, class: &str, text: impl FnOnce(&str) -> String) -> PyErr {
    let is_ours = || {
        let ours = py.import("farref._errors")?.getattr("Error")?;
        error.value(py).is_instance(&ours)
    };
    if !error.is_instance_of::<PyBaseClass>(py) || is_ours().unwrap_or(false) {
        return error;
    }
    let told = exception(py, class, &text(&one_line(py, &error)));
    told.set_cause(py, Some(error));
    told
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
    // A Rust function may say which class it means.
    if let Some(named) = PyException::of(&error)
        && let Some(class) = builtin(py, named.class())
    {
        return instance(Ok(class), named.message(), &text);
    }
    exception(py, class_of(&error), &in_python(text))
}

/// How Python calls what the texts of errors advise to.
const TERMS: [(&str, &str); 6] = [
    ("`wait_for_peer` would", "`peer(name, wait=seconds)` would"),
    ("`Worker::lookup`", "`worker.lookup(name)`"),
    (
        "call `.rendezvous(\"tcp://host:port\")`",
        "say `farref.join(rendezvous=\"tcp://host:port\")`",
    ),
    ("`.insecure()`", "`insecure=True`"),
    ("`.token(..)`", "`token=..`"),
    ("`.tls(..)`", "`tls=..`"),
];

fn in_python(mut text: String) -> String {
    for (rust, python) in TERMS {
        if text.contains(rust) {
            text = text.replace(rust, python);
        }
    }
    if text.starts_with("the lookup of") {
        text = text.replace("`.timeout(..)`", "`timeout=..`");
    }
    text
}

/// One of Python's own classes of exceptions.
fn builtin<'py>(py: Python<'py>, name: &str) -> Option<Bound<'py, PyAny>> {
    let class = py.import("builtins").ok()?.getattr_opt(name).ok()??;
    is_exception(&class).then_some(class)
}

/// An exception of one of farref's own classes.
pub(crate) fn exception(py: Python<'_>, class: &str, text: &str) -> PyErr {
    let errors = py.import("farref._errors");
    instance(errors.and_then(|errors| errors.getattr(class)), text, text)
}

/// An exception of a class; if there can be none, one that says as much.
fn instance(class: PyResult<Bound<'_, PyAny>>, message: &str, text: &str) -> PyErr {
    match class.and_then(|class| class.call1((message,))) {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(text.to_owned()),
    }
}

/// IN-2: nothing is to be done in a process that was forked off.
pub(crate) fn alive() -> PyResult<()> {
    if !interpreter::has_forked() {
        return Ok(());
    }
    let text = "this process was forked off from a worker, whose threads and connections it does not have: start \
                processes with multiprocessing's \"spawn\" or with `farref launch`, and let each join by itself";
    Err(Python::attach(|py| exception(py, "Forked", text)))
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
