//! What can go wrong, and whose fault it is.

use serde::{Deserialize, Serialize};

use crate::ids::{ContextId, Fingerprint, MessageId, NodeId, RRefId};
use crate::limits::{MAX_BATCH, MAX_FORKS, MAX_WORKERS};
use crate::standing::Phase;

/// A use of a reference that cannot work. Cause and remedy are on this side or in what became of
/// the group; for what a peer does against the protocol see [`PeerMisbehaved`].
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum RefError {
    /// This worker holds no such reference: it was dropped, or never received.
    #[error("{rref} is not held by this worker; keep the reference alive while you use it")]
    Unknown {
        /// The reference.
        rref: RRefId,
    },
    /// The value is on another worker.
    #[error("{rref} is owned by {owner}; fetch it, or call a method on it")]
    NotOwner {
        /// The reference.
        rref: RRefId,
        /// Who has the value.
        owner: NodeId,
    },
    /// The worker that had the value is gone, and the value with it.
    #[error("the owner of {rref}, {owner}, is gone; the value has to be made anew")]
    OwnerLost {
        /// The reference.
        rref: RRefId,
        /// Who had the value.
        owner: NodeId,
    },
    /// The worker that asked for the value died before its request reached the owner.
    #[error("{rref} was never created: {creator} died before its request arrived", creator = rref.origin)]
    CreatorLost {
        /// The reference.
        rref: RRefId,
    },
    /// The owner had already freed the value.
    #[error(
        "the owner of {rref} has freed it already; this is a fault in the sender of the reference"
    )]
    Freed {
        /// The reference.
        rref: RRefId,
    },
    /// The two sides disagree about the value's type.
    #[error(
        "{rref} has type {found} on its owner, but {expected} was expected; build both workers from the same source"
    )]
    TypeMismatch {
        /// The reference.
        rref: RRefId,
        /// What the user of the reference believes.
        expected: Fingerprint,
        /// What the owner has.
        found: Fingerprint,
    },
    /// The owner keeps no more references whose values have not been created.
    #[error(
        "the owner of {rref} refused it: too many references to values that were never created"
    )]
    TooManyPending {
        /// The reference.
        rref: RRefId,
    },
    /// The worker that the reference should go to is gone.
    #[error("{rref} cannot be handed to {node}, which is gone")]
    ReceiverLost {
        /// The reference.
        rref: RRefId,
        /// Who should have got it.
        node: NodeId,
    },
    /// The table was shut down.
    #[error("this worker has been shut down; references made before are no longer usable")]
    Destroyed,
}

/// A use of a context that cannot work.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum ContextError {
    /// The context was released, here or at its origin.
    #[error("context {context} has been released; make the call inside a live context")]
    Closed {
        /// The context.
        context: ContextId,
    },
    /// This worker takes no part in the context.
    #[error("context {context} is not known on this worker")]
    Unknown {
        /// The context.
        context: ContextId,
    },
    /// Only the node that opened a context may release it.
    #[error("context {context} belongs to {origin}, which alone can release it", origin = context.origin)]
    NotOrigin {
        /// The context.
        context: ContextId,
    },
    /// A worker that took part is gone.
    #[error("context {context} lost {node}; start the step again in a new context")]
    ParticipantLost {
        /// The context.
        context: ContextId,
        /// Who is gone.
        node: NodeId,
    },
}

/// A call that cannot be made. Nothing was changed by the attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// This node is not, or no longer, a member of the group.
    #[error("this worker is not a member of the group ({phase:?}); join first")]
    NotMember {
        /// Where it is in its membership.
        phase: Phase,
    },
    /// The callee is not a member.
    #[error("{node} is not a member of the group: it has gone, or not joined yet")]
    PeerGone {
        /// The callee.
        node: NodeId,
    },
    /// A worker makes values of its own with [`Node::create_self`](crate::Node::create_self).
    #[error("a value that stays here is not asked for by a call: create it with create_self")]
    CreationOnSelf,
    /// A reference among the arguments, or the one to fetch, cannot be used.
    #[error(transparent)]
    Reference(#[from] RefError),
    /// The context cannot be used.
    #[error(transparent)]
    Context(#[from] ContextError),
}

/// A peer said something that no correct peer says. Cut it off; nothing was changed by the entry at
/// fault, nor by those after it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerMisbehaved {
    /// A carried fork was not made by the node that sent it.
    #[error("peer handed on a fork that {parent} made")]
    ForeignFork {
        /// Who made the fork.
        parent: NodeId,
    },
    /// It released or accepted what another node holds.
    #[error("peer spoke for a fork that {holder} holds")]
    NotHolder {
        /// Who holds it.
        holder: NodeId,
    },
    /// It asked for a value to be made under an id that is not its own.
    #[error("peer asked to create {rref}, an id made by {origin}", origin = rref.origin)]
    ForeignCreation {
        /// The reference.
        rref: RRefId,
    },
    /// It asked for the same value twice.
    #[error("peer asked to create {rref} twice")]
    CreatedTwice {
        /// The reference.
        rref: RRefId,
    },
    /// It registered one value over and over: a worker needs one fork of it.
    #[error("peer registered more than {limit} forks of {rref}", limit = MAX_FORKS)]
    TooManyForks {
        /// The reference.
        rref: RRefId,
    },
    /// It spoke for a worker that it has not said has departed.
    #[error("peer adopted a fork of {holder}, which has not departed")]
    AdoptedForLiving {
        /// Whom it spoke for.
        holder: NodeId,
    },
    /// It used the id of a request that has not been answered yet.
    #[error("peer used {request} for a second call before the first was answered")]
    RequestTwice {
        /// The request.
        request: MessageId,
    },
    /// It answered something that it was not asked.
    #[error("peer answered {request}, which is not outstanding")]
    UnexpectedAnswer {
        /// The request.
        request: MessageId,
    },
    /// A list was longer than [`MAX_BATCH`](crate::MAX_BATCH).
    #[error("peer sent {len} entries in one message, the limit is {limit}", limit = MAX_BATCH)]
    BatchTooLong {
        /// How many.
        len: usize,
    },
    /// It told of more workers than a group can have had.
    #[error("peer tells of more workers than a group can have ({known} are known, the limit is {limit})",
        limit = MAX_WORKERS)]
    TooManyWorkers {
        /// How many were known before.
        known: usize,
    },
    /// It told of more lives than a group has: there cannot be so many.
    #[error("peer tells of more workers than a group has at one time (the limit is {limit})")]
    TooManyLives {
        /// How many may be told of.
        limit: usize,
    },
    /// It told of more changes of the group than happen before all know of them: it makes them up.
    #[error(
        "peer tells of more changes of the group than are open at one time (the limit is {limit})"
    )]
    TooMuchUnsettled {
        /// How many it may tell of.
        limit: usize,
    },
    /// It made more calls at once than it was told are accepted.
    #[error("peer has more calls open than the {limit} that are accepted")]
    TooManyCalls {
        /// How many are accepted.
        limit: u32,
    },
    /// It reported more calls done than were made.
    #[error("peer reported more calls of {context} done than it was sent")]
    UnexpectedDone {
        /// The context.
        context: ContextId,
    },
    /// It asked this node about a context that another one opened.
    #[error("peer asks for a context of {node}, which alone knows about it")]
    Impersonation {
        /// Whom it spoke for.
        node: NodeId,
    },
}

/// Has a word for each variant, and a list of the words.
macro_rules! kinds {
    ($($variant:ident => $kind:literal,)*) => {
        impl PeerMisbehaved {
            /// All words that [`kind`](Self::kind) may give.
            pub const KINDS: &[&str] = &[$($kind),*];

            /// A word for what was done, for counters.
            ///
            /// ```
            /// # use farref_proto::PeerMisbehaved;
            /// let misbehaved = PeerMisbehaved::TooManyCalls { limit: 64 };
            /// assert_eq!(misbehaved.kind(), "too_many_calls");
            /// assert!(PeerMisbehaved::KINDS.contains(&misbehaved.kind()));
            /// ```
            pub const fn kind(&self) -> &'static str {
                match self {
                    $(Self::$variant { .. } => $kind,)*
                }
            }
        }
    };
}

kinds! {
    ForeignFork => "foreign_fork",
    NotHolder => "not_holder",
    ForeignCreation => "foreign_creation",
    CreatedTwice => "created_twice",
    TooManyForks => "too_many_forks",
    AdoptedForLiving => "adopted_for_living",
    RequestTwice => "request_twice",
    UnexpectedAnswer => "unexpected_answer",
    BatchTooLong => "batch_too_long",
    TooManyWorkers => "too_many_workers",
    TooManyLives => "too_many_lives",
    TooMuchUnsettled => "too_much_unsettled",
    TooManyCalls => "too_many_calls",
    UnexpectedDone => "unexpected_done",
    Impersonation => "impersonation",
}
