//! What a wire tells the runtime: messages, members that come and go, peers that are silent or send nonsense.

use std::sync::Arc;
use std::time::Duration;

use farref_proto::{Departure, NodeId, PeerMisbehaved};

use super::message::Message;

/// What an agent hands to the runtime.
///
/// A worker is one; an agent gets it when it is made, and hands in what comes.
///
/// ```
/// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
/// # use farref::Codec;
/// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
/// # #[derive(Debug)]
/// # struct Alone(Codec);
/// # impl Agent for Alone {
/// #     fn codec(&self) -> &Codec { &self.0 }
/// #     fn enqueue(&self, _: NodeId, _: Message) {}
/// #     fn flush(&self, _: NodeId) {}
/// #     fn forget(&self, _: NodeId, _: Departure) {}
/// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
/// #         Box::pin(async {})
/// #     }
/// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
/// # }
/// use farref::Worker;
/// use farref::agent::{Group, Inbound};
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
/// let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
///
/// let mut end = None;
/// let agent = |inbound| {
///     end = Some(inbound); // an agent keeps it for whatever reads its wire
///     Arc::new(Alone(Codec::Postcard))
/// };
/// let worker = Worker::builder("").attach(Group { me, members }, agent).await?;
/// let inbound: Arc<dyn Inbound> = end.and_then(|weak| weak.upgrade()).expect("the worker lives");
///
/// // The wire found out that the peer sends nonsense: its life is over.
/// assert!(!inbound.is_gone(peer));
/// inbound.clone().misbehaved(peer, "frame", "not a message".to_owned());
/// assert!(inbound.is_gone(peer));
/// assert!(!worker.peer("peer")?.is_alive());
/// worker.shutdown().await
/// # }
/// ```
pub trait Inbound: Send + Sync + 'static {
    /// A peer says something. After an error the peer is to be cut off.
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::Codec;
    /// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
    /// # #[derive(Debug)]
    /// # struct Alone(Codec);
    /// # impl Agent for Alone {
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// # }
    /// # use farref::{Error, Worker};
    /// # use farref::agent::{Group, Inbound};
    /// # async fn attach() -> farref::Result<(Worker, Arc<dyn Inbound>, NodeId)> {
    /// #     let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// #     let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
    /// #     let mut end = None;
    /// #     let agent = |inbound| {
    /// #         end = Some(inbound);
    /// #         Arc::new(Alone(Codec::Postcard))
    /// #     };
    /// #     let worker = Worker::builder("").attach(Group { me, members }, agent).await?;
    /// #     let inbound = end.and_then(|weak: std::sync::Weak<dyn Inbound>| weak.upgrade());
    /// #     Ok((worker, inbound.expect("the worker lives"), peer))
    /// # }
    /// use farref::Payload;
    /// use farref::agent::{AnswerHead, AnswerMessage, MessageId};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let (worker, inbound, peer) = attach().await?; // as at the trait
    /// // An answer that nobody asked for is not what a correct peer sends.
    /// let answer = AnswerMessage {
    ///     head: AnswerHead { id: MessageId(7), carried: vec![] },
    ///     origins: Default::default(),
    ///     outcome: Ok(Payload::default()),
    /// };
    /// assert!(inbound.clone().receive(peer, Message::Answer(answer)).is_err());
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn receive(self: Arc<Self>, from: NodeId, message: Message) -> Result<(), PeerMisbehaved>;

    /// A peer says several things, the first one first. Cheaper than one by one: an agent whose reads bring
    /// many messages hands them over together. After an error the peer is to be cut off, and what followed
    /// the message at fault has been thrown away.
    ///
    /// What is in them is taken out of their places (with [`std::mem::replace`], say); what is left there is of no use.
    ///
    /// The runtime asks for each next message while its tables are locked: `messages` must neither block nor call back.
    fn receive_all(
        self: Arc<Self>,
        from: NodeId,
        messages: &mut dyn Iterator<Item = &mut Message>,
    ) -> Result<(), PeerMisbehaved> {
        for message in messages {
            Arc::clone(&self).receive(from, message.take())?;
        }
        Ok(())
    }

    /// Whether calls of a peer are open that it is owed an answer to. An agent need not ask: it may use its time better if
    /// it knows that the peer waits.
    fn owes_answers(&self, peer: NodeId) -> bool {
        let _ = peer;
        false
    }

    /// A peer has been silent for too long, or its address refuses connections.
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::Codec;
    /// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
    /// # #[derive(Debug)]
    /// # struct Alone(Codec);
    /// # impl Agent for Alone {
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// # }
    /// # use farref::{Error, Worker};
    /// # use farref::agent::{Group, Inbound};
    /// # async fn attach() -> farref::Result<(Worker, Arc<dyn Inbound>, NodeId)> {
    /// #     let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// #     let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
    /// #     let mut end = None;
    /// #     let agent = |inbound| {
    /// #         end = Some(inbound);
    /// #         Arc::new(Alone(Codec::Postcard))
    /// #     };
    /// #     let worker = Worker::builder("").attach(Group { me, members }, agent).await?;
    /// #     let inbound = end.and_then(|weak: std::sync::Weak<dyn Inbound>| weak.upgrade());
    /// #     Ok((worker, inbound.expect("the worker lives"), peer))
    /// # }
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let (worker, inbound, peer) = attach().await?; // as at the trait
    /// let pending = ping::on(&worker.peer("peer")?).start();
    /// inbound.clone().suspect(peer, Duration::from_secs(10));
    /// // Of two, one is enough to decide.
    /// assert!(matches!(pending.await, Err(Error::PeerLost { .. })));
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn suspect(self: Arc<Self>, node: NodeId, silent_for: Duration);

    /// A peer sent something that no correct peer sends. It is treated as dead. It is counted
    /// (`farref_misbehaved_total`) under its kind: [`PeerMisbehaved::kind`], or `frame`, `stream`, `session`, `memory` for what is wrong with the wire, or else `other`.
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::Codec;
    /// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
    /// # #[derive(Debug)]
    /// # struct Alone(Codec);
    /// # impl Agent for Alone {
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// # }
    /// # use farref::{Error, Worker};
    /// # use farref::agent::{Group, Inbound};
    /// # async fn attach() -> farref::Result<(Worker, Arc<dyn Inbound>, NodeId)> {
    /// #     let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// #     let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
    /// #     let mut end = None;
    /// #     let agent = |inbound| {
    /// #         end = Some(inbound);
    /// #         Arc::new(Alone(Codec::Postcard))
    /// #     };
    /// #     let worker = Worker::builder("").attach(Group { me, members }, agent).await?;
    /// #     let inbound = end.and_then(|weak: std::sync::Weak<dyn Inbound>| weak.upgrade());
    /// #     Ok((worker, inbound.expect("the worker lives"), peer))
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let (worker, inbound, peer) = attach().await?; // as at the trait
    /// inbound.clone().misbehaved(peer, "frame", "a frame of no known kind".to_owned());
    /// assert!(!worker.peer("peer")?.is_alive());
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn misbehaved(self: Arc<Self>, node: NodeId, kind: &'static str, reason: String);

    /// A peer will not talk to this life of this worker, because it counts it as gone.
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::Codec;
    /// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
    /// # #[derive(Debug)]
    /// # struct Alone(Codec);
    /// # impl Agent for Alone {
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// # }
    /// # use farref::{Error, Worker};
    /// # use farref::agent::{Group, Inbound};
    /// # async fn attach() -> farref::Result<(Worker, Arc<dyn Inbound>, NodeId)> {
    /// #     let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// #     let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
    /// #     let mut end = None;
    /// #     let agent = |inbound| {
    /// #         end = Some(inbound);
    /// #         Arc::new(Alone(Codec::Postcard))
    /// #     };
    /// #     let worker = Worker::builder("").attach(Group { me, members }, agent).await?;
    /// #     let inbound = end.and_then(|weak: std::sync::Weak<dyn Inbound>| weak.upgrade());
    /// #     Ok((worker, inbound.expect("the worker lives"), peer))
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let (worker, inbound, peer) = attach().await?; // as at the trait
    /// inbound.clone().refused(peer);
    /// assert!(!worker.is_member());
    /// assert!(matches!(worker.shutdown().await, Err(Error::Evicted { .. })));
    /// # Ok(())
    /// # }
    /// ```
    fn refused(self: Arc<Self>, by: NodeId);

    /// A worker has come into a group whose list of members is not kept by farref's own protocol.
    /// Nobody else is told.
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::Codec;
    /// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
    /// # #[derive(Debug)]
    /// # struct Alone(Codec);
    /// # impl Agent for Alone {
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// # }
    /// # use farref::{Error, Worker};
    /// # use farref::agent::{Group, Inbound};
    /// # async fn attach() -> farref::Result<(Worker, Arc<dyn Inbound>, NodeId)> {
    /// #     let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// #     let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
    /// #     let mut end = None;
    /// #     let agent = |inbound| {
    /// #         end = Some(inbound);
    /// #         Arc::new(Alone(Codec::Postcard))
    /// #     };
    /// #     let worker = Worker::builder("").attach(Group { me, members }, agent).await?;
    /// #     let inbound = end.and_then(|weak: std::sync::Weak<dyn Inbound>| weak.upgrade());
    /// #     Ok((worker, inbound.expect("the worker lives"), peer))
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let (worker, inbound, peer) = attach().await?; // as at the trait
    /// let late = NodeId::new(2, 1);
    /// assert!(worker.peer("late").is_err());
    /// inbound.clone().admitted(late, "late");
    /// assert!(worker.peer("late")?.is_alive());
    /// inbound.clone().admitted(late, "late"); // said again, it changes nothing
    /// # drop(peer);
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn admitted(self: Arc<Self>, node: NodeId, name: &str);

    /// A worker has gone from a group whose list of members is not kept by farref's own protocol: what
    /// it held is released, calls to it fail. Nobody else is told.
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::Codec;
    /// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
    /// # #[derive(Debug)]
    /// # struct Alone(Codec);
    /// # impl Agent for Alone {
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// # }
    /// # use farref::{Error, Worker};
    /// # use farref::agent::{Group, Inbound};
    /// # async fn attach() -> farref::Result<(Worker, Arc<dyn Inbound>, NodeId)> {
    /// #     let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// #     let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
    /// #     let mut end = None;
    /// #     let agent = |inbound| {
    /// #         end = Some(inbound);
    /// #         Arc::new(Alone(Codec::Postcard))
    /// #     };
    /// #     let worker = Worker::builder("").attach(Group { me, members }, agent).await?;
    /// #     let inbound = end.and_then(|weak: std::sync::Weak<dyn Inbound>| weak.upgrade());
    /// #     Ok((worker, inbound.expect("the worker lives"), peer))
    /// # }
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let (worker, inbound, peer) = attach().await?; // as at the trait
    /// let pending = ping::on(&worker.peer("peer")?).start();
    /// inbound.clone().dismissed(peer, Departure::Left);
    /// assert!(inbound.is_gone(peer));
    /// assert!(matches!(pending.await, Err(Error::PeerLost { .. })));
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn dismissed(self: Arc<Self>, node: NodeId, departure: Departure);

    /// A peer accepts so many calls at once. Until something is said of it, few are sent.
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::{Codec, Worker};
    /// # use farref::agent::{Agent, Departure, Group, Inbound, LinkStatistics, Message, NodeId};
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    ///
    /// /// An agent that only counts the calls it is to send.
    /// #[derive(Debug)]
    /// struct Counting(Codec, AtomicUsize);
    ///
    /// impl Agent for Counting {
    ///     fn enqueue(&self, _: NodeId, _: Message) {
    ///         self.1.fetch_add(1, Ordering::Relaxed);
    ///     }
    ///     // The others as ever.
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// }
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// # let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
    /// # let mut end = None;
    /// let agent = Arc::new(Counting(Codec::Postcard, AtomicUsize::new(0)));
    /// # let make = |inbound| {
    /// #     end = Some(inbound);
    /// #     agent.clone()
    /// # };
    /// # let worker = Worker::builder("").attach(Group { me, members }, make).await?;
    /// # let inbound = end.and_then(|weak: std::sync::Weak<dyn Inbound>| weak.upgrade());
    /// # let inbound = inbound.expect("the worker lives");
    /// // .. attached as at the trait
    /// let to = worker.peer("peer")?;
    /// let calls: Vec<_> = (0..1000).map(|_| ping::on(&to).start()).collect();
    /// assert!(agent.1.load(Ordering::Relaxed) < 1000);
    /// inbound.clone().accepts(peer, 1000);
    /// assert_eq!(agent.1.load(Ordering::Relaxed), 1000);
    /// # drop(calls);
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn accepts(self: Arc<Self>, node: NodeId, max_calls: u32);

    /// How many calls of one peer this worker takes at once
    /// ([`max_calls_per_peer`](crate::WorkerBuilder::max_calls_per_peer)). For wires [without
    /// windows](super::Agent::has_windows), whose peers are not told.
    fn max_calls(&self) -> u32 {
        u32::MAX
    }

    /// Whether a life is over as far as the runtime knows, so that its greetings are refused.
    ///
    /// ```
    /// # use std::{future::Future, pin::Pin, sync::Arc, time::Duration};
    /// # use farref::Codec;
    /// # use farref::agent::{Agent, Departure, LinkStatistics, Message, NodeId};
    /// # #[derive(Debug)]
    /// # struct Alone(Codec);
    /// # impl Agent for Alone {
    /// #     fn codec(&self) -> &Codec { &self.0 }
    /// #     fn enqueue(&self, _: NodeId, _: Message) {}
    /// #     fn flush(&self, _: NodeId) {}
    /// #     fn forget(&self, _: NodeId, _: Departure) {}
    /// #     fn close(&self, _: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
    /// #         Box::pin(async {})
    /// #     }
    /// #     fn links(&self) -> Vec<LinkStatistics> { Vec::new() }
    /// # }
    /// # use farref::{Error, Worker};
    /// # use farref::agent::{Group, Inbound};
    /// # async fn attach() -> farref::Result<(Worker, Arc<dyn Inbound>, NodeId)> {
    /// #     let [me, peer] = [NodeId::new(0, 1), NodeId::new(1, 1)];
    /// #     let members = vec![(me, "me".to_owned()), (peer, "peer".to_owned())];
    /// #     let mut end = None;
    /// #     let agent = |inbound| {
    /// #         end = Some(inbound);
    /// #         Arc::new(Alone(Codec::Postcard))
    /// #     };
    /// #     let worker = Worker::builder("").attach(Group { me, members }, agent).await?;
    /// #     let inbound = end.and_then(|weak: std::sync::Weak<dyn Inbound>| weak.upgrade());
    /// #     Ok((worker, inbound.expect("the worker lives"), peer))
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let (worker, inbound, peer) = attach().await?; // as at the trait
    /// assert!(!inbound.is_gone(peer));
    /// inbound.clone().suspect(peer, Duration::from_secs(10));
    /// assert!(inbound.is_gone(peer));
    /// # worker.crash().await;
    /// # Ok(())
    /// # }
    /// ```
    fn is_gone(&self, node: NodeId) -> bool;

    /// Whether the node is gone because it left: then nothing is wrong if it knocks once more.
    fn has_left(&self, node: NodeId) -> bool {
        let _ = node;
        false
    }

    /// Whether this worker waits for nothing that the node could still say: it has ended, or is leaving and the
    /// node knows. If the connection breaks then, nothing is wrong, and it need not be made anew unless something
    /// is queued for the node.
    fn is_done_with(&self, node: NodeId) -> bool {
        let _ = node;
        false
    }
}
