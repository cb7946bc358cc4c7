//! What the native wire asks of its worker and tells it, beside [`Inbound`](crate::agent::Inbound).

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use farref_proto::NodeId;

use crate::native::handshake::Rejection;
use crate::rendezvous::Card;
use crate::report::snapshot::{Snapshot, Wanted};

/// A future on the heap.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where peers are, whom the wire has met and who has rejected it, starvation, snapshots for observers.
pub(crate) trait WireCallbacks: Send + Sync + 'static {
    /// How to reach a node. Asked again, with growing pauses, for as long as the node is a member.
    fn lookup(&self, node: NodeId) -> BoxFuture<'_, Result<Card, String>>;

    /// What a node is called, as far as that is known without asking anybody.
    fn name(&self, node: NodeId) -> Option<Arc<str>>;

    /// A peer has proved itself and will have so many calls of this worker in flight. Said for each
    /// connection, before the first message that comes on it.
    fn met(&self, card: &Card, max_calls: u32);

    /// Whether exactly this life is a member of the group or joining it, as far as is known here.
    fn is_live(&self, node: NodeId) -> bool;

    /// Asks `forget` of each of these who is neither a member nor joining whether it is forgotten, and lets go of what is kept of those
    /// that are. Until it returns, nothing is said to anybody, nor taken in, nor does anybody join.
    fn unmet(&self, nodes: &[NodeId], forget: &mut dyn FnMut(NodeId) -> bool);

    /// Whether the worker is a member, so that it can let others in.
    fn is_member(&self) -> bool;

    /// A peer does not take this worker's connections, for a reason that no later attempt can change.
    fn rejected(&self, by: NodeId, rejection: Rejection);

    /// Whether the worker is in its group, or about to be.
    fn is_here(&self) -> bool;

    /// The program keeps its runtime from running: said when that begins, with no time at all, and when it
    /// has lasted so long that somebody should know.
    fn starving(&self, lasted: Duration);

    /// What an observer is shown, who is taken to look on if it wants to see calls. None if the worker is gone.
    fn snapshot(&self, wanted: Wanted) -> Option<Snapshot>;
}
