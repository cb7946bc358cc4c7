//! What can be said of a node's membership.
//!
//! It only ever grows: a later incarnation outranks an earlier one, and within an incarnation *dead* outranks *left*
//! outranks *alive* outranks *joining*.

use serde::{Deserialize, Serialize};

use crate::ids::{Incarnation, NodeId};

/// How a node is doing, in the order of its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Status {
    /// Asked to be let in; not everyone knows it yet, so nobody calls it.
    Joining,
    /// A member.
    Alive,
    /// Said good-bye.
    Left,
    /// Declared dead.
    Dead,
}

/// The latest that is known of a worker. The greater of two standings is the later one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Standing {
    /// Which life.
    pub incarnation: Incarnation,
    /// How it is doing.
    pub status: Status,
}

impl Standing {
    /// The standing of this life with the given status.
    pub fn of(node: NodeId, status: Status) -> Self {
        Self {
            incarnation: node.incarnation,
            status,
        }
    }

    /// Whether this life is not over.
    pub(crate) fn is_live(self) -> bool {
        self.status <= Status::Alive
    }
}

/// Why a node is no longer a member.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Departure {
    /// It said good-bye.
    Left,
    /// It was declared dead, or came back as a later incarnation.
    Died,
}

/// Where a node is in its own membership.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Phase {
    /// Asked to be let in.
    Joining,
    /// In.
    Member,
    /// Saying good-bye.
    Leaving,
    /// Out, and everyone knows.
    Departed,
    /// Declared dead by the others.
    Evicted,
}
