//! What the protocol tells the program above it.

use crate::error::RefError;
use crate::ids::{ContextId, MessageId, NodeId, RRefId};
use crate::membership::TooFew;
use crate::standing::Departure;

/// Who waits for a value: a request of another node, or one made on the owner itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Waiter {
    /// The node that asked.
    pub node: NodeId,
    /// Its request.
    pub request: MessageId,
}

/// Something the program above has to act on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Event<V> {
    /// Nobody refers to this value any more: drop it.
    Freed {
        /// The reference.
        rref: RRefId,
        /// The value, handed out so that its destructor runs outside every lock.
        value: V,
    },
    /// A fetch that had to wait has its outcome: answer it.
    Fetched {
        /// Whom to answer.
        waiter: Waiter,
        /// Which reference.
        rref: RRefId,
        /// The value, or why there is none.
        outcome: Result<V, RefError>,
    },
    /// The owner has registered our reference.
    Confirmed(RRefId),
    /// Our reference leads nowhere any more: using it gives this error.
    Lost {
        /// The reference.
        rref: RRefId,
        /// What a use of it answers.
        error: RefError,
    },

    /// A request was made of a peer that is now gone; its outcome is unknown.
    PeerLost {
        /// The peer.
        node: NodeId,
        /// Our request.
        request: MessageId,
    },
    /// Nobody waits for the answer to a request that we are working on: stop. Answer it all the same;
    /// [`Node::answer`](crate::Node::answer) knows whether there is still somebody to tell.
    Abandoned {
        /// Who had asked.
        node: NodeId,
        /// Its request.
        request: MessageId,
    },

    /// A node joined the group.
    Joined(NodeId),
    /// A node is no longer a member. Close its connections and refuse its frames from now on.
    Gone {
        /// The node.
        node: NodeId,
        /// How it went.
        departure: Departure,
    },
    /// Everyone knows that the node is gone; what it held has been released.
    Settled(NodeId),
    /// A member that we have asked does not let us in: its group has as many members as it may have
    /// ([`NodeConfig::max_members`](crate::NodeConfig::max_members)).
    NoRoom {
        /// The member.
        node: NodeId,
        /// How many it lets in.
        limit: u32,
    },
    /// We were let in: calls may be made.
    Welcomed,
    /// We no longer see most of our group, need that ([`NodeConfig::require_majority`](crate::NodeConfig::require_majority)),
    /// and give the group up: [`Evicted`](Self::Evicted) follows. Of those who were lost last nothing is said.
    Minority(TooFew),
    /// The others have declared us dead. Everything we owned or held across workers is lost; to go
    /// on, join again with a greater incarnation.
    Evicted,
    /// Everyone knows that we have left: the process may end.
    Departed,

    /// The context is over on this node: whatever was recorded for it can go.
    ContextClosed(ContextId),
    /// A context that we opened is released here and on every worker that could be reached by the
    /// calls made in it. (One cut off by a death is told as soon as it asks.)
    ContextReleased(ContextId),
    /// A context that we opened and asked to be released never will be: the others have declared us
    /// dead, and whether they have forgotten it cannot be found out.
    ContextNotReleased(ContextId),
    /// A worker that took part in the context is gone: its gradients cannot be complete.
    ContextFailed {
        /// The context.
        context: ContextId,
        /// Who is gone.
        node: NodeId,
    },

    /// All workers are at rest: the graceful shutdown is complete.
    ShutdownComplete,
}
