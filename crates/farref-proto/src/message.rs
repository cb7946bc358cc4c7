//! What nodes say to each other: control messages, and what a user message carries for the protocol.
//!
//! Control messages travel on [`Lane::Control`](crate::Lane::Control), first in, first out between
//! two nodes. Those about references and contexts are lists, so that a thousand drops towards one
//! owner are one message ([`Control::merge`]).

use serde::{Deserialize, Serialize};

use crate::ids::{ContextId, Fingerprint, ForkId, MessageId, NodeId, RRefId, WorkerId};
use crate::limits::MAX_BATCH;
use crate::residue::Residue;
use crate::standing::{Digest, Standing};

/// One fork of one reference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The reference.
    pub rref: RRefId,
    /// The fork.
    pub fork: ForkId,
}

/// A holder tells the owner about a fork that it got from somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Registration {
    /// The fork to register; its holder is whoever sends this.
    pub share: Share,
    /// The type that the holder believes the value to have.
    pub fingerprint: Fingerprint,
}

/// A parent registers, in the name of a dead child, the fork it had sent to that child.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Adoption {
    /// The fork that was on its way.
    pub share: Share,
    /// The dead child; the fork is released with everything else that it held.
    pub holder: NodeId,
    /// The type of the value.
    pub fingerprint: Fingerprint,
}

/// Why an owner will not register a fork.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum DeclineReason {
    /// The value has been freed. With peers that keep to the protocol this cannot happen.
    Freed,
    /// The node that asked for the value died before its request arrived.
    CreatorLost,
    /// The value has another type than the holder believes.
    TypeMismatch {
        /// What the owner has.
        owner: Fingerprint,
    },
    /// The sender has too many references pending whose values were never created.
    TooManyPending,
}

/// A fork that the owner did not register.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Declined {
    /// The fork.
    pub share: Share,
    /// Why.
    pub reason: DeclineReason,
}

/// A reference inside a call or an answer: all that the receiver needs to hold it.
///
/// The parent is `share.fork.origin`: a fork id is made by the node that hands the fork out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Carried {
    /// The reference and the fork made for the receiver.
    pub share: Share,
    /// Where the value is.
    pub owner: NodeId,
    /// The value's type.
    pub fingerprint: Fingerprint,
}

/// Asks the receiver to own a value that the carrying call will compute.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Creation {
    /// The reference to be, and the asker's fork of it.
    pub share: Share,
    /// The value's type.
    pub fingerprint: Fingerprint,
}

/// What becomes of a call's result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Target {
    /// It comes back in the answer to this request.
    Answer(MessageId),
    /// The call fetches the value behind a reference, which comes back in the answer.
    Fetch(MessageId, RRefId, Fingerprint),
    /// It stays with the callee under this reference. Such a call has no answer: the owner confirms
    /// the registration, and a failure surfaces at use.
    Stay(Creation),
}

/// The protocol's part of a call. The user's part (function, arguments) travels beside it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CallHead {
    /// What becomes of the result.
    pub target: Target,
    /// The autograd context that the call is made in.
    pub context: Option<ContextId>,
    /// References among the arguments.
    pub carried: Vec<Carried>,
}

/// The protocol's part of an answer.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct AnswerHead {
    /// The call's id.
    pub id: MessageId,
    /// References in the result.
    pub carried: Vec<Carried>,
}

/// Everything that protocol state machines say to their counterparts on other nodes.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Control {
    /// Holder → owner: I hold these (PyTorch's `RREF_FORK_REQUEST`).
    Register(Vec<Registration>),
    /// Owner → holder: these are registered (PyTorch's `RREF_ACK`, and `REMOTE_RET` for a creation).
    Confirm(Vec<Share>),
    /// Owner → holder: these are not registered and never will be.
    Decline(Vec<Declined>),
    /// Holder → owner: I hold these no longer (PyTorch's `RREF_USER_DELETE`).
    Release(Vec<Share>),
    /// Child → parent: you need not keep yours alive for me (PyTorch's `RREF_CHILD_ACCEPT`).
    Accept(Vec<Share>),
    /// Parent → owner: these were on their way to a node that died.
    Adopt(Vec<Adoption>),

    /// Callee → caller: so many calls made in this context, and all they caused, are done.
    ContextDone(Vec<(ContextId, u32)>),
    /// The context is released: forget it and tell those you know (PyTorch's
    /// `CLEANUP_AUTOGRAD_CONTEXT_REQ`). The number is the origin's lowest counter still open.
    ContextCleanup(Vec<(ContextId, u64)>),
    /// Answer to `ContextCleanup`: forgotten here and by everyone told from here.
    ContextCleaned(Vec<ContextId>),
    /// To a context's origin after a death: I take part in this, tell me when it is released.
    ContextAttach(Vec<ContextId>),

    /// A newcomer asks to be let in.
    Join,
    /// Sponsor → newcomer: every member knows you; this is the group.
    Welcome(Vec<(WorkerId, Standing)>),
    /// What the sender knows about some members. With a digest it asks the receiver to say when it knows exactly what
    /// the sender knows.
    View {
        /// Standings, each to be merged by taking the greater.
        entries: Vec<(WorkerId, Standing)>,
        /// The digest of all that the sender knows, if it asks.
        ask: Option<Digest>,
    },
    /// Answer to such a question: I know what has this digest, and what I was handed by those who are gone in it is
    /// registered with its owners.
    Known(Digest),
    /// Answer to such a question: I know something else.
    Unlike {
        /// What was asked about.
        asked: Digest,
        /// What the sender knows.
        mine: Digest,
    },
    /// To all who were asked: every member knows this.
    Settled(Digest),
    /// To every member: I go.
    Leaving,
    /// Answer to `Leaving`: I know that you go.
    Farewell,
    /// Anyone → leader: I cannot reach this node.
    Suspect(NodeId),
    /// To a node that is suspected by another, from one that can still reach it.
    Accused(NodeId),

    /// Leader → all: how idle are you? Tells too whom the leader still waits for.
    Probe {
        /// Counts up with each question of one leader.
        round: u64,
        /// Whether every live member wants the shutdown or only serves: nobody works any more.
        all_willing: bool,
        /// Who was not idle in the last round and what it had left (the first few).
        waiting_for: Vec<(NodeId, Residue)>,
    },
    /// Answer to `Probe`.
    Report {
        /// The probe's round.
        round: u64,
        /// Changes whenever the reporter did anything at all.
        activity: u64,
        /// What it still has to do.
        residue: Residue,
    },
    /// Leader → all: everything is at rest, go.
    Finish,

    /// Answer to `Join`: there is no room for another member.
    NoRoom {
        /// For how many there is.
        limit: u32,
    },
}

impl Control {
    /// Takes `next`, which is to be sent right after `self` to the same node, into `self`. Gives it
    /// back if the two do not go together.
    pub fn merge(&mut self, next: Self) -> Option<Self> {
        macro_rules! lists {
            ($($kind:ident),*) => {
                match (self, next) {
                    $((Self::$kind(have), Self::$kind(more))
                        if have.len() + more.len() <= MAX_BATCH =>
                    {
                        have.extend(more);
                        None
                    })*
                    (_, next) => Some(next),
                }
            };
        }
        lists!(
            Register,
            Confirm,
            Decline,
            Release,
            Accept,
            Adopt,
            ContextDone,
            ContextCleanup,
            ContextCleaned,
            ContextAttach
        )
    }

    /// A word for traces and counters.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Register(_) => "register",
            Self::Confirm(_) => "confirm",
            Self::Decline(_) => "decline",
            Self::Release(_) => "release",
            Self::Accept(_) => "accept",
            Self::Adopt(_) => "adopt",
            Self::ContextDone(_) => "context-done",
            Self::ContextCleanup(_) => "context-cleanup",
            Self::ContextCleaned(_) => "context-cleaned",
            Self::ContextAttach(_) => "context-attach",
            Self::Join => "join",
            Self::Welcome(_) => "welcome",
            Self::View { .. } => "view",
            Self::Known(_) => "known",
            Self::Unlike { .. } => "unlike",
            Self::Settled(_) => "settled",
            Self::Leaving => "leaving",
            Self::Farewell => "farewell",
            Self::Suspect(_) => "suspect",
            Self::Accused(_) => "accused",
            Self::Probe { .. } => "probe",
            Self::Report { .. } => "report",
            Self::Finish => "finish",
            Self::NoRoom { .. } => "no-room",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(counter: u64) -> Share {
        let node = NodeId::new(1, 1);
        Share {
            rref: RRefId::new(node, counter),
            fork: ForkId::new(node, counter + 1),
        }
    }

    #[test]
    fn releases_merge_into_one_message_in_order() {
        let mut first = Control::Release(vec![share(0)]);
        assert_eq!(
            first.merge(Control::Release(vec![share(2), share(4)])),
            None
        );
        assert_eq!(first, Control::Release(vec![share(0), share(2), share(4)]));
    }

    #[test]
    fn messages_of_different_kinds_stay_apart() {
        let mut first = Control::Register(Vec::new());
        let second = Control::Release(vec![share(0)]);
        assert_eq!(first.merge(second.clone()), Some(second));
    }

    #[test]
    fn a_merged_message_never_exceeds_the_batch_limit() {
        let mut first = Control::Accept(vec![share(0); MAX_BATCH - 1]);
        assert_eq!(first.merge(Control::Accept(vec![share(1)])), None);
        assert!(first.merge(Control::Accept(vec![share(2)])).is_some());
    }

    #[test]
    fn every_control_message_survives_the_wire() {
        let message = Control::Register(vec![Registration {
            share: share(8),
            fingerprint: Fingerprint(7),
        }]);
        let bytes = postcard::to_allocvec(&message).unwrap();
        assert_eq!(postcard::from_bytes::<Control>(&bytes).unwrap(), message);
    }
}
