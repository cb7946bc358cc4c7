//! What the engines of two workers say to each other.

use std::time::Duration;

use farref::context::NodeId;
use serde::{Deserialize, Serialize};

use crate::failure::PassFailure;

/// Names a backward pass inside of its context.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub struct PassId {
    /// The worker that began it.
    pub origin: NodeId,
    /// Its number there.
    pub counter: u64,
}

/// Gradients on their way from the worker that received tensors to the one that sent them, and all that
/// a worker has to know to take part in a pass.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Parcel<T> {
    /// The pass.
    pub pass: PassId,
    /// Whether the graph may be run again afterwards.
    pub retain_graph: bool,
    /// Passes of the same origin with lower numbers are over.
    pub ended_below: u64,
    /// How long the pass may go without any progress.
    pub patience: Option<Duration>,
    /// The first parcel to a worker says which messages went between the two (EN-1).
    pub messages: Option<Messages>,
    /// For messages of the receiver: the gradients of their tensors, by index; nothing for a tensor
    /// that the loss does not depend on.
    pub gradients: Vec<ForSend<T>>,
}

/// The messages with tensors between the sender of a parcel and its receiver, as far as the sender knows them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Messages {
    /// Those that it sent: one that the receiver never got is answered in the [`Receipt`].
    pub sent: Vec<u64>,
    /// Those that it received: no gradients will come for others that the receiver has sent to it, which therefore need
    /// not ask.
    pub received: Vec<u64>,
}

/// The gradients of the tensors of one message, by its number and their index.
pub type ForSend<T> = (u64, Vec<Option<T>>);

/// How a parcel is acknowledged.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Receipt {
    /// Those of the parcel's messages that were not received before the pass began: no gradients will
    /// come for them.
    pub unknown: Vec<u64>,
    /// The pass has failed.
    pub failure: Option<PassFailure>,
}

impl Receipt {
    pub(crate) fn failed(failure: PassFailure) -> Self {
        Self {
            unknown: Vec::new(),
            failure: Some(failure),
        }
    }
}
