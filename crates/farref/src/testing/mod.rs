//! Clusters in one process, for tests: of farref and of programs that use it.

use std::time::Duration;

use crate::error::{Error, Result};
use crate::native::MemoryNetwork;
use crate::rendezvous::MemoryStore;
use crate::worker::{Place, Worker, WorkerBuilder};

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
    pub async fn start(workers: u32) -> Result<Self> {
        Self::start_with(workers, |builder| builder).await
    }

    /// Starts workers of these names.
    pub async fn start_named(names: &[&str]) -> Result<Self> {
        Self::launch(names.iter().map(ToString::to_string).collect(), |builder| {
            builder
        })
        .await
    }

    /// Starts so many workers, each set up by `configure`.
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
            let joined = worker
                .await
                .map_err(|error| Error::Config(format!("a worker panicked: {error}")))?;
            cluster.workers.push(joined?);
        }
        Ok(cluster)
    }

    /// A worker that is going to meet the others in this process.
    pub fn builder(&self, name: &str) -> WorkerBuilder {
        Worker::builder(name)
            .place(Place::Memory(self.store.clone(), self.network.clone()))
            .fail_on_leaks(true)
            .leak_grace(Duration::from_millis(300))
            .shutdown_timeout(Duration::from_secs(30))
    }

    /// Adds a worker to the running group.
    pub async fn join(&mut self, name: &str) -> Result<&Worker> {
        let worker = self.builder(name).join().await?;
        self.workers.push(worker);
        Ok(&self.workers[self.workers.len() - 1])
    }

    /// Starts a worker again, under its old name and rank, after it crashed.
    pub async fn restart(&mut self, index: usize) -> Result<&Worker> {
        let name = self.workers[index].name().to_owned();
        let rank = self.workers[index].rank();
        let mut builder = self.builder(&name);
        // One that joined later has no rank; its name brings it its number back.
        if rank < self.founders {
            builder = builder.rank(rank).world_size(self.founders);
        }
        self.workers[index] = builder.join().await?;
        Ok(&self.workers[index])
    }

    /// One of the workers.
    pub fn worker(&self, index: usize) -> &Worker {
        &self.workers[index]
    }

    /// All workers.
    pub fn workers(&self) -> &[Worker] {
        &self.workers
    }

    /// Breaks the connections between two workers, in the middle of whatever they are saying. They
    /// make new ones.
    pub fn cut(&self, a: usize, b: usize) {
        self.network
            .cut(self.workers[a].name(), self.workers[b].name());
    }

    /// Lets nothing through between two workers, until [`heal`](Self::heal).
    pub fn partition(&self, a: usize, b: usize) {
        self.network
            .partition(self.workers[a].name(), self.workers[b].name());
    }

    /// Ends a partition.
    pub fn heal(&self, a: usize, b: usize) {
        self.network
            .heal(self.workers[a].name(), self.workers[b].name());
    }

    /// Ends a worker as a crash would.
    pub async fn crash(&self, index: usize) {
        self.network.crash(self.workers[index].name());
        self.workers[index].crash().await;
    }

    /// Shuts all workers down that have not crashed. An error if one cannot, or if anything is left
    /// behind: references, calls, contexts.
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
            let ended = worker
                .await
                .map_err(|error| Error::Config(format!("a shutdown panicked: {error}")))?;
            outcome = outcome.and(ended);
        }
        outcome
    }
}
