//! What is wrong with a value.

use std::fmt;

/// What is wrong with a number that Python has and no type here.
pub const TOO_LARGE: &str = "a number of more than 64 bits";

/// A value that cannot be written for Python, or read from it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct ValueError {
    message: String,
}

impl ValueError {
    pub fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
        }
    }
}

impl serde::ser::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message)
    }
}

impl serde::de::Error for ValueError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(message)
    }
}

impl From<crate::pickle::PickleError> for ValueError {
    fn from(error: crate::pickle::PickleError) -> Self {
        Self::new(error)
    }
}
