//! What can go wrong between two ends, whose fault it is, and what to do about it.

use crate::ids::{GroupId, NodeId};

use super::wire::{Lane, SESSION_VERSION};

/// Why a [`Hello`](super::Hello) was refused. The session is as it was; the connection is of no use
/// and is to be closed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The ends run different versions of the session protocol.
    #[error(
        "peer speaks session version {theirs}, this worker speaks {SESSION_VERSION}: \
         deploy the same version on both"
    )]
    Version {
        /// The peer's version.
        theirs: u16,
    },

    /// The peer belongs to another group.
    #[error(
        "peer belongs to group {theirs:?}, this worker to {ours:?}: \
         one of them was given the other group's address"
    )]
    Group {
        /// The group this session is in.
        ours: GroupId,
        /// The group the peer named.
        theirs: GroupId,
    },

    /// The connection joins other ends than the two of this session: the peer is not the remote
    /// worker, or it does not mean this life of this worker.
    #[error(
        "{from} greets {to}, but this session is between {remote} and {local}: \
         the peer's address book is out of date"
    )]
    WrongPeer {
        /// Who the peer says it is.
        from: NodeId,
        /// Whom it means to talk to.
        to: NodeId,
        /// This end.
        local: NodeId,
        /// The other end of this session.
        remote: NodeId,
    },

    /// The peer is a former life of the remote worker. It has been replaced and is to exit.
    #[error("{from} has been replaced by {remote}: the peer is a leftover and must exit")]
    StaleIncarnation {
        /// Who the peer says it is.
        from: NodeId,
        /// The life this session is with.
        remote: NodeId,
    },

    /// The remote worker was restarted. The life this session is with is dead and so is the
    /// session: report the death, then open a session with the new life.
    #[error(
        "{remote} has been replaced by {from}: this session is over, open one with the new life"
    )]
    NewerIncarnation {
        /// Who the peer says it is.
        from: NodeId,
        /// The life this session is with.
        remote: NodeId,
    },

    /// The peer wants to go on from a frame that it has acknowledged before, or that was never
    /// sent. It has lost its state without taking a new incarnation; nothing can mend the session.
    #[error(
        "peer wants to resume the {lane} lane at frame {expected}, but frames before {stored_from} \
         were acknowledged and {sent} were ever sent: the peer lost its state without taking a new \
         incarnation, treat it as dead"
    )]
    ResumeImpossible {
        /// The lane in question.
        lane: Lane,
        /// The frame the peer wants next.
        expected: u64,
        /// The oldest frame that is still stored.
        stored_from: u64,
        /// How many frames of the lane were ever sent.
        sent: u64,
    },

    /// A greeting where none is due: before
    /// [`connection_opened`](super::Session::connection_opened), or a second one on the same
    /// connection.
    #[error("a greeting came where none is due: close the connection")]
    Unexpected,
}

impl HandshakeError {
    /// Whether no later connection can succeed, so that the session is to be given up.
    pub const fn ends_session(&self) -> bool {
        matches!(
            self,
            Self::NewerIncarnation { .. } | Self::ResumeImpossible { .. }
        )
    }
}

/// Why a frame was refused. The session is as it was, the connection is not to be trusted: close it,
/// say [`connection_lost`](super::Session::connection_lost) and make another.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// Frames went missing on the way. The next connection replays them.
    #[error(
        "frame {received} of the {lane} lane came where {expected} was due: \
         the connection lost frames, close it and reconnect"
    )]
    Gap {
        /// The lane in question.
        lane: Lane,
        /// The frame that was due.
        expected: u64,
        /// The frame that came.
        received: u64,
    },

    /// The peer acknowledged what it cannot have: it is faulty.
    #[error(
        "peer acknowledged {acked} frames of the {lane} lane, but {sent} were ever sent: \
         the peer misbehaves, close the connection"
    )]
    AckOfUnsent {
        /// The lane in question.
        lane: Lane,
        /// How many frames the peer says it has.
        acked: u64,
        /// How many frames of the lane were ever sent.
        sent: u64,
    },

    /// A frame came although no connection stands or the peer has not greeted on it yet.
    #[error("a frame came before the peer's greeting or after the connection's end: close it")]
    NotConnected,
}
