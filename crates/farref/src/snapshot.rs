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
    /// The version of farref that it was built with.
    pub version: String,
    /// The worker.
    pub worker: String,
    /// Its rank.
    pub rank: u32,
    /// Which life of it.
    pub incarnation: u32,
    /// How long it has been there.
    pub uptime: Duration,
    /// The group as the worker sees it.
    pub peers: Vec<PeerSnapshot>,
    /// References owned or held. Who looks from outside may see only some of them.
    pub references: Vec<LeakedReference>,
    /// How many there are.
    pub references_in_all: usize,
    /// Functions that run for others, the oldest first; at most a thousand.
    pub running: Vec<RunningCall>,
    /// What was counted since the worker began.
    pub totals: Totals,
    /// Calls in either direction that are not answered.
    pub open_calls: u32,
    /// Autograd contexts that the worker takes part in.
    pub contexts: u32,
    /// Plain functions that wait for a thread.
    pub blocking_queue: usize,
    /// Functions that the worker can be called for, with their signatures.
    pub functions: usize,
}

/// A function that runs for somebody.
///
/// ```
/// use tokio::sync::Notify;
///
/// static BEGUN: Notify = Notify::const_new();
///
/// #[farref::remote(name = "jobs::endless")]
/// async fn endless() {
///     BEGUN.notify_one();
///     std::future::pending().await
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let pending = endless::on(&cluster.worker(0).peer("worker1")?).start();
/// BEGUN.notified().await;
///
/// let snapshot = cluster.worker(1).snapshot();
/// assert_eq!(snapshot.running[0].function, "jobs::endless");
/// assert_eq!(snapshot.running[0].caller, "worker0");
/// # drop(pending);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunningCall {
    /// The function.
    pub function: String,
    /// Who called it.
    pub caller: String,
    /// How long ago the call was taken up.
    pub age: Duration,
}

/// What a worker has counted since it began.
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
/// drop(me.rref(1)?);
///
/// let totals = me.snapshot().totals;
/// assert_eq!((totals.calls, totals.calls_failed), (1, 0));
/// assert_eq!((totals.references_created, totals.values_freed), (1, 1));
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Totals {
    /// Calls made.
    pub calls: u64,
    /// Those that brought an error.
    pub calls_failed: u64,
    /// Those that the program dropped before they had ended.
    pub calls_cancelled: u64,
    /// Calls carried out for others, and for this worker itself.
    pub served: u64,
    /// Those of them that failed.
    pub served_failed: u64,
    /// References made.
    pub references_created: u64,
    /// References sent along with calls and answers.
    pub references_shared: u64,
    /// Values that nobody referred to any more.
    pub values_freed: u64,
    /// Bytes written.
    pub bytes_sent: u64,
    /// Bytes read.
    pub bytes_received: u64,
}

impl Totals {
    fn of(core: &Core) -> Self {
        let telemetry = &core.telemetry;
        let (bytes_sent, bytes_received) = core.agent().bytes();
        Self {
            calls: telemetry.calls.total(),
            calls_failed: telemetry.failed.total(),
            calls_cancelled: telemetry.cancelled.total(),
            served: telemetry.served.total(),
            served_failed: telemetry.served_failed.total(),
            references_created: telemetry.created.total(),
            references_shared: telemetry.shared.total(),
            values_freed: telemetry.freed.total(),
            bytes_sent,
            bytes_received,
        }
    }
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
    /// Where it listens, as far as the worker knows: `tcp://host:port`, `unix:name`.
    pub addresses: Vec<String>,
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
    /// Calls to it that are not answered.
    pub calls_made: usize,
    /// Of those, the ones that wait because it has enough to do.
    pub calls_held_back: usize,
    /// Its calls that the worker has not answered.
    pub calls_served: usize,
}

/// How many running functions a snapshot names.
const MAX_RUNNING: usize = 1000;

impl Snapshot {
    /// With at most so many references.
    pub(crate) fn of(core: &Arc<Core>, references: usize) -> Self {
        let mut running = Vec::new();
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
                let name = core.name_of(node).to_string();
                let traffic = core.traffic(node);
                running.extend(traffic.running.iter().map(|(function, since)| RunningCall {
                    function: (*function).to_owned(),
                    caller: name.clone(),
                    age: since.elapsed(),
                }));
                let card = core.names.directory().and_then(|known| known.known(node));
                PeerSnapshot {
                    name,
                    rank: worker.0,
                    incarnation: standing.incarnation.0,
                    status: match standing.status {
                        Status::Joining => "joining",
                        Status::Alive => "alive",
                        Status::Left => "left",
                        Status::Dead => "dead",
                    }
                    .to_owned(),
                    addresses: card.map_or_else(Vec::new, |card| {
                        card.addresses.iter().map(ToString::to_string).collect()
                    }),
                    transport: link.and_then(|link| link.transport).map(str::to_owned),
                    connections: link.map_or(0, |link| link.connections),
                    queued_messages: link.map_or(0, |link| link.queued_messages),
                    queued_bytes: link.map_or(0, |link| link.queued_bytes),
                    bytes_sent: link.map_or(0, |link| link.bytes_sent),
                    bytes_received: link.map_or(0, |link| link.bytes_received),
                    calls_made: traffic.made,
                    calls_held_back: traffic.held_back,
                    calls_served: traffic.served,
                }
            })
            .collect();
        running.sort_by_key(|call| std::cmp::Reverse(call.age));
        running.truncate(MAX_RUNNING);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: core.uptime(),
            totals: Totals::of(core),
            running,
            worker: core.name.to_string(),
            rank: core.me.worker.0,
            incarnation: core.me.incarnation.0,
            peers,
            references: some_references(core, references),
            references_in_all: residue.references as usize,
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

/// At most so many of them, looked up in steps that do not hold the worker up.
fn some_references(core: &Core, most: usize) -> Vec<LeakedReference> {
    let mut leaks = Vec::new();
    for shard in 0..core.look(|node| node.shards()) {
        leaks.extend(core.look(|node| node.leaks_in(shard, most)));
    }
    leaks.sort_unstable_by_key(|leak| leak.rref);
    leaks.truncate(most);
    leaks.iter().map(|leak| describe(core, leak)).collect()
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
