//! The seam between the runtime and a wire.
//!
//! The runtime decides *what* is said to whom; an [`Agent`] brings it there, and hands in what peers
//! say through [`Inbound`]. An agent knows connections, framing and the encoding of values
//! ([`Codec`]); it knows no rule about references, calls or membership. The native agent speaks
//! farref's own protocol; another agent may speak somebody else's.
//!
//! # Rules for an agent
//!
//! - **AG-1** Messages to one peer arrive exactly once. Control messages to one peer arrive in the
//!   order in which they were queued; so do a call and its cancellation. Everything else may overtake.
//! - **AG-2** [`Agent::enqueue`] is called with the runtime's protocol lock held: it only queues, and
//!   calls nothing of [`Inbound`].
//! - **AG-3** What one peer sends is handed in one by one, by one thread at a time.
//! - **AG-4** Control messages and signs of life never wait for user data.

mod message;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

pub use farref_proto::{
    AnswerHead, CallHead, Control, Departure, Incarnation, MessageId, NodeId, PeerMisbehaved,
    WorkerId,
};
pub use message::{
    AnswerMessage, CallMessage, Failure, FunctionRef, Message, Never, TraceContext, Unmade,
};

use crate::codec::{Codec, CodecError, Payload};
pub use crate::worker::Group;

/// Brings messages to peers.
pub trait Agent: Send + Sync + fmt::Debug + 'static {
    /// How values are written on this wire.
    fn codec(&self) -> &Codec;

    /// Whether the wire would take a call with this head and these arguments, with any limit of time.
    /// The runtime asks before it queues a call, and takes back what the wire would not (R5). To be as
    /// quick as [`enqueue`](Self::enqueue), and called as that is (AG-2). A wire without limits takes
    /// everything.
    fn check_call(&self, head: &CallHead, arguments: &Payload) -> Result<(), CodecError> {
        let _ = (head, arguments);
        Ok(())
    }

    /// Queues a message to a peer, connected or not. Never blocks, never fails: a peer that cannot be
    /// reached is suspected in time, and then forgotten.
    fn enqueue(&self, to: NodeId, message: Message);

    /// Writes what is queued for a peer, as far as that can be done without waiting; the rest follows
    /// by itself. Called without any lock held.
    fn flush(&self, to: NodeId);

    /// The node is no longer a member. Of one that left, what is queued is still delivered; of one
    /// that died, everything is thrown away and it is refused from now on.
    fn forget(&self, node: NodeId, departure: Departure);

    /// Delivers what is queued, for at most `patience`, and closes everything. Nothing is handed in
    /// and nobody is suspected after it began.
    fn close(&self, patience: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// How each link is doing.
    fn links(&self) -> Vec<LinkStatistics>;
}

/// What an agent hands to the runtime.
pub trait Inbound: Send + Sync + 'static {
    /// A peer says something. After an error the peer is to be cut off.
    fn receive(self: Arc<Self>, from: NodeId, message: Message) -> Result<(), PeerMisbehaved>;

    /// A peer has been silent for too long, or its address refuses connections.
    fn suspect(self: Arc<Self>, node: NodeId, silent_for: Duration);

    /// A peer sent something that no correct peer sends. It is treated as dead.
    fn misbehaved(self: Arc<Self>, node: NodeId, reason: String);

    /// A peer will not talk to this life of this worker, because it counts it as gone.
    fn refused(self: Arc<Self>, by: NodeId);

    /// Whether a life is over as far as the runtime knows, so that its greetings are refused.
    fn is_gone(&self, node: NodeId) -> bool;
}

/// What an agent knows about its link to one peer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct LinkStatistics {
    /// The peer.
    pub peer: NodeId,
    /// What carries the link at present: `tcp`, `unix`, `memory`, or nothing.
    pub transport: Option<&'static str>,
    /// How many connections have stood so far.
    pub connections: u64,
    /// Messages that the peer has not acknowledged.
    pub queued_messages: usize,
    /// Their weight.
    pub queued_bytes: usize,
    /// Bytes written so far.
    pub bytes_sent: u64,
    /// Bytes read so far.
    pub bytes_received: u64,
    /// Messages sent again after a connection broke.
    pub replayed: u64,
}
