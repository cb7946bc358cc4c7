//! What a worker has at one moment, in a form that can be sent, printed and stored.

use std::sync::Arc;
use std::time::Duration;

use farref_proto::{Leak, Status};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::leaks::{LeakReport, LeakedReference};
use crate::peer::Peer;
use crate::protocol::Core;
use crate::worker::Worker;

/// What a worker has at one moment.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let text = me.rref("kept".to_owned())?;
///
/// let snapshot = me.snapshot();
/// assert_eq!(snapshot.references.len(), 1);
/// assert!(snapshot.references[0].type_name.contains("String"));
///
/// // Any other worker can be asked as well.
/// let other = me.peer("worker1")?.snapshot().await?;
/// assert_eq!(other.worker, "worker1");
/// # drop(text);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// The worker.
    pub worker: String,
    /// Its rank.
    pub rank: u32,
    /// Which life of it.
    pub incarnation: u32,
    /// The group as the worker sees it.
    pub peers: Vec<PeerSnapshot>,
    /// References owned or held.
    pub references: Vec<LeakedReference>,
    /// Calls in either direction that are not answered.
    pub open_calls: u32,
    /// Autograd contexts that the worker takes part in.
    pub contexts: u32,
    /// Plain functions that wait for a thread.
    pub blocking_queue: usize,
    /// Functions that the worker can be called for, with their signatures.
    pub functions: usize,
}

/// A peer as a worker sees it.
///
/// ```
/// #[farref::remote]
/// async fn ping() {}
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let peer = me.peer("worker1")?;
/// ping::on(&peer).await?;
///
/// let snapshot = me.snapshot();
/// let link = snapshot.peers.iter().find(|peer| peer.name == "worker1");
/// let link = link.expect("a member of the group");
/// assert_eq!((&*link.status, link.transport.as_deref()), ("alive", Some("memory")));
/// assert_eq!(link.connections, 1); // it never broke
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PeerSnapshot {
    /// Its name.
    pub name: String,
    /// Its rank.
    pub rank: u32,
    /// Which life of it.
    pub incarnation: u32,
    /// `joining`, `alive`, `left` or `dead`.
    pub status: String,
    /// What carries the link: `tcp`, `unix`, `memory`; none if there is no connection.
    pub transport: Option<String>,
    /// How many connections there have been.
    pub connections: u64,
    /// Messages that it has not acknowledged.
    pub queued_messages: usize,
    /// Their weight.
    pub queued_bytes: usize,
    /// Bytes written to it.
    pub bytes_sent: u64,
    /// Bytes read from it.
    pub bytes_received: u64,
    /// Calls to it that wait because it has enough to do.
    pub calls_held_back: usize,
}

impl Snapshot {
    pub(crate) fn of(core: &Arc<Core>) -> Self {
        let links = core.agent().links();
        let residue = core.look(|node| node.residue());
        let standings: Vec<_> = core.look(|node| node.membership().view().standings().collect());
        let peers = standings
            .into_iter()
            .map(|(worker, standing)| {
                let node = farref_proto::NodeId {
                    worker,
                    incarnation: standing.incarnation,
                };
                let link = links.iter().find(|link| link.peer == node);
                PeerSnapshot {
                    name: core.name_of(node).to_string(),
                    rank: worker.0,
                    incarnation: standing.incarnation.0,
                    status: match standing.status {
                        Status::Joining => "joining",
                        Status::Alive => "alive",
                        Status::Left => "left",
                        Status::Dead => "dead",
                    }
                    .to_owned(),
                    transport: link.and_then(|link| link.transport).map(str::to_owned),
                    connections: link.map_or(0, |link| link.connections),
                    queued_messages: link.map_or(0, |link| link.queued_messages),
                    queued_bytes: link.map_or(0, |link| link.queued_bytes),
                    bytes_sent: link.map_or(0, |link| link.bytes_sent),
                    bytes_received: link.map_or(0, |link| link.bytes_received),
                    calls_held_back: core.held_back(node),
                }
            })
            .collect();
        Self {
            worker: core.name.to_string(),
            rank: core.me.worker.0,
            incarnation: core.me.incarnation.0,
            peers,
            references: references(core).0.to_vec(),
            open_calls: residue.calls,
            contexts: residue.contexts,
            blocking_queue: core.pool.queued(),
            functions: core.registry.len(),
        }
    }
}

/// Everything that the worker refers to or that others refer to on it.
pub(crate) fn references(core: &Core) -> LeakReport {
    let leaks = core.look(|node| node.leaks());
    let described = leaks.iter().map(|leak| describe(core, leak)).collect();
    LeakReport(Arc::new(described))
}

fn describe(core: &Core, leak: &Leak) -> LeakedReference {
    let made = core.holds.made(leak.rref);
    let own = (leak.handles > 0).then(|| core.name.to_string());
    let others = leak
        .holders
        .iter()
        .map(|(_, holder)| core.name_of(*holder).to_string());
    let mut holders: Vec<String> = own.into_iter().chain(others).collect();
    holders.dedup();
    LeakedReference {
        id: leak.rref.to_string(),
        type_name: made
            .map(|made| made.type_name)
            .filter(|name| !name.is_empty())
            .or_else(|| core.registry.type_name(leak.fingerprint))
            .unwrap_or_default()
            .to_owned(),
        owner: core.name_of(leak.owner).to_string(),
        holders,
        location: made.and_then(|made| made.location).map(ToString::to_string),
        age: made.map(|made| made.at.elapsed()),
    }
}

impl Peer {
    /// What that worker has at the moment.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn number() -> u64 {
    ///     7
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let there = number::on(&peer).remote();
    /// there.confirmed().await?;
    ///
    /// let snapshot = peer.snapshot().await?;
    /// assert_eq!(snapshot.worker, "worker1");
    /// assert_eq!(snapshot.references[0].holders, ["worker0"]);
    /// # drop(there);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn snapshot(&self) -> Result<Snapshot> {
        take_snapshot::on(self)
            .timeout(Duration::from_secs(10))
            .await
    }
}

/// Answers [`Peer::snapshot`].
#[farref_macros::remote(name = "farref::snapshot")]
async fn take_snapshot() -> Result<Snapshot> {
    let worker = Worker::current().ok_or_else(|| Error::Config("no worker".to_owned()))?;
    Ok(worker.snapshot())
}
