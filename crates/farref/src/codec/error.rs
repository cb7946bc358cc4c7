//! What is wrong with a value.

use std::fmt;

/// A value that cannot be written or read.
///
/// ```
/// use farref::{Buffer, CodecError};
///
/// let odd = Buffer::from_vec(vec![1_u8, 2, 3]);
/// let error: CodecError = odd.into_vec::<u16>().unwrap_err();
/// assert_eq!(error.to_string(), "3 bytes are no whole number of elements of 2 bytes");
/// ```
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct CodecError {
    message: String,
}

impl CodecError {
    /// An error with this message.
    ///
    /// ```
    /// use farref::CodecError;
    ///
    /// // Of whatever error a foreign encoding has.
    /// fn read(text: &str) -> Result<u32, CodecError> {
    ///     text.parse().map_err(CodecError::new)
    /// }
    ///
    /// assert_eq!(read("7"), Ok(7));
    /// assert_eq!(read("x"), Err(CodecError::new("invalid digit found in string")));
    /// ```
    pub fn new(message: impl fmt::Display) -> Self {
        Self {
            message: message.to_string(),
        }
    }
}
