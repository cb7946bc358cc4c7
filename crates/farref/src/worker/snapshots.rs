//! Taking snapshots: of this worker, and of a peer.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use farref_proto::{Leak, RRefId, Status};

use super::Worker;
use crate::api::peer::Peer;
use crate::error::{Misuse, Result};
use crate::report::calls::{CallTrace, ContextSnapshot, FinishedCall, FunctionTotals};
use crate::report::leaks::{LeakReport, LeakedReference, ReceivedReference};
use crate::report::snapshot::Wanted;
use crate::report::snapshot::{
    NameSnapshot, PeerSnapshot, RunningCall, Snapshot, Totals, WaitingCall, WaitsFor,
};
use crate::runtime::{Core, LOOKUP, NEXT_ITEMS, StartedCall, TakenCall, Traffic};
use crate::tables::holds::{HoldRecord, Origin};
use crate::tables::labels::Labelled;
use crate::values::queue::QueuedUser;

impl Worker {
    /// What this worker has at the moment: calls, peers, references, queues.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn hang() {
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let pending = hang::on(&peer).start();
    /// let snapshot = me.snapshot();
    /// assert_eq!((&*snapshot.worker, snapshot.open_calls), ("worker0", 1));
    /// assert_eq!(snapshot.peers.len(), 2);
    /// # drop(pending);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.core, Wanted::EVERYTHING)
    }

    /// References that this worker holds, and values of its own that are referred to.
    ///
    /// Useful where a test wants to know what is left before the shutdown says so.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// let text = me.rref("kept".to_owned())?;
    /// assert_eq!(me.references().0[0].id, text.id()?);
    /// # drop(text);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn references(&self) -> LeakReport {
        references(&self.core)
    }
}

impl Totals {
    fn of(core: &Core) -> Self {
        let metrics = &core.metrics;
        let (bytes_sent, bytes_received) = core.agent().bytes();
        let (served, served_failed) = core.served.totals();
        Self {
            calls: metrics.calls.total(),
            calls_failed: metrics.failed.total(),
            calls_cancelled: metrics.cancelled.total(),
            served,
            served_failed,
            references_created: metrics.created.total(),
            references_shared: metrics.shared.total(),
            values_freed: metrics.freed.total(),
            bytes_sent,
            bytes_received,
        }
    }
}

/// How many running functions a snapshot names, and how many calls that wait.
const MAX_CALLS: usize = 1000;

/// How many names of references it has.
const MAX_NAMES: usize = 1000;

/// How many contexts it names.
const MAX_CONTEXTS: usize = 100;

impl Snapshot {
    /// With what is wanted of it.
    pub(crate) fn of(core: &Arc<Core>, wanted: Wanted) -> Self {
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
                    bytes_from_memory: link.map_or(0, |link| link.bytes_from_memory),
                    bytes_in_place: link.map_or(0, |link| link.bytes_in_place),
                    calls_made: traffic.made,
                    calls_held_back: traffic.parked,
                    calls_served: traffic.served,
                }
            })
            .collect();
        let (running, waiting) = calls.finish(core);
        let (finished, recorded) = finished(core, &wanted);
        let (names, names_in_all) = names(core);
        let served = core
            .served
            .by_function()
            .map(|one| FunctionTotals::new(one.function, one.failed, one.time, &one.classes));
        Self {
            served: served.collect(),
            finished,
            recorded,
            open_contexts: contexts(core),
            names,
            names_in_all,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime: core.uptime(),
            totals: Totals::of(core),
            running,
            waiting,
            worker: core.name.to_string(),
            rank: core.me.worker.0,
            incarnation: core.me.incarnation.0,
            peers,
            references: some_references(core, wanted.references),
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
    queued: HashMap<(RRefId, u64), QueuedUser>,
    /// Of those, the values that are used by calls which wait for them.
    held_by_callers: HashMap<(RRefId, u64), Vec<String>>,
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
            held_by_callers: HashMap::new(),
            running: Vec::new(),
            used_by: HashMap::new(),
            waiting: Vec::new(),
        }
    }

    /// The calls of a peer.
    fn add(&mut self, core: &Core, name: &str, traffic: &Traffic) {
        for taken in &traffic.running {
            let call = &taken.started;
            if self.queue_number(call).is_some() {
                self.note_callers(taken);
                continue;
            }
            if let Some((rref, _)) = call.on {
                self.used_by.entry(rref).or_default().insert(call.function);
            }
            self.running.push(RunningCall {
                function: title(core, taken),
                caller: name.to_owned(),
                value: call.on.map(|(rref, _)| rref.to_string()),
                age: call.since.elapsed(),
                trace: taken.trace(),
            });
        }
        for call in &traffic.awaiting_value {
            let waiting = WaitingCall {
                function: title_on(core, call.function, Some(call.rref)),
                caller: core.name_of(call.caller).to_string(),
                value: Some(call.rref.to_string()),
                waits_for: WaitsFor::Value,
                used_by: Vec::new(),
                held_by_callers: ids(&call.held_by_callers),
                age: call.since.elapsed(),
            };
            self.waiting.push((Some(call.rref), waiting));
        }
        for taken in &traffic.awaiting_room {
            let call = &taken.started;
            if self.queue_number(call).is_some() {
                self.note_callers(taken);
                continue;
            }
            let waiting = WaitingCall {
                function: title(core, taken),
                caller: name.to_owned(),
                value: call.on.map(|(rref, _)| rref.to_string()),
                waits_for: WaitsFor::Room,
                used_by: Vec::new(),
                held_by_callers: ids(&taken.held_by_callers()),
                age: call.since.elapsed(),
            };
            self.waiting.push((None, waiting));
        }
    }

    /// Under what it is listed, if it waits for its turn.
    fn queue_number(&self, call: &StartedCall) -> Option<(RRefId, u64)> {
        let number = call.on.and_then(|(rref, number)| Some((rref, number?)));
        number.filter(|number| self.queued.contains_key(number))
    }

    /// Queues do not know who waits for those in them.
    fn note_callers(&mut self, taken: &TakenCall) {
        if let Some(number) = self.queue_number(&taken.started) {
            self.held_by_callers
                .insert(number, ids(&taken.held_by_callers()));
        }
    }

    /// Those that run and those that wait, the oldest first.
    fn finish(mut self, core: &Core) -> (Vec<RunningCall>, Vec<WaitingCall>) {
        self.running.sort_by_key(|call| Reverse(call.age));
        self.running.truncate(MAX_CALLS);
        let mut held_by_callers = self.held_by_callers;
        let queued = self.queued.into_iter().map(|(number, queued)| {
            let waiting = WaitingCall {
                function: title_on(core, queued.user.function, Some(queued.rref)),
                caller: core.name_of(queued.user.caller).to_string(),
                value: Some(queued.rref.to_string()),
                waits_for: WaitsFor::Turn,
                used_by: Vec::new(),
                held_by_callers: held_by_callers.remove(&number).unwrap_or_default(),
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

/// What runs, and of streams and lookups, which.
fn title(core: &Core, taken: &TakenCall) -> String {
    let started = &taken.started;
    let asked = taken
        .call
        .as_ref()
        .filter(|_| started.function == LOOKUP)
        .and_then(|call| Some(Labelled::Asked(call.caller, call.request()?)));
    match asked.and_then(|asked| core.labels.of(asked)) {
        Some(lookup) => format!("farref::{}", lookup.title()),
        None => title_on(core, started.function, started.on.map(|(rref, _)| rref)),
    }
}

/// The same of what runs on a value.
fn title_on(core: &Core, function: &'static str, on: Option<RRefId>) -> String {
    let stream = on
        .filter(|_| function == NEXT_ITEMS)
        .and_then(|rref| core.labels.of(Labelled::Stream(rref)));
    match stream {
        Some(stream) => format!("{function} of `{}`", stream.as_str()),
        None => function.to_owned(),
    }
}

fn ids(values: &[RRefId]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

/// The calls that are over, for those who look on; and how many there have been.
fn finished(core: &Core, wanted: &Wanted) -> (Vec<FinishedCall>, u64) {
    let (calls, recorded) = core.served.recent(wanted.known_calls, wanted.calls);
    let began = core.began();
    let told = calls.iter().filter_map(|call| {
        let trace = CallTrace::new(call.trace.trace, call.trace.span, call.parent)?;
        let names = (call.function, core.name_of(call.caller).to_string());
        let times = (call.began.saturating_duration_since(began), call.took);
        Some(FinishedCall::new(names, times, call.failed, trace))
    });
    (told.collect(), recorded)
}

/// What the worker publishes, and how many names there are.
fn names(core: &Core) -> (Vec<NameSnapshot>, usize) {
    let (listed, in_all) = core.published.list(MAX_NAMES, |name, entry| {
        let value = entry.handle.held().ok().map(|held| held.rref);
        let (version, type_name, owner) = (entry.version, entry.type_name, entry.owner);
        (Arc::clone(name), version, type_name, owner, value)
    });
    let named = listed
        .into_iter()
        .filter_map(|(name, version, type_name, owner, value)| {
            Some(NameSnapshot::new(
                name.to_string(),
                version,
                type_name.to_owned(),
                core.name_of(owner).to_string(),
                value?.to_string(),
            ))
        });
    (named.collect(), in_all)
}

/// The contexts that the worker takes part in.
fn contexts(core: &Core) -> Vec<ContextSnapshot> {
    let mut open = core.look(|node| node.open_contexts());
    open.truncate(MAX_CONTEXTS);
    let listeners = match open.is_empty() {
        true => Vec::new(),
        false => core.extensions.listeners(),
    };
    let told = open.into_iter().map(|context| {
        let workers = core.look(|node| node.context_workers(context));
        let workers = workers
            .into_iter()
            .map(|node| core.name_of(node).to_string());
        let notes = listeners.iter().filter_map(|one| one.describe(context));
        ContextSnapshot::new(
            context.to_string(),
            core.name_of(context.origin).to_string(),
            workers.collect(),
            notes.collect(),
        )
    });
    told.collect()
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
    let hold = core.look(|node| node.refs(leak.rref).hold(leak.rref).cloned());
    let mut what = None;
    let (location, received) = match hold.as_ref().map(HoldRecord::origin) {
        Some(Origin::Here(location)) => (Some(location.to_string()), None),
        Some(Origin::Told(told)) => {
            what = Some(told.what.to_string());
            (Some(told.line.to_string()), None)
        }
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
    let stream = core.labels.of(Labelled::Stream(leak.rref));
    let type_name = match (stream, what) {
        (Some(stream), _) => stream.title(),
        (None, Some(what)) => what,
        (None, None) => core
            .known_type(leak.fingerprint)
            .unwrap_or_default()
            .to_owned(),
    };
    LeakedReference {
        id: leak.rref.to_string(),
        type_name,
        owner: core.name_of(leak.owner).to_string(),
        holders,
        location,
        made_by: core.name_of(leak.rref.origin).to_string(),
        received,
        age: hold.map(|hold| core.holds.time_of(&hold).elapsed()),
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
    let worker = Worker::current().ok_or(Misuse::NoWorker)?;
    Ok(worker.snapshot())
}
