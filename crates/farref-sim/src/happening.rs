//! What is going to happen in a run.

use std::rc::Rc;

use farref_proto::{CallHead, Lane, MessageId, NodeId};

use crate::link::Parcel;
use crate::process::{Body, Packet};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Cut,
    Partition,
    Stall,
    Crash,
    CrashOf(NodeId),
    Leave,
    Join,
    /// Somebody joins while somebody else departs and links fail.
    CrowdedJoin,
    /// Somebody joins who does not fit to a member.
    UnfitJoin,
    /// The link between two workers fails for a while.
    Block,
    /// A worker dies and comes back, so many times.
    Flap {
        worker: u32,
        times: u32,
    },
    Restart {
        worker: u32,
    },
}

/// Something that is going to happen.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Deliver {
        from: NodeId,
        to: NodeId,
        epoch: u64,
        parcel: Parcel,
    },
    Loopback {
        node: NodeId,
        packet: Rc<Packet>,
    },
    Timer {
        node: NodeId,
        peer: NodeId,
    },
    Connect {
        node: NodeId,
        peer: NodeId,
    },
    Flush {
        node: NodeId,
    },
    Poll {
        node: NodeId,
    },
    Step {
        node: NodeId,
    },
    Task {
        node: NodeId,
        task: u64,
    },
    /// A call that never left is taken back.
    Undo {
        node: NodeId,
        to: NodeId,
        head: Rc<CallHead>,
    },
    /// There is room for a call that waited.
    Unpark {
        node: NodeId,
        to: NodeId,
        lane: Lane,
        head: Rc<CallHead>,
        body: Body,
    },
    /// The program no longer wants an answer.
    GiveUp {
        node: NodeId,
        to: NodeId,
        request: MessageId,
    },
    AskToJoin {
        node: NodeId,
    },
    Fault(Fault),
    Drain {
        node: NodeId,
    },
    Exit {
        node: NodeId,
    },
    EndOfProgram,
}

impl Happening {
    /// Whether it also happens to a process that has given its group up.
    pub(crate) fn outlives_membership(&self) -> bool {
        matches!(
            self,
            Self::Deliver { .. }
                | Self::Timer { .. }
                | Self::Connect { .. }
                | Self::Flush { .. }
                | Self::Exit { .. }
        )
    }

    /// The process that it happens to, which does nothing while it is stalled.
    pub(crate) fn process(&self) -> Option<NodeId> {
        match *self {
            Self::Deliver { to: node, .. }
            | Self::Loopback { node, .. }
            | Self::Timer { node, .. }
            | Self::Connect { node, .. }
            | Self::Flush { node }
            | Self::Poll { node }
            | Self::Step { node }
            | Self::Task { node, .. }
            | Self::Undo { node, .. }
            | Self::Unpark { node, .. }
            | Self::GiveUp { node, .. }
            | Self::AskToJoin { node }
            | Self::Drain { node }
            | Self::Exit { node } => Some(node),
            Self::Fault(_) | Self::EndOfProgram => None,
        }
    }
}
