//! What two sessions say to each other: a [`Hello`] each, then [`Frame`]s.
//!
//! These are values, not bytes. The runtime encodes them with serde, the simulator passes them on as
//! they are.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, NodeId};

/// The version of the session protocol that this crate speaks. Ends of different versions refuse
/// each other, for neither can know what the other means.
pub const SESSION_VERSION: u16 = 1;

/// A stream of frames within a session, ordered in itself and independent of the others.
///
/// The order of the variants is the order of sending: nothing of a lane leaves while an earlier
/// lane has something to send.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Lane {
    /// The protocol's own traffic: references, contexts, membership. Never refused.
    Control,
    /// Calls and answers small enough not to hold each other up.
    Call,
    /// Large payloads.
    Bulk,
}

impl Lane {
    /// How many lanes there are.
    pub const COUNT: usize = 3;

    /// Every lane, the most urgent first.
    pub const ALL: [Self; Self::COUNT] = [Self::Control, Self::Call, Self::Bulk];

    /// Where this lane stands in an array that has one entry for each lane.
    pub const fn index(self) -> usize {
        self as usize
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Control => "control",
            Self::Call => "call",
            Self::Bulk => "bulk",
        })
    }
}

/// For each lane, by [`Lane::index`], the sequence number its receiver expects next: every frame
/// before that one has arrived and need not be stored any longer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize)]
pub struct Acks(pub [u64; Lane::COUNT]);

impl Acks {
    /// The sequence number expected next on `lane`.
    pub const fn expected(&self, lane: Lane) -> u64 {
        self.0[lane.index()]
    }
}

/// The first thing each end says on every connection: who it is, whom it means, and where the other
/// is to go on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The speaker's [`SESSION_VERSION`]. First, so that a reader of any version finds it.
    pub version: u16,
    /// The speaker's group.
    pub group: GroupId,
    /// The speaker's life.
    pub from: NodeId,
    /// The life the speaker means to talk to.
    pub to: NodeId,
    /// For each lane, by [`Lane::index`], the sequence number the speaker expects next.
    pub expected: [u64; Lane::COUNT],
}

/// What travels on a connection once both ends have said [`Hello`].
///
/// Every frame acknowledges, so that acknowledgements rarely need a frame of their own.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Frame<F> {
    /// A payload.
    Data {
        /// The lane it travels on.
        lane: Lane,
        /// Its place in that lane, from zero, the same each time it is sent.
        seq: u64,
        /// What the sender has received.
        acks: Acks,
        /// What was enqueued.
        payload: F,
    },
    /// An acknowledgement that found nothing to travel with.
    Ack {
        /// What the sender has received.
        acks: Acks,
    },
    /// Asks for a [`Frame::Pong`] of the same generation.
    Ping {
        /// Counts the sender's pings.
        generation: u64,
        /// What the sender has received.
        acks: Acks,
    },
    /// Answers a [`Frame::Ping`].
    Pong {
        /// The generation of the ping it answers.
        generation: u64,
        /// What the sender has received.
        acks: Acks,
    },
}

impl<F> Frame<F> {
    /// What the sender of this frame had received when it sent it.
    pub const fn acks(&self) -> Acks {
        match self {
            Self::Data { acks, .. }
            | Self::Ack { acks }
            | Self::Ping { acks, .. }
            | Self::Pong { acks, .. } => *acks,
        }
    }
}
