//! Settings of the group: who the worker is in it, where its workers meet, how long they wait for each other.

use std::sync::Arc;
use std::time::Duration;

use super::{MeetingPoint, NEVER, WorkerBuilder};
use crate::error::{ConfigError, Error};
use crate::rendezvous::{Rendezvous, Store, without_password};

impl WorkerBuilder {
    /// What the worker is called: up to 127 letters, digits and `-_:.`.
    ///
    /// ```no_run
    /// use farref::Worker;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // The launcher counts; the program names.
    /// let rank: u32 = std::env::var("RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    /// let name = if rank == 0 { "ps".to_owned() } else { format!("trainer{rank}") };
    /// let me = Worker::from_env().name(name).join().await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Its number in a group of fixed size, from 0. Rank 0 hosts the store.
    ///
    /// ```
    /// use farref::{Error, RendezvousError, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let builder = Worker::builder("lost").rendezvous("tcp://127.0.0.1:29500");
    /// // Found out before anything is sent.
    /// match builder.rank(2).world_size(2).join().await {
    ///     Err(Error::Rendezvous(error)) => {
    ///         assert!(matches!(*error, RendezvousError::Rank { rank: Some(2), .. }));
    ///     }
    ///     other => panic!("{other:?}"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// How many workers found the group. Without it the group has no fixed size: the first worker
    /// founds it, others join when they come.
    ///
    /// ```
    /// use farref::{StoreServer, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// # let place = format!("tcp://{}", store.local_addr());
    /// // Nobody gets further than `join` before both are there.
    /// let worker = |rank: u32| {
    ///     let builder = Worker::builder(format!("worker{rank}")).rendezvous(&place);
    ///     builder.rank(rank).world_size(2).store_is_hosted_elsewhere().join()
    /// };
    /// let (one, two) = tokio::try_join!(worker(0), worker(1))?;
    /// assert_eq!(one.peers().len(), 2);
    /// # tokio::try_join!(one.shutdown(), two.shutdown())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn world_size(mut self, workers: u32) -> Self {
        self.world_size = Some(workers);
        self
    }

    /// Where the workers meet: `tcp://host:port` (hosted by rank 0, or by the first worker of a group
    /// without ranks that runs on that host, and when it has gone by another member there), `file:///path/on/a/shared/disk`,
    /// or, with the feature `etcd`, `etcd://host:port/prefix`: see [`EtcdPlace`](crate::EtcdPlace).
    ///
    /// ```
    /// use farref::{Error, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let path = std::env::temp_dir().join(format!("farref-rendezvous-{}", std::process::id()));
    /// # let path = path.display();
    /// let me = Worker::builder("alone")
    ///     .rendezvous(&format!("file://{path}"))
    ///     .advertise([127, 0, 0, 1].into()) // stay on this host
    ///     .join()
    ///     .await?;
    /// assert_eq!(me.peers().len(), 1);
    /// me.shutdown().await?;
    /// # for end in ["", ".lock", ".next"] { let _ = std::fs::remove_file(format!("{path}{end}")); }
    ///
    /// // What cannot be understood is an error of `join`.
    /// let nowhere = Worker::builder("alone").rendezvous("localhost").join().await;
    /// assert!(matches!(nowhere, Err(Error::Config(_))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn rendezvous(mut self, place: &str) -> Self {
        self.place = match place.parse::<Rendezvous>() {
            Ok(place) => Ok(Some(MeetingPoint::Shared(place))),
            Err(reason) => Err(Error::from(ConfigError::BadRendezvous {
                place: without_password(place),
                reason,
            })),
        };
        self
    }

    /// The workers meet in this store, which the program brings: a [`Store`] of its own, or one of farref's that it
    /// has opened by itself. It is used in the runtime that calls [`join`](Self::join), as long as the worker runs.
    /// A store that notices when its users go ([`Store::presence`]) is for one worker, which leaves it at its end.
    ///
    /// farref does not know where the store is. So the workers are taken to share a host, as with `file://`, unless
    /// [`advertise`](Self::advertise) says where others reach this one.
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use farref::{MemoryStore, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // Whatever implements `farref::Store`; here one for the workers of one process.
    /// let store = Arc::new(MemoryStore::new());
    /// let worker = |name| Worker::builder(name).store(store.clone()).join();
    /// let (one, two) = (worker("one").await?, worker("two").await?);
    /// assert_eq!(two.peers().len(), 2);
    /// tokio::try_join!(one.shutdown(), two.shutdown())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        self.place(MeetingPoint::Foreign(store))
    }

    pub(crate) fn place(mut self, place: MeetingPoint) -> Self {
        self.place = Ok(Some(place));
        self
    }

    /// Somebody else hosts the store at the rendezvous address, a launcher for instance: rank 0 only
    /// connects to it.
    ///
    /// ```
    /// use farref::{StoreServer, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// let me = Worker::builder("alone")
    ///     .rank(0)
    ///     .world_size(1)
    ///     .rendezvous(&format!("tcp://{}", store.local_addr()))
    ///     .store_is_hosted_elsewhere()
    ///     .join()
    ///     .await?;
    /// me.shutdown().await
    /// # }
    /// ```
    pub fn store_is_hosted_elsewhere(mut self) -> Self {
        self.hosted_elsewhere = true;
        self
    }

    /// Whether this worker gives its group up when it no longer sees more than half of it. It does not by default: if the
    /// network splits, each side declares the other dead and goes on.
    ///
    /// With it, a worker that has lost half of its group or more, the last one that all had agreed on, is out of it: all it waits
    /// for ends with [`Error::Minority`](crate::Error::Minority), and so do [`serve`](crate::Worker::serve) and
    /// [`shutdown`](crate::Worker::shutdown). It can join again when the network is whole. Let all workers of a group have the
    /// same setting. Of three workers one may be lost, of five two at a time; of two, whoever loses the other gives up. Those
    /// who leave are no loss, and when all have asked for the shutdown nobody counts any more.
    ///
    /// Each worker notices within its `peer_timeout`, and not all at one moment: around a split both sides may still work. What
    /// must never be done twice needs a lock in a place that all reach. To notice, a worker keeps a connection with every other.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::testing::Cluster;
    /// use farref::{Error, WorkerBuilder};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let settings = |builder: WorkerBuilder| {
    ///     builder.require_majority(true).peer_timeout(Duration::from_secs(2))
    /// };
    /// let cluster = Cluster::start_with(3, settings).await?;
    /// cluster.partition(0, 2);
    /// cluster.partition(1, 2);
    /// // It does not go on alone.
    /// let alone = cluster.worker(2).serve().await;
    /// assert!(matches!(alone, Err(Error::Minority { left: 1, of: 3, .. })), "{alone:?}");
    /// # Ok(())
    /// # }
    /// ```
    pub fn require_majority(mut self, needed: bool) -> Self {
        self.settings.require_majority = needed;
        self
    }

    /// How many workers the group may have at one time, 16,384 by default. Who would be one more is not let in
    /// ([`RendezvousError::GroupFull`](crate::RendezvousError::GroupFull)); those who found a group together are not counted. Let all
    /// workers have the same setting.
    ///
    /// It also bounds what a worker that does not keep to the protocol can make others believe: who tells of far more workers
    /// than that is cut off.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let mut cluster = Cluster::start_with(2, |builder| builder.max_members(2)).await?;
    /// let one_more = cluster.join("latecomer").await;
    /// assert!(one_more.is_err(), "the group is full");
    /// cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_members(mut self, most: usize) -> Self {
        self.settings.max_members = most;
        self
    }

    /// How long to wait for the group to come together. 60 s by default.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::{Error, RendezvousError, StoreServer, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// # let place = format!("tcp://{}", store.local_addr());
    /// let early = Worker::builder("early")
    ///     .rank(0)
    ///     .world_size(2)
    ///     .rendezvous(&place)
    ///     .store_is_hosted_elsewhere()
    ///     .join_timeout(Duration::from_secs(1))
    ///     .join()
    ///     .await;
    /// let Err(Error::Rendezvous(error)) = early else {
    ///     panic!("there is no second worker");
    /// };
    /// // The error says who did not come.
    /// let RendezvousError::Missing { missing, .. } = &*error else {
    ///     panic!("{error}");
    /// };
    /// assert_eq!(*missing, [1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn join_timeout(mut self, timeout: Duration) -> Self {
        self.join_timeout = timeout.min(NEVER);
        self
    }
}
