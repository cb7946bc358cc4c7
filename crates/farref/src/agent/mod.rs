//! The interface between the runtime and a wire.
//!
//! The runtime decides *what* is said to whom; an [`Agent`] brings it there, and hands in what peers
//! say through [`Inbound`]. An agent knows connections, framing and the encoding of values
//! ([`Codec`]); it knows no rule about references, calls or membership. The native agent speaks
//! farref's own protocol; another agent may speak somebody else's.
//!
//! # Rules for an agent
//!
//! - **AG-1** Messages to one peer arrive exactly once. Control messages to one peer arrive in the
//!   order in which they were queued. So do calls whose messages have up to 64 KiB, since methods of a value run in it and
//!   a stream's batches are asked for in it; and a call and its cancellation. Everything else may overtake.
//!   Nobody else sees to this: a call that is handed in again after its answer is run again, against D1, and of two
//!   questions for a stream's batches that come the wrong way round the later one has the earlier items, against T1.
//! - **AG-2** [`Agent::enqueue`] is called with the runtime's protocol lock held: it only queues, and
//!   calls nothing of [`Inbound`].
//! - **AG-3** What one peer sends is handed in one by one, by one thread at a time.
//! - **AG-4** Control messages and signs of life never wait for user data.
//!
//! # A wire of channels
//!
//! Two workers in one process, with a channel to each:
//!
//! ```
//! use std::collections::HashMap;
//! use std::pin::Pin;
//! use std::sync::{Arc, Mutex, Weak};
//! use std::time::Duration;
//!
//! use farref::agent::{Agent, Departure, Group, Inbound, LinkStatistics, Message, NodeId};
//! use farref::{Codec, Worker};
//! use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
//!
//! /// The channel to each worker.
//! type Switchboard = Arc<Mutex<HashMap<NodeId, UnboundedSender<(NodeId, Message)>>>>;
//!
//! #[derive(Debug)]
//! struct Channels {
//!     me: NodeId,
//!     codec: Codec,
//!     switchboard: Switchboard,
//! }
//!
//! impl Channels {
//!     fn start(me: NodeId, switchboard: Switchboard, inbound: Weak<dyn Inbound>) -> Arc<Self> {
//!         let (sender, mut receiver) = unbounded_channel();
//!         switchboard.lock().unwrap().insert(me, sender);
//!         // One task hands everything in, so it comes one by one (AG-3).
//!         tokio::spawn(async move {
//!             while let Some((from, message)) = receiver.recv().await {
//!                 let Some(inbound) = inbound.upgrade() else {
//!                     break; // the worker is gone
//!                 };
//!                 if let Err(error) = inbound.clone().receive(from, message) {
//!                     inbound.misbehaved(from, error.kind(), error.to_string());
//!                 }
//!             }
//!         });
//!         let codec = Codec::Postcard;
//!         Arc::new(Self { me, codec, switchboard })
//!     }
//! }
//!
//! impl Agent for Channels {
//!     fn codec(&self) -> &Codec {
//!         &self.codec
//!     }
//!
//!     // A channel keeps the order and has room for all (AG-1, AG-2).
//!     fn enqueue(&self, to: NodeId, message: Message) {
//!         if let Some(peer) = self.switchboard.lock().unwrap().get(&to) {
//!             let _ = peer.send((self.me, message));
//!         }
//!     }
//!
//!     fn flush(&self, _: NodeId) {} // it is there already
//!
//!     fn forget(&self, node: NodeId, _: Departure) {
//!         self.switchboard.lock().unwrap().remove(&node);
//!     }
//!
//!     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
//!         Box::pin(async { drop(self.switchboard.lock().unwrap().remove(&self.me)) })
//!     }
//!
//!     fn links(&self) -> Vec<LinkStatistics> {
//!         Vec::new()
//!     }
//! }
//!
//! #[farref::remote]
//! async fn add(a: i64, b: i64) -> i64 {
//!     a + b
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> farref::Result<()> {
//! let switchboard = Switchboard::default();
//! let [a, b] = [NodeId::new(0, 1), NodeId::new(1, 1)];
//! let members = vec![(a, "a".to_owned()), (b, "b".to_owned())];
//! let worker = |me| {
//!     let group = Group { me, members: members.clone() };
//!     let switchboard = switchboard.clone();
//!     Worker::builder("").attach(group, move |inbound| Channels::start(me, switchboard, inbound))
//! };
//! let (a, b) = tokio::try_join!(worker(a), worker(b))?;
//!
//! assert_eq!(add::on(&a.peer("b")?, 1, 2).await?, 3);
//! tokio::try_join!(a.shutdown(), b.shutdown())?;
//! # Ok(())
//! # }
//! ```

mod ending;
mod group;
mod inbound;
mod message;
mod origins;
mod statistics;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

pub use ending::Ending;
pub use farref_proto::{
    AnswerHead, CallError, CallHead, Carried, ContextId, Control, Departure, Fingerprint,
    Incarnation, MessageId, NodeId, PeerMisbehaved, RRefId, RefError, Target, WorkerId,
};
pub use group::Group;
pub use inbound::Inbound;
#[cfg(test)]
pub(crate) use message::SMALL;
pub use message::{
    AnswerMessage, CallMessage, Caller, Failure, FunctionRef, MAX_CALLERS, Message, Never,
    TraceContext, Unmade,
};
pub(crate) use message::{request_of, weigh};
pub use origins::{Origins, SourceLine};
pub use statistics::LinkStatistics;

pub use crate::error::ErrorValue;

pub use crate::codec::scope::{parameters, read_again};
use crate::codec::{Codec, CodecError, Payload};

/// Brings messages to peers.
///
/// The least there can be: an agent for a group of one, which has nobody to talk to. The
/// [module](self) has one that talks.
///
/// ```
/// use std::pin::Pin;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use farref::agent::{Agent, Departure, Group, LinkStatistics, Message, NodeId};
/// use farref::{Codec, Worker};
///
/// #[derive(Debug)]
/// struct Alone(Codec);
///
/// impl Agent for Alone {
///     fn codec(&self) -> &Codec {
///         &self.0
///     }
///
///     fn enqueue(&self, to: NodeId, message: Message) {
///         unreachable!("{message:?} to {to}, who is not there");
///     }
///
///     fn flush(&self, _: NodeId) {}
///
///     fn forget(&self, _: NodeId, _: Departure) {}
///
///     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
///         Box::pin(async {}) // nothing is under way
///     }
///
///     fn links(&self) -> Vec<LinkStatistics> {
///         Vec::new()
///     }
/// }
///
/// #[farref::remote]
/// async fn square(x: u64) -> u64 {
///     x * x
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let me = NodeId::new(0, 1);
/// let group = Group { me, members: vec![(me, "alone".to_owned())] };
/// let agent = |_inbound| Arc::new(Alone(Codec::Postcard));
/// let worker = Worker::builder("").attach(group, agent).await?;
/// assert_eq!(square::on(&worker.me(), 3).await?, 9);
/// worker.shutdown().await
/// # }
/// ```
pub trait Agent: Send + Sync + fmt::Debug + 'static {
    /// How values are written on this wire.
    fn codec(&self) -> &Codec;

    /// Whether the wire would take a call with this head and these arguments, with any limit of time.
    /// The runtime asks before it queues a call, and takes back what the wire would not (R5). To be as
    /// quick as [`enqueue`](Self::enqueue), and called as that is (AG-2). A wire without limits takes
    /// everything.
    ///
    /// ```
    /// use farref::agent::{Agent, CallHead};
    /// use farref::{Codec, CodecError, Error, Payload, Worker};
    /// # use std::{pin::Pin, sync::Arc, time::Duration};
    /// # use farref::agent::{Departure, Group, LinkStatistics, Message, NodeId};
    ///
    /// /// A wire for small things.
    /// #[derive(Debug)]
    /// struct Narrow(Codec);
    ///
    /// impl Agent for Narrow {
    ///     fn check_call(&self, _: &CallHead, arguments: &Payload) -> Result<(), CodecError> {
    ///         match arguments.len() {
    ///             0..1000 => Ok(()),
    ///             more => Err(CodecError::new(format!("{more} bytes do not fit"))),
    ///         }
    ///     }
    ///     // The others as ever.
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// }
    ///
    /// #[farref::remote]
    /// async fn size(data: Vec<u8>) -> usize {
    ///     data.len()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let [me, far] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// # let group = Group { me, members: vec![(me, "me".to_owned()), (far, "far".to_owned())] };
    /// # let agent = |_inbound| Arc::new(Narrow(Codec::Postcard));
    /// # let worker = Worker::builder("").attach(group, agent).await?;
    /// let refused = size::on(&worker.peer("far")?, vec![0; 2000]).await;
    /// assert!(matches!(refused, Err(Error::Codec { what: "the arguments", action: "sent", .. })));
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn check_call(&self, head: &CallHead, arguments: &Payload) -> Result<(), CodecError> {
        let _ = (head, arguments);
        Ok(())
    }

    /// Whether peers on this wire keep to what they are told they may ask at once, and count
    /// [`Credit`](Message::Credit). A peer that asks for more is cut off, unless its wire has no such
    /// windows: then nobody is, and the agent stops reading from a peer of which as many calls are open
    /// as [`Inbound::max_calls`] says.
    ///
    /// ```
    /// use farref::agent::Agent;
    ///
    /// /// How many calls of a peer an agent reads before it waits for some to be done.
    /// fn most_read(agent: &dyn Agent, max_calls: u32) -> Option<u32> {
    ///     (!agent.has_windows()).then_some(max_calls)
    /// }
    /// ```
    fn has_windows(&self) -> bool {
        true
    }

    /// Whether peers on this wire can be asked for what they have [published](crate::Worker::publish): whether
    /// functions of farref's own can be called on all of them, with references in their answers.
    fn has_names(&self) -> bool {
        true
    }

    /// Queues a message to a peer, connected or not. Never blocks, never fails: a peer that cannot be
    /// reached is suspected in time, and then forgotten.
    fn enqueue(&self, to: NodeId, message: Message);

    /// The same, and says whether [`flush`](Self::flush) is needed for the message to leave: not if the agent is about
    /// to send what is queued for that peer anyway. The runtime calls this one.
    fn enqueue_needs_flush(&self, to: NodeId, message: Message) -> bool {
        self.enqueue(to, message);
        true
    }

    /// Writes what is queued for a peer, as far as that can be done without waiting; the rest follows
    /// by itself. Called without any lock held.
    fn flush(&self, to: NodeId);

    /// Somebody here wants to know when this peer is gone, whether or not anything is ever said to it. A wire that
    /// notices that only of peers to whom there is a connection makes one, and keeps it. Called without any lock held;
    /// may be called again.
    ///
    /// ```
    /// # use std::{pin::Pin, sync::Arc, time::Duration};
    /// # use farref::{Codec, Worker};
    /// # use farref::agent::{Agent, Departure, Group, LinkStatistics, Message, NodeId};
    /// use std::sync::Mutex;
    ///
    /// /// An agent that only notes whom it is to watch.
    /// #[derive(Debug, Default)]
    /// struct Noting(Codec, Mutex<Vec<NodeId>>);
    ///
    /// impl Agent for Noting {
    ///     fn watch(&self, peer: NodeId) {
    ///         self.1.lock().unwrap().push(peer);
    ///     }
    ///     // The others as ever.
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let [me, far] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// # let group = Group { me, members: vec![(me, "me".to_owned()), (far, "far".to_owned())] };
    /// let agent = Arc::new(Noting::default());
    /// # let worker = Worker::builder("").attach(group, |_inbound| agent.clone()).await?;
    /// // .. attached as at the trait
    /// let gone = worker.peer("far")?.gone();
    /// assert_eq!(*agent.1.lock().unwrap(), [far]);
    /// # drop(gone);
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn watch(&self, peer: NodeId) {
        let _ = peer;
    }

    /// The node is no longer a member. Of one that left, what is queued is still delivered; of one
    /// that died, everything is thrown away and it is refused from now on.
    fn forget(&self, node: NodeId, departure: Departure);

    /// Delivers what is queued, for at most `limit`, and closes everything. Nothing is handed in
    /// and nobody is suspected after it began.
    fn close(&self, limit: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;

    /// How each link is doing.
    fn links(&self) -> Vec<LinkStatistics>;

    /// How the workers of this wire's group end together, if not by farref's own protocol. There is an
    /// example at [`Ending`].
    fn ending(&self) -> Option<&dyn Ending> {
        None
    }

    /// How many bytes were written and read so far. An agent that does not remember links that are gone
    /// knows of those that are there.
    fn bytes(&self) -> (u64, u64) {
        self.links().iter().fold((0, 0), |(sent, received), link| {
            (sent + link.bytes_sent, received + link.bytes_received)
        })
    }
}
