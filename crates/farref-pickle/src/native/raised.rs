//! Exceptions that functions of Python raised.

use farref::Blob;
use serde::{Deserialize, Serialize};

/// An exception that a function of Python raised, on its way to who called it.
///
/// ```no_run
/// # async fn example(worker: &farref::Worker) -> farref::Result<()> {
/// use farref_pickle::{PythonError, py_call};
///
/// let python = worker.peer("python")?;
/// let error = py_call::<f64>(&python, "math.sqrt", (-1.0,)).await.unwrap_err();
/// let raised: &PythonError = error.downcast_ref().expect("an exception");
/// assert_eq!((raised.class(), raised.message()), ("ValueError", "math domain error"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{class}: {message}")]
pub struct PythonError {
    class: String,
    message: String,
    traceback: String,
    pickle: Option<Blob>,
}

impl PythonError {
    /// An exception of that class, with a pickle of it if there can be one.
    #[doc(hidden)]
    pub fn new(class: String, message: String, traceback: String, pickle: Option<Vec<u8>>) -> Self {
        Self {
            class,
            message,
            traceback,
            pickle: pickle.map(Blob::from),
        }
    }

    /// Its class: `module.Class`, or `Class` of Python's own.
    pub fn class(&self) -> &str {
        &self.class
    }

    /// What it says.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Where it was raised, as Python prints it. Empty if that is not known.
    pub fn traceback(&self) -> &str {
        &self.traceback
    }

    /// The exception itself, for Python. Nothing here reads it.
    #[doc(hidden)]
    pub fn pickle(&self) -> Option<&[u8]> {
        self.pickle.as_ref().map(|pickle| &pickle[..])
    }
}
