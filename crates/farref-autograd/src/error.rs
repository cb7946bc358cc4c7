//! What can go wrong, and whose fault it is.

use std::fmt;
use std::sync::Arc;

use crate::failure::PassFailure;

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

    /// A state does not fit what it is to be loaded into. Nothing was changed.
    #[error(transparent)]
    State(#[from] StateMismatch),

    /// A peer says that it has opened more pools of device memory than there are on any host.
    #[cfg(feature = "cuda")]
    #[error(
        "a peer says that it has opened {said} pools of device memory: {limit} at most are believed"
    )]
    TooManyPools {
        /// How many it says.
        said: usize,
        /// How many are believed.
        limit: usize,
    },

    /// Settings or arguments that make no sense, by themselves or together.
    #[error("{0}")]
    Invalid(String),
}

/// How a state differs from what it is to be loaded into.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct StateMismatch {
    /// Entries that are needed and not there.
    pub missing: Vec<String>,
    /// Entries that nothing asks for.
    pub unexpected: Vec<String>,
    /// Entries of another shape or type.
    pub mismatched: Vec<Mismatched>,
}

/// An entry of a state that has another shape or type than what it is to replace.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Mismatched {
    /// Its name.
    pub name: String,
    /// What fits.
    pub expected: String,
    /// What was there.
    pub found: String,
}

impl std::error::Error for StateMismatch {}

impl fmt::Display for StateMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the state does not fit and nothing was changed")?;
        if !self.missing.is_empty() {
            write!(f, "; missing: {}", self.missing.join(", "))?;
        }
        if !self.unexpected.is_empty() {
            write!(f, "; unexpected: {}", self.unexpected.join(", "))?;
        }
        for entry in &self.mismatched {
            let Mismatched {
                name,
                expected,
                found,
            } = entry;
            write!(f, "; {name} is {found} and should be {expected}")?;
        }
        f.write_str(": load it into what it was saved from, or rename its entries")
    }
}

#[cfg(feature = "candle")]
impl From<candle_core::Error> for Error {
    fn from(error: candle_core::Error) -> Self {
        Self::Candle(Arc::new(error))
    }
}
