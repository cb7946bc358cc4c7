//! Where and why a backward pass failed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Where and why a pass failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("the backward pass failed on worker `{worker}`: {cause}")]
pub struct PassFailure {
    /// Where.
    pub worker: String,
    /// Why.
    pub cause: Cause,
}

/// Why a pass failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The mathematics failed.
    #[error("{0}")]
    Compute(String),
    /// The worker is gone.
    #[error("the worker is gone; start the step again in a new context")]
    WorkerLost,
    /// The context was released while the pass ran.
    #[error("the context was released during the pass; keep it until `backward` has returned")]
    Released,
    /// The graph was freed by an earlier pass.
    #[error("an earlier pass has freed the graph; run that one with `retain_graph`")]
    GraphFreed,
    /// Nothing happened for too long.
    #[error("nothing happened for {patience:?} while waiting for {}; raise `.timeout(..)` if a single \
             step may take that long", waiting_for.join(", "))]
    NoProgress {
        /// How long.
        patience: Duration,
        /// Who had not answered.
        waiting_for: Vec<String>,
    },
    /// Whoever waited for the pass gave up.
    #[error("the pass was cancelled")]
    Cancelled,
    /// The worker takes part in too many passes of the context.
    #[error("too many passes of one context at once; await some before beginning more")]
    TooManyPasses,
    /// A parcel could not be brought there.
    #[error("a parcel could not be delivered: {0}")]
    Delivery(String),
}
