//! What went wrong, as exceptions: the classes are Python's, in `farref/_errors.py`.

use farref::{Error, Misuse};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use serde::{Deserialize, Serialize};

/// An exception that a function raised, on its way to who called it.
#[derive(Clone, Debug, thiserror::Error, Serialize, Deserialize)]
#[error("{class}: {message}")]
pub(crate) struct Raised {
    /// Its class: `module.Class`, or `Class` of Python's own.
    class: String,
    message: String,
    /// As Python prints it.
    traceback: String,
    /// The exception itself, where it can be pickled.
    #[serde(with = "bytes")]
    pickle: Option<Vec<u8>>,
}

mod bytes {
    //! Bytes in one go.

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use farref::Blob;

    pub(super) fn serialize<S: Serializer>(
        bytes: &Option<Vec<u8>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        bytes.clone().map(Blob::from).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Option<Vec<u8>>, D::Error> {
        let bytes = Option::<Blob>::deserialize(from)?;
        Ok(bytes.map(|bytes| bytes.to_vec()))
    }
}

impl Raised {
    /// An exception of a function that was called.
    pub(crate) fn new(py: Python<'_>, error: &PyErr) -> Self {
        Self::described(py, error).unwrap_or_else(|failed| Self {
            class: "RuntimeError".to_owned(),
            message: format!("{error} (and it cannot be described: {failed})"),
            traceback: String::new(),
            pickle: None,
        })
    }

    fn described(py: Python<'_>, error: &PyErr) -> PyResult<Self> {
        let describe = py.import("farref._errors")?.getattr("describe")?;
        let value = error.value(py);
        if let Some(traceback) = error.traceback(py) {
            value.setattr("__traceback__", traceback)?;
        }
        let described = describe.call1((value,))?;
        let (class, message, traceback, pickle) = described.extract()?;
        Ok(Self {
            class,
            message,
            traceback,
            pickle,
        })
    }

    /// A function could not be run, because its interpreter ends.
    pub(crate) fn interpreter_ends() -> Self {
        Self {
            class: "RuntimeError".to_owned(),
            message: "the worker's Python is ending: end workers with shutdown() before their programs end".to_owned(),
            traceback: String::new(),
            pickle: None,
        }
    }

    /// The exception, for code of the same worker.
    pub(crate) fn again(&self, py: Python<'_>) -> PyErr {
        self.rebuilt(py, &self.to_string())
            .unwrap_or_else(|failed| failed)
    }

    /// The exception again, for who called.
    fn rebuilt(&self, py: Python<'_>, text: &str) -> PyResult<PyErr> {
        let rebuild = py.import("farref._errors")?.getattr("rebuild")?;
        let pickle = self.pickle.as_deref().map(|bytes| PyBytes::new(py, bytes));
        let exception =
            rebuild.call1((text, &self.class, &self.message, &self.traceback, pickle))?;
        Ok(PyErr::from_value(exception))
    }
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
        return raised.rebuilt(py, &text).unwrap_or_else(|failed| failed);
    }
    let class = class_of(&error);
    let made = || {
        let class = py.import("farref._errors")?.getattr(class)?;
        class.call1((text.as_str(),))
    };
    match made() {
        Ok(exception) => PyErr::from_value(exception),
        Err(_) => PyRuntimeError::new_err(text),
    }
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
