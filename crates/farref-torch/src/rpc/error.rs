//! What is wrong with a message.

use crate::pickle::PickleError;

/// Why a message is none that PyTorch sends, or none that can be used here.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RpcError {
    /// The peer sent something that does not read as what it should be.
    #[error("the peer's message cannot be read: {0}")]
    Pickle(#[from] PickleError),
    /// The peer sent a message of a type that PyTorch does not have.
    #[error("the peer's message has type {0:#x}, which PyTorch does not have")]
    Kind(i64),
    /// The peer sent something that has no place where it is.
    #[error("the peer's message is wrong: {what}, found {found}")]
    Wrong {
        /// What should be there.
        what: &'static str,
        /// What is there.
        found: String,
    },
    /// The peer's message is in order, but what it contains has no meaning without Python, or without PyTorch.
    #[error(
        "{0} cannot be used by a worker without Python: send plain data, tensors or references"
    )]
    Unsupported(String),
    /// An operator or a function of TorchScript's that this worker does not serve.
    #[error(
        "this worker, a Rust program, has no {0}: declare it there by #[farref::remote(python = \"{0}\")]"
    )]
    NotServed(String),
    /// A tensor that reaches beyond its bytes.
    #[error("the peer's tensor reaches beyond its {bytes} bytes")]
    OutOfBounds {
        /// How many bytes there are.
        bytes: usize,
    },
    /// A tensor that would take more memory than is allowed.
    #[error("the tensor would take more than {limit} bytes once it is spelled out")]
    TooLarge {
        /// How many bytes are allowed.
        limit: usize,
    },
}

impl RpcError {
    pub(super) fn wrong(what: &'static str, found: impl ToString) -> Self {
        let found = found.to_string();
        Self::Wrong { what, found }
    }
}
