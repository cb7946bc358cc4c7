//! What can go wrong, and whose fault it is.

use std::sync::Arc;

use crate::engine::PassFailure;

/// A result whose error is this crate's.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why something did not work.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The runtime says no: a worker is gone, a call failed, the context was released.
    #[error(transparent)]
    Farref(#[from] farref::Error),

    /// The tensor library says no.
    #[cfg(feature = "candle")]
    #[error("{0}")]
    Candle(Arc<candle_core::Error>),

    /// A backward pass failed, on this worker or on another. The gradients of its context are incomplete.
    #[error(transparent)]
    Backward(#[from] PassFailure),

    /// `backward` was asked for something that is no loss.
    #[error("{0}")]
    NotALoss(String),

    /// A value has another shape or type than what it is to replace.
    #[error("expected {expected}, found {found}")]
    Mismatch {
        /// What fits.
        expected: String,
        /// What came.
        found: String,
    },

    /// There is no context here.
    #[error("this must be done inside of a context: use `Context::run` or `Context::enter`")]
    NoContext,

    /// Some workers could not make the step. Those in `stepped` have made it.
    #[error(
        "the optimizer step failed on {}; it was made on {}",
        .failed.iter().map(|(worker, error)| format!("worker `{worker}` ({error})")).collect::<Vec<_>>().join(", "),
        if .stepped.is_empty() { "no worker".to_owned() } else { .stepped.join(", ") }
    )]
    Step {
        /// Where it failed, and why.
        failed: Vec<(String, Arc<Self>)>,
        /// Where it did not.
        stepped: Vec<String>,
    },

    /// A file of tensors could not be written or read.
    #[error("{0}")]
    Checkpoint(String),
}

#[cfg(feature = "candle")]
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(Arc::new(error))
    }
}
