//! What is wrong with a value.

use std::fmt;

use crate::support::text;

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
    kind: CodecErrorKind,
    message: String,
}

/// What a program could do about a [`CodecError`].
///
/// ```
/// use farref::{CodecErrorKind, Error};
///
/// #[farref::remote]
/// async fn count(bytes: Vec<u8>) -> usize {
///     bytes.len()
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start_with(2, |it| it.max_message_bytes(1 << 20)).await?;
/// let peer = cluster.worker(0).peer("worker1")?;
/// match count::on(&peer, vec![0; 2 << 20]).await {
///     Err(Error::Codec { reason, .. }) if reason.kind() == CodecErrorKind::TooLarge => {} // send it in parts
///     other => panic!("{other:?}"),
/// }
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CodecErrorKind {
    /// The wire does not take so much in one message: send less at once, or raise its limits.
    TooLarge,
    /// The value is nested too deep to be read without harm.
    TooDeep,
    /// The value is not what the type writes or reads: build both workers from the same source, or mend the
    /// type's `Serialize` or `Deserialize`.
    Invalid,
}

impl CodecError {
    /// An error with this message: the first 64 KiB of it, and without control characters but the ends of lines
    /// and tabs, as a message may quote what a peer has sent.
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
        Self::of_kind(CodecErrorKind::Invalid, message)
    }

    pub(crate) fn of_kind(kind: CodecErrorKind, message: impl fmt::Display) -> Self {
        Self {
            kind,
            message: text::said(message),
        }
    }

    /// A value that the wire does not take in one message, for codecs and agents that have limits.
    ///
    /// ```
    /// use farref::{CodecError, CodecErrorKind};
    ///
    /// let error = CodecError::too_large("a frame takes 4096 bytes at most");
    /// assert_eq!(error.kind(), CodecErrorKind::TooLarge);
    /// ```
    pub fn too_large(message: impl fmt::Display) -> Self {
        Self::of_kind(CodecErrorKind::TooLarge, message)
    }

    /// What a program could do about it.
    ///
    /// ```
    /// use farref::{CodecError, CodecErrorKind};
    ///
    /// assert_eq!(CodecError::new("no number").kind(), CodecErrorKind::Invalid);
    /// ```
    pub fn kind(&self) -> CodecErrorKind {
        self.kind
    }
}
