//! What a wire says of its link to one peer, for snapshots.

use farref_proto::NodeId;

/// What an agent knows about its link to one peer.
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
/// /// How much a worker has to say that its peers have not heard yet.
/// fn backlog(agent: &dyn Agent) -> usize {
///     agent.links().iter().map(|link| link.queued_bytes).sum()
/// }
///
/// // An agent without links has nothing queued.
/// assert_eq!(backlog(&Alone(Codec::Postcard)), 0);
/// ```
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
    /// Of those, bytes that were read straight out of the peer's memory.
    pub bytes_from_memory: u64,
    /// And bytes that are read where the peer has put them, in memory that both have: they were not copied.
    pub bytes_in_place: u64,
    /// Messages sent again after a connection broke.
    pub replayed: u64,
}

impl LinkStatistics {
    /// A link that has not carried anything; fill in what is known.
    ///
    /// ```
    /// use farref::agent::{LinkStatistics, NodeId};
    ///
    /// let mut link = LinkStatistics::new(NodeId::new(1, 1));
    /// link.transport = Some("pigeon");
    /// assert_eq!(link.connections, 0);
    /// ```
    pub fn new(peer: NodeId) -> Self {
        Self {
            peer,
            transport: None,
            connections: 0,
            queued_messages: 0,
            queued_bytes: 0,
            bytes_sent: 0,
            bytes_received: 0,
            bytes_from_memory: 0,
            bytes_in_place: 0,
            replayed: 0,
        }
    }
}
