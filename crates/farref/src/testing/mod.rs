//! Clusters in one process, for tests: of farref and of programs that use it.
//!
//! ```
//! use farref::Error;
//! use farref::testing::Cluster;
//!
//! #[farref::remote]
//! async fn price(item: String) -> u32 {
//!     item.len() as u32
//! }
//!
//! // What is to be tested: asks another shop if the first is gone.
//! async fn price_somewhere(me: &farref::Worker, item: &str) -> farref::Result<u32> {
//!     match price::on(&me.peer("worker1")?, item.to_owned()).await {
//!         Err(Error::PeerLost { .. }) => price::on(&me.peer("worker2")?, item.to_owned()).await,
//!         other => other,
//!     }
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> farref::Result<()> {
//! let cluster = Cluster::start(3).await?;
//! cluster.crash(1).await;
//! assert_eq!(price_somewhere(cluster.worker(0), "tea").await?, 3);
//! cluster.shutdown().await
//! # }
//! ```

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
mod session_fuzzing;

use std::time::Duration;

use tokio::task::JoinHandle;

use crate::error::Result;
use crate::native::MemoryNetwork;
use crate::rendezvous::MemoryStore;
use crate::worker::{MeetingPoint, Worker, WorkerBuilder};

/// How long the others may take to hear of a newcomer.
const INTRODUCTION: Duration = Duration::from_secs(30);

/// Some workers in this process, linked in memory, with faults on demand.
///
/// They are called `worker0`, `worker1`, ... and run the same code as workers on different hosts, down
/// to the handshake; only the sockets are pipes.
///
/// ```
/// use farref::testing::Cluster;
///
/// #[farref::remote]
/// async fn add(a: i64, b: i64) -> i64 {
///     a + b
/// }
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// let cluster = Cluster::start(3).await?;
/// let peer = cluster.worker(0).peer("worker2")?;
/// cluster.cut(0, 2); // the connection breaks; nothing is lost
/// assert_eq!(add::on(&peer, 1, 2).await?, 3);
/// cluster.shutdown().await // an error if anything is left behind
/// # }
/// ```
#[derive(Debug)]
pub struct Cluster {
    store: MemoryStore,
    network: MemoryNetwork,
    workers: Vec<Worker>,
    founders: u32,
}

impl Cluster {
    /// Starts so many workers.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(3).await?;
    /// let names: Vec<_> = cluster.workers().iter().map(|worker| worker.name()).collect();
    /// assert_eq!(names, ["worker0", "worker1", "worker2"]);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn start(workers: u32) -> Result<Self> {
        Self::start_with(workers, |builder| builder).await
    }

    /// Starts workers of these names.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start_named(&["trainer", "ps"]).await?;
    /// assert_eq!(cluster.worker(0).peer("ps")?.rank(), 1);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn start_named(names: &[&str]) -> Result<Self> {
        Self::launch(names.iter().map(ToString::to_string).collect(), |builder| {
            builder
        })
        .await
    }

    /// Starts so many workers, each set up by `configure`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let configure = |builder: farref::WorkerBuilder| {
    ///     builder.call_timeout(Duration::from_secs(5)).blocking_threads(2)
    /// };
    /// let cluster = Cluster::start_with(2, configure).await?;
    /// assert_eq!(cluster.workers().len(), 2);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn start_with(
        workers: u32,
        configure: impl Fn(WorkerBuilder) -> WorkerBuilder,
    ) -> Result<Self> {
        let names = (0..workers).map(|rank| format!("worker{rank}")).collect();
        Self::launch(names, configure).await
    }

    async fn launch(
        names: Vec<String>,
        configure: impl Fn(WorkerBuilder) -> WorkerBuilder,
    ) -> Result<Self> {
        let workers = names.len() as u32;
        let mut cluster = Self {
            store: MemoryStore::new(),
            network: MemoryNetwork::new(),
            workers: Vec::new(),
            founders: workers,
        };
        let joining: Vec<_> = (0..)
            .zip(&names)
            .map(|(rank, name)| {
                let builder = cluster.builder(name).rank(rank).world_size(workers);
                tokio::spawn(configure(builder).join())
            })
            .collect();
        for worker in joining {
            cluster.workers.push(finished(worker).await?);
        }
        Ok(cluster)
    }

    /// A worker that is going to meet the others in this process.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(1).await?;
    /// // One that is not like the others. The cluster does not know it, so it is shut down by hand.
    /// let odd = cluster.builder("odd").call_timeout(Duration::from_secs(1)).join().await?;
    /// assert_eq!(odd.peers().len(), 2);
    /// let (all, one) = tokio::join!(cluster.shutdown(), odd.shutdown());
    /// all.and(one)
    /// # }
    /// ```
    pub fn builder(&self, name: &str) -> WorkerBuilder {
        Worker::builder(name)
            .place(MeetingPoint::Memory(
                self.store.clone(),
                self.network.clone(),
            ))
            .fail_on_leaks(true)
            .leak_grace(Duration::from_millis(300))
            .shutdown_timeout(Duration::from_secs(30))
            // A crash is noticed by the broken connection. A machine that is busy with other tests is no crash.
            .peer_timeout(Duration::from_secs(60))
    }

    /// Adds a worker to the running group.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = Cluster::start(1).await?;
    /// let latecomer = cluster.join("latecomer").await?;
    /// assert_eq!(latecomer.peers().len(), 2);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn join(&mut self, name: &str) -> Result<&Worker> {
        let worker = self.builder(name).join().await?;
        self.workers.push(worker);
        self.introduce(self.workers.len() - 1).await
    }

    /// Waits until all others can call a worker that has joined. It is a member as soon as one of them
    /// says so.
    async fn introduce(&self, index: usize) -> Result<&Worker> {
        let newcomer = &self.workers[index];
        for other in self.workers.iter().filter(|other| other.is_member()) {
            other.wait_for_peer(newcomer.name(), INTRODUCTION).await?;
        }
        Ok(newcomer)
    }

    /// Starts a worker again, under its old name and rank, after it crashed.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn add(a: i64, b: i64) -> i64 {
    ///     a + b
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = Cluster::start(2).await?;
    /// let first = cluster.worker(1).node();
    /// cluster.crash(1).await;
    /// let second = cluster.restart(1).await?.node();
    /// assert!(first < second);
    ///
    /// // Whoever calls the worker by its name reaches its new life.
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert_eq!(add::on(&peer, 1, 2).await?, 3);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn restart(&mut self, index: usize) -> Result<&Worker> {
        let name = self.workers[index].name().to_owned();
        let rank = self.workers[index].rank();
        let mut builder = self.builder(&name);
        // One that joined later has no rank; its name brings it its number back.
        if rank < self.founders {
            builder = builder.rank(rank).world_size(self.founders);
        }
        self.workers[index] = builder.join().await?;
        self.introduce(index).await
    }

    /// One of the workers.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(2).await?;
    /// assert_eq!(cluster.worker(1).rank(), 1);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn worker(&self, index: usize) -> &Worker {
        &self.workers[index]
    }

    /// All workers.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(3).await?;
    /// assert!(cluster.workers().iter().all(|worker| worker.peers().len() == 3));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// The network that the workers are on, for faults that have no method here.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(2).await?;
    /// cluster.network().set_latency("worker0", "worker1", Duration::from_millis(2));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn network(&self) -> &MemoryNetwork {
        &self.network
    }

    /// Breaks the connections between two workers, in the middle of whatever they are saying. They
    /// make new ones.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote(name = "count::next")]
    /// async fn next() -> u64 {
    ///     static COUNT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    ///     COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed)
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// // Each call arrives, and none twice.
    /// for expected in 1..=5 {
    ///     let pending = next::on(&peer).start();
    ///     cluster.cut(0, 1);
    ///     assert_eq!(pending.await?, expected);
    /// }
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn cut(&self, a: usize, b: usize) {
        self.network
            .cut(self.workers[a].name(), self.workers[b].name());
    }

    /// Lets nothing through between two workers, until [`heal`](Self::heal).
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn via(peer: String) -> farref::Result<u64> {
    ///     let me = farref::Worker::current().expect("inside of a remote function");
    ///     seven::on(&me.peer(&peer)?).await
    /// }
    ///
    /// #[farref::remote]
    /// async fn seven() -> u64 {
    ///     7
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(3).await?;
    /// let middle = cluster.worker(0).peer("worker1")?;
    ///
    /// // 0 and 2 cannot talk; both can talk with 1.
    /// cluster.partition(0, 2);
    /// assert_eq!(via::on(&middle, "worker2".to_owned()).await?, 7);
    /// cluster.heal(0, 2);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn partition(&self, a: usize, b: usize) {
        self.network
            .partition(self.workers[a].name(), self.workers[b].name());
    }

    /// Ends a partition.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn square(x: u64) -> u64 {
    ///     x * x
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// cluster.partition(0, 1);
    /// let pending = square::on(&peer, 3).start(); // waits on the way
    /// cluster.heal(0, 1);
    /// assert_eq!(pending.await?, 9);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn heal(&self, a: usize, b: usize) {
        self.network
            .heal(self.workers[a].name(), self.workers[b].name());
    }

    /// Ends a worker as a crash would.
    ///
    /// ```
    /// use farref::Error;
    /// use farref::testing::Cluster;
    /// use tokio::sync::Notify;
    ///
    /// static BEGUN: Notify = Notify::const_new();
    ///
    /// #[farref::remote]
    /// async fn work() {
    ///     BEGUN.notify_one();
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(2).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// let pending = work::on(&peer).start();
    /// BEGUN.notified().await;
    /// cluster.crash(1).await; // in the middle of it
    /// assert!(matches!(pending.await, Err(Error::PeerLost { .. })));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub async fn crash(&self, index: usize) {
        self.network.crash(self.workers[index].name());
        self.workers[index].crash().await;
    }

    /// Shuts all workers down that have not crashed. An error if one cannot, or if anything is left
    /// behind: references, calls, contexts.
    ///
    /// ```
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start(2).await?;
    /// let kept = cluster.worker(0).rref("never dropped".to_owned())?;
    /// // What a test leaves behind fails it.
    /// assert!(matches!(cluster.shutdown().await, Err(Error::Leaked(_))));
    /// # drop(kept);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn shutdown(self) -> Result<()> {
        let ending: Vec<_> = self
            .workers
            .iter()
            .filter(|worker| worker.is_member())
            .map(|worker| {
                let worker = worker.clone();
                tokio::spawn(async move { worker.shutdown().await })
            })
            .collect();
        let mut outcome = Ok(());
        for worker in ending {
            outcome = outcome.and(finished(worker).await);
        }
        outcome
    }
}

/// What a task of the cluster has brought; its panic is the test's.
async fn finished<T>(task: JoinHandle<T>) -> T {
    match task.await {
        Ok(outcome) => outcome,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(cancelled) => panic!("the runtime ends in the middle of a test: {cancelled}"),
        },
    }
}
