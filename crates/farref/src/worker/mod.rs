//! `Worker`: this process's (or this test's) part in a group.

mod attaching;
mod background;
mod builder;
mod certificate;
pub mod context;
mod finding_sponsor;
mod foreign_store;
mod hosting;
mod joining;
mod naming;
mod shutdown;
mod snapshots;
mod starting;
mod transfer;
mod watching;
mod wire_callbacks;

use std::fmt;
use std::panic::Location;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinHandle;

pub(crate) use builder::MeetingPoint;
pub use builder::WorkerBuilder;
use hosting::HostedStore;
pub use transfer::Transfer;

use crate::api::peer::Peer;
use crate::api::rref::RRef;
use crate::error::{Error, Result};
use crate::fingerprint;
use crate::runtime::Core;
use crate::runtime::current::Current;
use crate::support::io_thread::IoThread;
use crate::support::lock::lock;
use crate::values::Value;
use farref_proto::NodeId;

/// A worker: a member of a group of processes that call each other's functions.
///
/// There is no global one. A process may have any number, of one group or of several, one after the
/// other or at once. Clones are handles to the same worker.
///
/// ```no_run
/// # async fn run() -> farref::Result<()> {
/// use farref::Worker;
///
/// // As a launcher (torchrun, Slurm, Kubernetes) has set the environment:
/// let me = Worker::from_env().join().await?;
///
/// // Or by hand, here as one of two:
/// let me = Worker::builder("trainer0")
///     .rank(0)
///     .world_size(2)
///     .rendezvous("tcp://127.0.0.1:29500")
///     .join()
///     .await?;
///
/// let ps = me.peer("ps")?;
/// # drop(ps);
/// me.shutdown().await
/// # }
/// ```
#[derive(Clone)]
pub struct Worker {
    pub(crate) core: Arc<Core>,
    /// Keeps the worker running. Those that remote functions get do not.
    life: Option<Arc<WorkerGuard>>,
}

/// How long the tasks of a worker may take to end when it is dropped.
const CLOSING: Duration = Duration::from_secs(2);

/// Ends the worker when the last handle is gone.
struct WorkerGuard {
    core: Arc<Core>,
    /// Kept from its end: the store is there as well.
    io: Arc<IoThread>,
    clock: JoinHandle<()>,
    /// Keeps the group's store. `None` when the worker has ended.
    store_keeper: Mutex<Option<JoinHandle<()>>>,
    /// The group's store, if this worker hosts it. One that leaves keeps it for the others.
    hosted: Arc<HostedStore>,
}

impl Worker {
    /// The worker that the remote function runs on that calls this. None outside of one, and in tasks
    /// that a remote function spawned by itself.
    ///
    /// ```
    /// use farref::Worker;
    ///
    /// #[farref::remote]
    /// async fn who_am_i() -> String {
    ///     Worker::current().map_or_else(String::new, |me| me.name().to_owned())
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert_eq!(who_am_i::on(&peer).await?, "worker1");
    /// assert!(Worker::current().is_none());
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn current() -> Option<Self> {
        Current::get().map(|current| Self::of(&current.core))
    }

    /// A handle that does not keep the worker running.
    pub(crate) fn of(core: &Arc<Core>) -> Self {
        Self {
            core: Arc::clone(core),
            life: None,
        }
    }

    /// The worker that called the remote function that calls this.
    ///
    /// ```
    /// use farref::Worker;
    ///
    /// #[farref::remote]
    /// async fn greet() -> String {
    ///     match Worker::caller() {
    ///         Some(caller) => format!("hello, {}", caller.name()),
    ///         None => "hello, whoever you are".to_owned(),
    ///     }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// assert_eq!(greet::on(&peer).await?, "hello, worker0");
    /// assert_eq!(greet().await, "hello, whoever you are"); // called as a plain function
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn caller() -> Option<Peer> {
        Current::get().map(|current| Peer::of(&current.core, current.caller))
    }

    /// The id of the life of the worker that called the remote function that calls this.
    ///
    /// ```
    /// use std::collections::HashSet;
    /// use std::sync::Mutex;
    ///
    /// use farref::Worker;
    /// use farref::context::NodeId;
    ///
    /// static SEEN: Mutex<Option<HashSet<NodeId>>> = Mutex::new(None);
    ///
    /// /// Says whether this life of the caller has been here before. (Its name may have.)
    /// #[farref::remote]
    /// async fn sign_in() -> bool {
    ///     let caller = Worker::caller_node().expect("inside of a remote function");
    ///     !SEEN.lock().unwrap().get_or_insert_default().insert(caller)
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// assert!(!sign_in::on(&peer).await?);
    /// assert!(sign_in::on(&peer).await?);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn caller_node() -> Option<NodeId> {
        Current::get().map(|current| current.caller)
    }

    /// A handle that does not keep the worker alive. For agents and others that the worker itself keeps.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(1).await?;
    /// let weak = cluster.worker(0).downgrade();
    /// assert_eq!(weak.upgrade().map(|worker| worker.name().to_owned()).as_deref(), Some("worker0"));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn downgrade(&self) -> WeakWorker {
        WeakWorker(Arc::downgrade(&self.core))
    }

    /// The runtime that the worker runs on.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn square(x: u64) -> u64 {
    ///     x * x
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// // A thread of one's own, which belongs to no runtime: `tokio::spawn` would panic there.
    /// let runtime = me.runtime().clone();
    /// let (sender, receiver) = tokio::sync::oneshot::channel();
    /// std::thread::spawn(move || {
    ///     runtime.spawn(async move { sender.send(square::on(&peer, 3).await) });
    /// });
    /// assert_eq!(receiver.await.expect("a result")?, 9);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn runtime(&self) -> &tokio::runtime::Handle {
        &self.core.runtime
    }

    /// What this worker is called.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start_named(&["trainer", "ps"]).await?;
    /// assert_eq!(cluster.worker(1).name(), "ps");
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        &self.core.name
    }

    /// Its number in the group: the rank, if the group was made with ranks. In a group without ranks numbers are given in the
    /// order in which workers come, from 16,384 on.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// assert_eq!((me.rank(), peer.rank()), (0, 1));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn rank(&self) -> u32 {
        self.core.me.worker.0
    }

    /// The worker of that name.
    ///
    /// ```
    /// use farref::Error;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start_named(&["trainer", "ps"]).await?;
    /// let me = cluster.worker(0);
    /// assert_eq!(me.peer("ps")?.name(), "ps");
    ///
    /// match me.peer("pss") {
    ///     Err(Error::NoSuchPeer { known, .. }) => assert_eq!(known, ["trainer", "ps"]),
    ///     other => panic!("{other:?}"),
    /// }
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn peer(&self, name: &str) -> Result<Peer> {
        self.find(name).ok_or_else(|| self.no_such_peer(name, None))
    }

    /// Why there is no worker of that name.
    fn no_such_peer(&self, name: &str, waited: Option<Duration>) -> Error {
        let stage = *self.core.stage.borrow();
        if stage > crate::runtime::WorkerStage::Member {
            return self.core.not_member();
        }
        let known = self.peers();
        Error::NoSuchPeer {
            name: name.to_owned(),
            known: known.iter().map(|peer| peer.name().to_owned()).collect(),
            waited,
        }
    }

    fn find(&self, name: &str) -> Option<Peer> {
        if name == &*self.core.name {
            return Some(Peer::of(&self.core, self.core.me));
        }
        let lives = self.core.names.lives(name);
        // One that is being let in has said its name already, but cannot be called yet.
        let entered = self.core.look(|own| {
            let view = own.membership().view();
            let entered = |node: &NodeId| view.is_member(*node) || view.is_gone(*node);
            lives.into_iter().find(entered)
        });
        entered.map(|node| Peer::of(&self.core, node))
    }

    /// The worker of that name, as soon as it has joined; for groups that grow.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = farref::testing::Cluster::start(1).await?;
    /// let me = cluster.worker(0).clone();
    ///
    /// let limit = Duration::from_secs(60);
    /// let waiting = tokio::spawn({
    ///     let me = me.clone();
    ///     async move { me.wait_for_peer("latecomer", limit).await }
    /// });
    /// cluster.join("latecomer").await?;
    /// assert_eq!(waiting.await.unwrap()?.name(), "latecomer");
    ///
    /// // Nobody of that name has come, and there is no time left.
    /// assert!(me.wait_for_peer("godot", Duration::ZERO).await.is_err());
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn wait_for_peer(&self, name: &str, limit: Duration) -> Result<Peer> {
        let found = async {
            loop {
                let changed = self.core.names.changed.notified();
                match self.find(name) {
                    Some(peer) if peer.is_alive() => return peer,
                    _ => changed.await,
                }
            }
        };
        match tokio::time::timeout(limit, found).await {
            Ok(peer) => Ok(peer),
            Err(_) => {
                let peer = self
                    .find(name)
                    .ok_or_else(|| self.no_such_peer(name, Some(limit)))?;
                peer.life(
                    &self.core,
                    crate::error::FunctionName::ours("wait_for_peer"),
                )?;
                Ok(peer)
            }
        }
    }

    /// The worker that this id belongs to, or its next life.
    ///
    /// ```
    /// use farref::Worker;
    /// use farref::context::NodeId;
    ///
    /// #[farref::remote]
    /// async fn who_calls() -> Option<NodeId> {
    ///     Worker::caller_node()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let node = who_calls::on(&peer).await?.expect("a caller");
    /// assert_eq!(me.peer_of(node).name(), "worker0");
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn peer_of(&self, node: NodeId) -> Peer {
        Peer::of(&self.core, node)
    }

    /// The id of this life of this worker.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = farref::testing::Cluster::start(2).await?;
    /// let first = cluster.worker(1).node();
    /// cluster.crash(1).await;
    /// let second = cluster.restart(1).await?.node();
    ///
    /// // The same worker in another life.
    /// assert_eq!(first.worker, second.worker);
    /// assert!(first.incarnation < second.incarnation);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn node(&self) -> NodeId {
        self.core.me
    }

    /// This worker as a peer of itself.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn add(a: i64, b: i64) -> i64 {
    ///     a + b
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let cluster = farref::testing::Cluster::start(1).await?;
    /// # let me = cluster.worker(0);
    /// // What is called here and there goes the same way, without a wire.
    /// assert_eq!(add::on(&me.me(), 1, 2).await?, 3);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn me(&self) -> Peer {
        Peer::of(&self.core, self.core.me)
    }

    /// All members of the group, this worker among them, by rank.
    ///
    /// ```
    /// #[farref::remote]
    /// async fn square(x: u64) -> u64 {
    ///     x * x
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(3).await?;
    /// let me = cluster.worker(0);
    ///
    /// // A share of the work for everybody.
    /// let shares = me.peers().into_iter().zip(1..);
    /// let pending: Vec<_> = shares.map(|(peer, x)| square::on(&peer, x).start()).collect();
    /// let mut sum = 0;
    /// for share in pending {
    ///     sum += share.await?;
    /// }
    /// assert_eq!(sum, 1 + 4 + 9);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn peers(&self) -> Vec<Peer> {
        let members = self
            .core
            .look(|node| node.membership().view().members().collect::<Vec<_>>());
        members
            .into_iter()
            .map(|node| Peer::of(&self.core, node))
            .collect()
    }

    /// Makes a reference to a value of this worker's own, to be handed to others.
    ///
    /// ```
    /// use farref::RRef;
    ///
    /// #[farref::remote]
    /// async fn longest(words: RRef<Vec<String>>) -> farref::Result<Option<String>> {
    ///     let words = words.to_here().await?;
    ///     Ok(words.into_iter().max_by_key(String::len))
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let words = me.rref(vec!["far".to_owned(), "reference".to_owned()])?;
    /// assert_eq!(longest::on(&peer, words.clone()).await?.as_deref(), Some("reference"));
    /// # drop(words);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn rref<T: Serialize + Send + Sync + 'static>(&self, value: T) -> Result<RRef<T>> {
        let value = Value::new(value, Some(|value, codec| codec.encode_outgoing(value)));
        self.local_rref(value, Location::caller())
    }

    /// The same for a value that cannot be copied to other workers: they can call its methods.
    ///
    /// ```
    /// use std::sync::mpsc::{Sender, channel};
    ///
    /// use farref::RRef;
    ///
    /// // A channel cannot be sent, but sending through it can be asked for.
    /// pub struct Inbox(std::sync::Mutex<Sender<String>>);
    ///
    /// #[farref::remote]
    /// impl Inbox {
    ///     pub async fn put(&self, text: String) {
    ///         let _ = self.0.lock().unwrap().send(text);
    ///     }
    /// }
    ///
    /// #[farref::remote]
    /// async fn report_to(inbox: RRef<Inbox>) -> farref::Result<()> {
    ///     inbox.put("done".to_owned()).await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0);
    /// let peer = me.peer("worker1")?;
    /// let (sender, receiver) = channel();
    /// let inbox = me.rref_to_object(Inbox(sender.into()))?;
    /// report_to::on(&peer, inbox.clone()).await?;
    /// assert_eq!(receiver.recv().unwrap(), "done");
    /// # drop(inbox);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    #[track_caller]
    pub fn rref_to_object<T: Send + Sync + 'static>(&self, value: T) -> Result<RRef<T>> {
        self.local_rref(Value::new(value, None), Location::caller())
    }

    fn local_rref<T: 'static>(
        &self,
        value: Value,
        location: &'static Location<'static>,
    ) -> Result<RRef<T>> {
        let fingerprint = fingerprint::of_type::<T>();
        self.core.name_type(fingerprint, std::any::type_name::<T>());
        let handle = self.core.create_local(value, fingerprint, location)?;
        Ok(RRef::new(handle))
    }

    /// Whether it takes part in the group: not before it was let in, nor after it ended.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(2).await?;
    /// let me = cluster.worker(0).clone();
    /// assert!(me.is_member());
    /// cluster.shutdown().await?;
    /// assert!(!me.is_member());
    /// # Ok(())
    /// # }
    /// ```
    pub fn is_member(&self) -> bool {
        self.core.is_member()
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.core, f)
    }
}

impl Drop for WorkerGuard {
    fn drop(&mut self) {
        self.clock.abort();
        if let Some(keeper) = lock(&self.store_keeper).take() {
            keeper.abort();
        }
        let stage = *self.core.stage.borrow();
        if stage <= crate::runtime::WorkerStage::Member {
            tracing::warn!(worker = %self.core.name, "a worker was dropped without a shutdown");
        }
        let core = Arc::clone(&self.core);
        let directory = self.hosted.directory();
        // The thread must not end with the last worker before this is done.
        let io = Arc::clone(&self.io);
        // Where it is certain to run: this thread may have no runtime, and that of the program may be gone,
        // or be driven by nobody.
        self.io.spawn(async move {
            let closed = core.agent().close(Duration::ZERO);
            if tokio::time::timeout(CLOSING, closed).await.is_err() {
                tracing::debug!(worker = %core.name, "some tasks of a worker have not ended yet");
            }
            core.end();
            if let Some(directory) = directory {
                let _ = tokio::time::timeout(CLOSING, directory.leave()).await;
            }
            drop(io);
        });
    }
}

impl WorkerGuard {
    /// Ends the task that keeps the group's store, and waits until it has ended: a group that begins
    /// at the same place afterwards must not find what this worker writes.
    async fn finish_with_store(&self, limit: Duration) {
        let keeper = lock(&self.store_keeper).take();
        if let Some(keeper) = keeper {
            keeper.abort();
            // An error means that it was aborted, or that the I/O thread is busy.
            let _ = tokio::time::timeout(limit, keeper).await;
        }
    }
}

/// A worker that others keep alive. See [`Worker::downgrade`].
#[derive(Clone, Debug)]
pub struct WeakWorker(Weak<Core>);

impl WeakWorker {
    /// The worker, if it is still there.
    ///
    /// ```
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = farref::testing::Cluster::start(1).await?;
    /// let weak = cluster.worker(0).downgrade();
    /// assert!(weak.upgrade().is_some());
    /// cluster.shutdown().await?; // the last of those who kept it, but for its own tasks
    /// while weak.upgrade().is_some() {
    ///     tokio::time::sleep(std::time::Duration::from_millis(1)).await;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn upgrade(&self) -> Option<Worker> {
        self.0.upgrade().map(|core| Worker::of(&core))
    }
}
