//! What a worker has at one moment, in a form that can be sent, printed and stored.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use farref_proto::{Leak, RRefId, Status};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::face::peer::Peer;
use crate::report::leaks::{LeakReport, LeakedReference, ReceivedReference};
use crate::runtime::handle::Origin;
use crate::runtime::{Core, Taken, Traffic};
use crate::values::queue::Queued;
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
    /// Calls that wait for a value, the oldest first; at most a thousand.
    #[serde(default)]
    pub waiting: Vec<WaitingCall>,
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
    /// The value that it uses, if it is a method or copies one: the [id](crate::RRef::id) of references to it.
    #[serde(default)]
    pub value: Option<String>,
    /// How long ago the call was taken up.
    pub age: Duration,
}

/// A call that has arrived and waits: for the value that it is on, or until its answer may be made.
///
/// Two that wait for each other, or one that waits for a method which never ends, can be told from work by
/// what uses the value meanwhile.
///
/// ```
/// use farref::WaitsFor;
/// use tokio::sync::Notify;
///
/// static BEGUN: Notify = Notify::const_new();
///
/// struct Table;
///
/// #[farref::remote]
/// impl Table {
///     pub async fn new() -> Self {
///         Self
///     }
///
///     pub async fn rebuild(&mut self) {
///         BEGUN.notify_one();
///         std::future::pending().await
///     }
///
///     pub async fn get(&self) -> u64 {
///         7
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let table = Table::new_on(&cluster.worker(0).peer("worker1")?).remote();
/// let rebuild = table.rebuild().start();
/// BEGUN.notified().await;
/// let get = table.get().start();
/// # while cluster.worker(1).snapshot().open_calls < 2 {
/// #     tokio::time::sleep(std::time::Duration::from_millis(1)).await;
/// # }
///
/// let snapshot = cluster.worker(1).snapshot();
/// let call = &snapshot.waiting[0];
/// assert!(call.function.ends_with("Table::get"));
/// assert_eq!((call.waits_for, &call.value), (WaitsFor::Turn, &Some(table.id()?)));
/// assert!(call.used_by[0].ends_with("Table::rebuild"));
/// # drop((rebuild, get, table));
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WaitingCall {
    /// The function.
    pub function: String,
    /// Who called it.
    pub caller: String,
    /// The value that it is on, if it is on one: the [id](crate::RRef::id) of references to it.
    pub value: Option<String>,
    /// What it waits for.
    pub waits_for: WaitsFor,
    /// The functions that use the value meanwhile. Whoever looks at it with
    /// [`local`](crate::RRef::local) and calls whose results stay are not among them.
    pub used_by: Vec<String>,
    /// How long it has waited.
    pub age: Duration,
}

/// What a call that has arrived waits for.
///
/// ```
/// use farref::WaitsFor;
///
/// assert_eq!(WaitsFor::Value.to_string(), "the value to be made");
/// assert_eq!(WaitsFor::Turn.to_string(), "its turn");
/// assert_eq!(WaitsFor::Room.to_string(), "room for its answer");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum WaitsFor {
    /// For the value: its constructor has not finished, or has not begun.
    Value,
    /// For those that use the value, or wait for it, before it.
    Turn,
    /// Until its caller has received more of what this worker has for it: its answers are large
    /// ([`max_answer_bytes_per_peer`](crate::WorkerBuilder::max_answer_bytes_per_peer)).
    Room,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Value => "the value to be made",
            Self::Turn => "its turn",
            Self::Room => "room for its answer",
        })
    }
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

/// How many running functions a snapshot names, and how many calls that wait.
const MAX_CALLS: usize = 1000;

impl Snapshot {
    /// With at most so many references.
    pub(crate) fn of(core: &Arc<Core>, references: usize) -> Self {
        let mut calls = Calls::new(core);
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
                calls.add(core, &name, &traffic);
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
        let (running, waiting) = calls.finish(core);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: core.uptime(),
            totals: Totals::of(core),
            running,
            waiting,
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

/// Calls that have arrived, sorted into those that run and those that wait.
struct Calls {
    /// Those that wait for their turn, by their values and what the queues call them.
    queued: HashMap<(RRefId, u64), Queued>,
    running: Vec<RunningCall>,
    /// What uses which value.
    used_by: HashMap<RRefId, HashSet<&'static str>>,
    /// And the value that it matters to them who uses.
    waiting: Vec<(Option<RRefId>, WaitingCall)>,
}

impl Calls {
    fn new(core: &Core) -> Self {
        let queued = core.queues.waiting().into_iter();
        Self {
            queued: queued
                .map(|queued| ((queued.rref, queued.number), queued))
                .collect(),
            running: Vec::new(),
            used_by: HashMap::new(),
            waiting: Vec::new(),
        }
    }

    /// The calls of a peer.
    fn add(&mut self, core: &Core, name: &str, traffic: &Traffic) {
        for call in &traffic.running {
            if self.is_queued(call) {
                continue;
            }
            if let Some((rref, _)) = call.on {
                self.used_by.entry(rref).or_default().insert(call.function);
            }
            self.running.push(RunningCall {
                function: call.function.to_owned(),
                caller: name.to_owned(),
                value: call.on.map(|(rref, _)| rref.to_string()),
                age: call.since.elapsed(),
            });
        }
        for call in &traffic.waiting {
            let waiting = WaitingCall {
                function: call.function.to_owned(),
                caller: core.name_of(call.caller).to_string(),
                value: Some(call.rref.to_string()),
                waits_for: WaitsFor::Value,
                used_by: Vec::new(),
                age: call.since.elapsed(),
            };
            self.waiting.push((Some(call.rref), waiting));
        }
        for call in &traffic.held_back_here {
            if self.is_queued(call) {
                continue;
            }
            let waiting = WaitingCall {
                function: call.function.to_owned(),
                caller: name.to_owned(),
                value: call.on.map(|(rref, _)| rref.to_string()),
                waits_for: WaitsFor::Room,
                used_by: Vec::new(),
                age: call.since.elapsed(),
            };
            self.waiting.push((None, waiting));
        }
    }

    /// Whether it is listed as a call that waits for its turn.
    fn is_queued(&self, call: &Taken) -> bool {
        let number = call.on.and_then(|(rref, number)| Some((rref, number?)));
        number.is_some_and(|number| self.queued.contains_key(&number))
    }

    /// Those that run and those that wait, the oldest first.
    fn finish(mut self, core: &Core) -> (Vec<RunningCall>, Vec<WaitingCall>) {
        self.running.sort_by_key(|call| Reverse(call.age));
        self.running.truncate(MAX_CALLS);
        let queued = self.queued.into_values().map(|queued| {
            let waiting = WaitingCall {
                function: queued.user.function.to_owned(),
                caller: core.name_of(queued.user.caller).to_string(),
                value: Some(queued.rref.to_string()),
                waits_for: WaitsFor::Turn,
                used_by: Vec::new(),
                age: queued.since.elapsed(),
            };
            (Some(queued.rref), waiting)
        });
        self.waiting.extend(queued);
        self.waiting.sort_by_key(|(_, call)| Reverse(call.age));
        self.waiting.truncate(MAX_CALLS);
        let used_by = self.used_by;
        let waiting = self.waiting.into_iter().map(|(rref, mut call)| {
            let users = rref.and_then(|rref| used_by.get(&rref));
            let users = users.into_iter().flatten();
            call.used_by = users.map(|&function| function.to_owned()).collect();
            call.used_by.sort();
            call
        });
        (self.running, waiting.collect())
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
    let (location, received) = match made.as_ref().map(|made| &made.origin) {
        Some(Origin::Here(location)) => (Some(location.to_string()), None),
        Some(Origin::Received(received)) => {
            let line = received.line.as_ref().map(ToString::to_string);
            let received = ReceivedReference {
                from: core.name_of(received.from).to_string(),
                function: received.function.to_owned(),
                returned: received.returned,
            };
            (line, Some(received))
        }
        Some(Origin::Unknown) | None => (None, None),
    };
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
            .as_ref()
            .map(|made| made.type_name)
            .filter(|name| !name.is_empty())
            .or_else(|| core.registry.type_name(leak.fingerprint))
            .unwrap_or_default()
            .to_owned(),
        owner: core.name_of(leak.owner).to_string(),
        holders,
        location,
        made_by: core.name_of(leak.rref.origin).to_string(),
        received,
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
