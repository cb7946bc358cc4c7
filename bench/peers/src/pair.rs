//! What was measured together, so that a ratio can be made of it.

use serde::Serialize;

use crate::peers::Peer;
use crate::results::Results;

/// One comparison: a peer, and farref just before or after it.
#[derive(Debug, Serialize)]
pub struct Pair {
    pub round: usize,
    pub peer: &'static str,
    pub over: &'static str,
    pub farref: Outcome,
    pub beside: Outcome,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Measured(Results),
    /// Why not.
    Failed(String),
}

impl Pair {
    /// Whether it was with this peer over this transport.
    pub fn is_of(&self, peer: &Peer) -> bool {
        (self.peer, self.over) == (peer.title, peer.over)
    }
}

impl Outcome {
    pub fn results(&self) -> Option<&Results> {
        match self {
            Self::Measured(results) => Some(results),
            Self::Failed(_) => None,
        }
    }
}
