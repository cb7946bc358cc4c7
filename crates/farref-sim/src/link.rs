//! The connection between two lives, and what arrives at its ends.

use std::rc::Rc;

use farref_proto::{Frame, Hello, Lane, NodeId, Time};

use crate::process::Stamped;

/// What arrives at one end of a connection.
#[derive(Clone, Debug)]
pub(crate) enum Parcel {
    Hello(Hello),
    Frame(Frame<Rc<Stamped>>),
    /// The connection is closed.
    Closed,
    /// The other end does not talk to this life any more.
    Refused,
}

/// The connection between two lives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Link {
    pub(crate) epoch: u64,
    pub(crate) up: bool,
    pub(crate) blocked_until: Time,
    /// The two do not take each other's connections, ever.
    pub(crate) unfit: bool,
    /// When the last frame arrives, by direction and lane.
    pub(crate) last_arrival: [[Time; Lane::COUNT]; 2],
}

pub(crate) fn pair(a: NodeId, b: NodeId) -> (NodeId, NodeId) {
    if a < b { (a, b) } else { (b, a) }
}
