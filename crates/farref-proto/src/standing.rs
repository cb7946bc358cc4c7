//! What can be said of a node's membership.
//!
//! It only ever grows: a later incarnation outranks an earlier one, and within an incarnation *dead* outranks *left*
//! outranks *alive* outranks *joining*.

use serde::{Deserialize, Serialize};

use crate::ids::{Incarnation, NodeId, WorkerId};

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

/// Stands for all that is known of a group: equal views have equal digests, and different ones do not.
///
/// It is the sum of one number for each standing, so that a view has it at hand after every change. That two views share one
/// by chance is as likely as guessing 128 bits.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub struct Digest(pub u128);

impl Digest {
    /// That of no standings at all, which nobody has: whoever knows anything knows itself.
    pub(crate) const NOTHING: Self = Self(0);

    /// With one standing more.
    pub(crate) fn with(self, worker: WorkerId, standing: Standing) -> Self {
        Self(self.0.wrapping_add(number_of(worker, standing)))
    }

    /// Without one that it has.
    pub(crate) fn without(self, worker: WorkerId, standing: Standing) -> Self {
        Self(self.0.wrapping_sub(number_of(worker, standing)))
    }
}

/// A number that looks random and is the same everywhere.
fn number_of(worker: WorkerId, standing: Standing) -> u128 {
    let life = u64::from(worker.0) << 32 | u64::from(standing.incarnation.0);
    let low = mix(mix(life) ^ standing.status as u64);
    let high = mix(low ^ life.rotate_left(17));
    u128::from(high) << 64 | u128::from(low)
}

/// The last steps of SplitMix64, which spread every bit over all of them.
fn mix(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
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
