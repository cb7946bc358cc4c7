//! What a worker has at one moment, in a form that can be sent, printed and stored.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::calls::{CallTrace, ContextSnapshot, FinishedCall, FunctionTotals};
use super::leaks::LeakedReference;

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
    /// Those that it was called for, and what was counted of them.
    #[serde(default)]
    pub served: Vec<FunctionTotals>,
    /// Calls that are over, the latest last: those since the last look, for who [looks on](crate::observe::Observer::calls).
    #[serde(default)]
    pub finished: Vec<FinishedCall>,
    /// How many calls were recorded for those who look on, since the worker began.
    #[serde(default)]
    pub recorded: u64,
    /// The contexts that the worker takes part in, the oldest first; at most a hundred.
    #[serde(default)]
    pub open_contexts: Vec<ContextSnapshot>,
    /// What the worker [publishes](crate::Worker::publish), by name; at most a thousand.
    #[serde(default)]
    pub names: Vec<NameSnapshot>,
    /// How many names there are.
    #[serde(default)]
    pub names_in_all: usize,
}

/// A name that a worker publishes a reference under.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = farref::testing::Cluster::start(2).await?;
/// let me = cluster.worker(0);
/// let weights = me.rref(vec![0.5_f32])?;
/// let version = me.publish("weights", &weights)?;
///
/// let names = me.snapshot().names;
/// assert_eq!((&*names[0].name, names[0].version), ("weights", version.number()));
/// assert_eq!((&*names[0].owner, &names[0].value), ("worker0", &weights.id()?));
/// assert!(names[0].type_name.contains("Vec<f32>"));
/// # drop(weights);
/// # cluster.shutdown().await
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NameSnapshot {
    /// The name.
    pub name: String,
    /// Which of what was published under it, one after the other: its [number](crate::NameVersion::number).
    pub version: u64,
    /// The type of the value that it stands for.
    pub type_name: String,
    /// The worker that has the value.
    pub owner: String,
    /// The value: the [id](crate::RRef::id) of references to it.
    pub value: String,
}

impl NameSnapshot {
    pub(crate) fn new(
        name: String,
        version: u64,
        type_name: String,
        owner: String,
        value: String,
    ) -> Self {
        Self {
            name,
            version,
            type_name,
            owner,
            value,
        }
    }
}

/// How much of a worker somebody wants to see.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// References, at most.
    pub(crate) references: usize,
    /// Calls that are over, at most.
    pub(crate) calls: usize,
    /// How many of those that were ever recorded are known already.
    pub(crate) known_calls: u64,
}

impl Wanted {
    pub(crate) const EVERYTHING: Self = Self {
        references: usize::MAX,
        calls: usize::MAX,
        known_calls: 0,
    };
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
    /// Where it belongs, if somebody wants to know: who [looks on](crate::observe::Observer::calls), or a subscriber of
    /// `tracing`.
    #[serde(default)]
    pub trace: Option<CallTrace>,
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
    /// The values that are used by calls which wait for this one. If one of those who use *this* value waits for one of
    /// them, neither will end.
    #[serde(default)]
    pub held_by_callers: Vec<String>,
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
    /// Of those, bytes that were read straight out of its memory.
    #[serde(default)]
    pub bytes_from_memory: u64,
    /// And bytes that are read where [it has put them](crate::Blob::shared), in memory that both have: they were not
    /// copied.
    #[serde(default)]
    pub bytes_in_place: u64,
    /// Calls to it that are not answered.
    pub calls_made: usize,
    /// Of those, the ones that wait because it has enough to do.
    pub calls_held_back: usize,
    /// Its calls that the worker has not answered.
    pub calls_served: usize,
}
