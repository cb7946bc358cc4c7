//! What a session tells its owner: events to act upon and counters to look at.

use std::hash::{Hash, Hasher};
use std::time::Duration;

/// Something the owner of a session is to act upon.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum SessionEvent {
    /// The peer has given no sign of life for too long, or its address refuses connections.
    /// Said once for each silence.
    Suspect {
        /// How long the silence has lasted.
        silent_for: Duration,
    },
    /// The connection is stuck: close it and make another. Said at most once for each connection.
    Reset(ResetReason),
}

/// What a stuck connection failed to deliver in time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ResetReason {
    /// The peer's greeting.
    NoHello,
    /// An acknowledgement of anything that was sent on it.
    NoAckProgress,
    /// Anything at all since a ping was sent on it.
    NoAnswer,
}

/// What a session has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
#[non_exhaustive]
pub struct SessionCounters {
    /// Data frames sent for the first time.
    pub sent: u64,
    /// Data frames sent again after a connection broke.
    pub replayed: u64,
    /// Data frames of the peer that were handed to the owner.
    pub delivered: u64,
    /// Data frames of the peer that had been handed over before and were dropped.
    pub duplicates: u64,
    /// Resets that were asked for.
    pub resets: u64,
    /// Connections on which the peer's greeting was accepted.
    pub connections: u64,
}

/// The counters as the session keeps them: all are equal.
///
/// They influence nothing, so two sessions that differ only in them behave alike for ever. A model
/// checker that told them apart would walk the same states once for every way of getting there.
#[derive(Clone, Default, Debug)]
pub(super) struct Tally(pub(super) SessionCounters);

impl PartialEq for Tally {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Tally {}

impl Hash for Tally {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}
