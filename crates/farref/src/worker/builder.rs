//! Setting a worker up.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::Worker;
use crate::error::{ConfigError, Error, Result};
use crate::native::{MemoryNetwork, NativeConfig};
use crate::rendezvous::{self, MemoryStore, Rendezvous};
use crate::runtime::settings::{MessageLimits, Settings};
use crate::tables::answer_budget::DEFAULT_MAX_ANSWER_BYTES;
use crate::tables::flow_control::{DEFAULT_MAX_CALLS, DEFAULT_MAX_PARKED};

/// Longer than any program waits, and short enough for every clock: who sets `Duration::MAX` means no limit.
const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// A worker to be. Every setting has a default; [`join`](Self::join) does the rest.
///
/// ```no_run
/// # async fn run() -> farref::Result<()> {
/// use std::time::Duration;
///
/// let me = farref::Worker::builder("sampler-3")
///     .rendezvous("tcp://10.0.0.1:29500") // no world size: a group that grows
///     .token("a secret that all workers share")
///     .insecure() // not encrypted
///     .peer_timeout(Duration::from_secs(30))
///     .join()
///     .await?;
/// # Ok(()) }
/// ```
#[must_use = "a worker is only set up until it joins"]
#[derive(Debug)]
pub struct WorkerBuilder {
    pub(super) name: Option<String>,
    pub(super) rank: Option<u32>,
    pub(super) world_size: Option<u32>,
    pub(super) place: Result<Option<MeetingPoint>>,
    pub(super) hosted_elsewhere: bool,
    pub(super) run_id: Option<String>,
    pub(super) join_timeout: Duration,
    pub(super) advertise: Option<IpAddr>,
    pub(super) bind: Option<IpAddr>,
    pub(super) port: u16,
    pub(super) advertise_port: Option<u16>,
    pub(super) unix_sockets: bool,
    pub(super) token: Option<String>,
    pub(super) insecure: bool,
    pub(super) native: NativeConfig,
    pub(super) settings: Settings,
}

/// Where workers meet.
#[derive(Clone)]
pub(crate) enum MeetingPoint {
    /// A store that other processes reach.
    Shared(Rendezvous),
    /// This process: a store and links in memory.
    Memory(MemoryStore, MemoryNetwork),
}

impl fmt::Debug for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(rendezvous) => fmt::Display::fmt(rendezvous, f),
            Self::Memory(..) => f.write_str("memory"),
        }
    }
}

impl Worker {
    /// Begins to set up a worker of this name.
    ///
    /// ```
    /// use farref::{StoreServer, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // Somewhere to meet. Usually rank 0 hosts it, at an address that all know.
    /// let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// let place = format!("tcp://{}", store.local_addr());
    ///
    /// let worker = |name, rank| {
    ///     let builder = Worker::builder(name).rank(rank).world_size(2);
    ///     builder.rendezvous(&place).store_is_hosted_elsewhere().join()
    /// };
    /// // In two processes, mostly; here in one.
    /// let (trainer, ps) = tokio::try_join!(worker("trainer", 0), worker("ps", 1))?;
    /// assert_eq!(trainer.peer("ps")?.rank(), 1);
    ///
    /// tokio::try_join!(trainer.shutdown(), ps.shutdown())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(name: impl Into<String>) -> WorkerBuilder {
        WorkerBuilder::new(name.into())
    }

    /// Begins to set up a worker as the environment says: `FARREF_*`, torchrun's `MASTER_ADDR`, `RANK`
    /// and so on, Slurm's, or Kubernetes'. What is missing or malformed is an error of
    /// [`join`](WorkerBuilder::join).
    ///
    /// ```no_run
    /// use std::time::Duration;
    ///
    /// use farref::Worker;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // $ torchrun --nnodes 4 --nproc-per-node 8 --no-python ./train
    /// // What the program says goes over what the environment says.
    /// let me = Worker::from_env().call_timeout(Duration::from_secs(300)).join().await?;
    /// println!("rank {} of {}", me.rank(), me.peers().len());
    /// me.shutdown().await
    /// # }
    /// ```
    pub fn from_env() -> WorkerBuilder {
        WorkerBuilder::from_env()
    }
}

impl WorkerBuilder {
    pub(super) fn new(name: String) -> Self {
        Self {
            name: Some(name),
            rank: None,
            world_size: None,
            place: Ok(None),
            hosted_elsewhere: false,
            run_id: None,
            join_timeout: Duration::from_secs(60),
            advertise: None,
            bind: None,
            port: 0,
            advertise_port: None,
            unix_sockets: cfg!(unix),
            token: None,
            insecure: false,
            native: NativeConfig::default(),
            settings: Settings {
                call_timeout: Some(Duration::from_secs(60)),
                shutdown_timeout: Duration::from_secs(60),
                leak_grace: Duration::from_secs(1),
                fail_on_leaks: false,
                blocking_threads: 64,
                max_calls: DEFAULT_MAX_CALLS,
                max_waiting_calls: DEFAULT_MAX_PARKED,
                max_answer_bytes: DEFAULT_MAX_ANSWER_BYTES,
                message: MessageLimits::NONE,
            },
        }
    }

    pub(super) fn from_env() -> Self {
        let mut builder = Self::new(String::new());
        builder.name = None;
        match rendezvous::Settings::from_env() {
            Ok(environment) => {
                builder.name = environment.name;
                builder.rank = environment.rank;
                builder.world_size = environment.world_size;
                builder.place = Ok(environment.rendezvous.map(MeetingPoint::Shared));
                builder.hosted_elsewhere = environment.hosted_elsewhere;
                builder.run_id = environment.run_id;
                builder.advertise = environment.advertise;
                builder.token = environment.token;
                builder.insecure = std::env::var_os("FARREF_INSECURE")
                    .is_some_and(|value| value != "0" && !value.is_empty());
            }
            Err(error) => builder.place = Err(error.into()),
        }
        builder
    }

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
    /// without ranks that runs on that host, and when it has gone by another member there), or `file:///path/on/a/shared/disk`.
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
                place: place.to_owned(),
                reason,
            })),
        };
        self
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

    /// The address that the others are told to reach this worker at. By default that of the interface
    /// that reaches the rendezvous host.
    ///
    /// ```no_run
    /// use std::net::IpAddr;
    ///
    /// use farref::Worker;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // A host with two networks: talk over the fast one.
    /// let fast: IpAddr = [10, 1, 0, 7].into();
    /// let me = Worker::from_env().advertise(fast).join().await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn advertise(mut self, address: IpAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    /// The address to listen at, if not the advertised one.
    ///
    /// ```no_run
    /// use std::net::Ipv4Addr;
    ///
    /// use farref::Worker;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // In a container, the address that others use is not one of its own.
    /// let me = Worker::from_env()
    ///     .advertise([10, 1, 0, 7].into())
    ///     .bind(Ipv4Addr::UNSPECIFIED.into())
    ///     .join()
    ///     .await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// The port to listen at. By default the system chooses one.
    ///
    /// ```no_run
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // The one that the firewall lets through.
    /// let me = farref::Worker::from_env().port(7000).join().await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The port that the others are told to reach this worker at, if not the one it listens at: a
    /// forwarded one, of a container or a proxy.
    ///
    /// ```no_run
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // $ docker run --publish 17000:7000 ..
    /// let me = farref::Worker::from_env().port(7000).advertise_port(17_000).join().await?;
    /// # me.shutdown().await
    /// # }
    /// ```
    pub fn advertise_port(mut self, port: u16) -> Self {
        self.advertise_port = Some(port);
        self
    }

    /// Whether workers on the same host use Unix sockets. They do by default, where there are any.
    ///
    /// ```
    /// use farref::{StoreServer, Worker};
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// # let place = format!("tcp://{}", store.local_addr());
    /// let worker = |name, rank| {
    ///     let builder = Worker::builder(name).rank(rank).world_size(2).rendezvous(&place);
    ///     builder.store_is_hosted_elsewhere().unix_sockets(false).join()
    /// };
    /// let (me, other) = tokio::try_join!(worker("me", 0), worker("other", 1))?;
    /// ping::on(&me.peer("other")?).await?;
    /// assert_eq!(me.snapshot().peers[1].transport.as_deref(), Some("tcp"));
    /// # tokio::try_join!(me.shutdown(), other.shutdown())?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn unix_sockets(mut self, wanted: bool) -> Self {
        self.unix_sockets = wanted && cfg!(unix);
        self
    }

    /// A secret that all workers of the group share. Whoever does not know it is refused. It is never
    /// sent; both sides prove that they know it.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start_with(2, |builder| builder.token("only we know")).await?;
    /// ping::on(&cluster.worker(0).peer("worker1")?).await?;
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Allows connections that leave this host without being encrypted. Say this only on a network
    /// where nobody listens who should not.
    ///
    /// ```
    /// use farref::{ConfigError, Error, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // An address that other hosts reach, and nothing said about who may listen.
    /// let builder = Worker::builder("naive").rendezvous("tcp://127.0.0.1:29500");
    /// let refused = builder.advertise([10, 1, 0, 7].into()).join().await;
    /// assert!(matches!(refused, Err(Error::Config(ConfigError::Unencrypted { .. }))));
    /// # Ok(())
    /// # }
    /// ```
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// How long a peer may be silent before it is taken for dead. 10 s by default; the same on all
    /// workers, or the most impatient one decides.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn ping() {}
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let impatient = Duration::from_secs(1);
    /// let cluster = Cluster::start_with(2, |builder| builder.peer_timeout(impatient)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// // Not a word from there any more, and no refusal either.
    /// cluster.partition(0, 1);
    /// assert!(matches!(ping::on(&peer).await, Err(Error::PeerLost { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub fn peer_timeout(mut self, timeout: Duration) -> Self {
        let timeout = timeout.min(NEVER);
        self.native.peer_timeout = timeout;
        self.native.heartbeat_interval = timeout / 4;
        self.native.ack_timeout = (timeout / 5).min(Duration::from_secs(2));
        self
    }

    /// The largest message that is sent or taken in. 4 GiB by default.
    ///
    /// ```
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn size(data: Vec<u8>) -> usize {
    ///     data.len()
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start_with(2, |builder| builder.max_message_bytes(1 << 20)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// let refused = size::on(&peer, vec![0; 2 << 20]).await;
    /// assert!(matches!(refused, Err(Error::Codec { what: "the arguments", .. })));
    ///
    /// // Nothing was sent, and nothing else suffers.
    /// assert_eq!(size::on(&peer, vec![0; 1 << 10]).await?, 1 << 10);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        self.native.max_message_bytes = bytes;
        self
    }

    /// The time limit of calls that set none. 60 s by default; `None` is unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn hang() {
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let short = Duration::from_millis(20);
    /// let cluster = Cluster::start_with(2, |builder| builder.call_timeout(short)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert!(matches!(hang::on(&peer).await, Err(Error::Timeout { limit, .. }) if limit == short));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn call_timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.settings.call_timeout = limit.into();
        self
    }

    /// How long a graceful shutdown may take once all workers have asked for it or only serve: however long
    /// others work, they are waited for. It is also the limit of [`Worker::leave`]. 60 s by default.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn hang() {
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let short = Duration::from_secs(1);
    /// let cluster = Cluster::start_with(2, |builder| builder.shutdown_timeout(short)).await?;
    /// let [me, other] = [cluster.worker(0), cluster.worker(1)];
    /// let pending = hang::on(&me.peer("worker1")?).timeout(None).start();
    ///
    /// // Both want to end, but a call never returns. Who gives up first is as dead to the other as if it had
    /// // crashed.
    /// let (mine, others) = tokio::join!(me.shutdown(), other.shutdown());
    /// assert!(matches!(mine.and(others), Err(Error::ShutdownTimeout { .. })));
    /// # drop(pending);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.settings.shutdown_timeout = timeout.min(NEVER);
        self
    }

    /// How long references may outlive everything else in a shutdown before they are reported and
    /// released. 1 s by default.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let none = Duration::ZERO;
    /// let cluster = Cluster::start_with(1, |builder| builder.leak_grace(none)).await?;
    /// let kept = cluster.worker(0).rref(7)?;
    /// assert!(matches!(cluster.shutdown().await, Err(Error::Leaked(_)))); // at once
    /// # drop(kept);
    /// # Ok(())
    /// # }
    /// ```
    pub fn leak_grace(mut self, grace: Duration) -> Self {
        self.settings.leak_grace = grace.min(NEVER);
        self
    }

    /// Makes references that were never dropped an error of the shutdown, instead of a warning.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // Clusters for tests do; here is one that does not.
    /// let cluster = Cluster::start_with(1, |builder| builder.fail_on_leaks(false)).await?;
    /// let kept = cluster.worker(0).rref(7)?;
    /// cluster.shutdown().await?; // logs a warning
    /// # drop(kept);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fail_on_leaks(mut self, fail: bool) -> Self {
        self.settings.fail_on_leaks = fail;
        self
    }

    /// How many plain functions may run at once. Those that wait for calls of their own do not count.
    /// 64 by default.
    ///
    /// ```
    /// use farref::Worker;
    /// use farref::testing::Cluster;
    ///
    /// // Runs on a thread, and waits for the next one.
    /// #[farref::remote]
    /// fn sum_to(n: u64) -> farref::Result<u64> {
    ///     let me = Worker::current().expect("inside of a remote function").me();
    ///     if n == 0 { Ok(0) } else { Ok(n + sum_to::on(&me, n - 1).wait()?) }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start_with(2, |builder| builder.blocking_threads(1)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert_eq!(sum_to::on(&peer, 10).await?, 55);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.settings.blocking_threads = threads;
        self
    }

    /// How many calls of one peer are accepted at once; it holds back the others. 16,384 by default, at
    /// least 64.
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
    /// let cluster = Cluster::start_with(2, |builder| builder.max_calls_per_peer(64)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// // The caller need not know: the others go out as answers come in.
    /// let pending: Vec<_> = (0..500).map(|x| square::on(&peer, x).start()).collect();
    /// for (x, square) in (0..).zip(pending) {
    ///     assert_eq!(square.await?, x * x);
    /// }
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_calls_per_peer(mut self, calls: u32) -> Self {
        self.settings.max_calls = calls.max(64);
        self
    }

    /// How many calls to one peer may wait on this worker because the peer has as many as it
    /// [accepts](Self::max_calls_per_peer). 262,144 by default, and 1 GiB of arguments.
    ///
    /// A call beyond that which is awaited waits before it is made. One that is started, or whose result
    /// is to stay there, cannot wait and fails with [`Error::TooManyCalls`]: the program makes calls far
    /// quicker than they are carried out, and is to await some before it makes more.
    ///
    /// ```
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn ever() {
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let narrow =
    ///     |builder: farref::WorkerBuilder| builder.max_calls_per_peer(64).max_waiting_calls_per_peer(10);
    /// let cluster = Cluster::start_with(2, narrow).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// let pending: Vec<_> = (0..64 + 10).map(|_| ever::on(&peer).start()).collect();
    /// let refused = ever::on(&peer).start().await;
    /// assert!(matches!(refused, Err(Error::TooManyCalls { .. })));
    /// drop(pending);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_waiting_calls_per_peer(mut self, calls: usize) -> Self {
        self.settings.max_waiting_calls = calls;
        self
    }

    /// How many bytes of answers to one peer may be under way: made, and not yet received by it. 256 MiB
    /// by default.
    ///
    /// A function whose answers are large (over 4 KiB, by what it returned before) starts only when
    /// there is room for one more of them; its calls wait meanwhile, in order, and can be cancelled. So a
    /// caller that reads slowly, or not at all, does not fill this worker's memory. One answer always
    /// passes, however large it is. Raise it where one peer makes many calls at once that take long and
    /// return much.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn page(number: u64) -> String {
    ///     format!("{number:08192}")
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let narrow = |builder: farref::WorkerBuilder| builder.max_answer_bytes_per_peer(1 << 20);
    /// let cluster = Cluster::start_with(2, narrow).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// // The caller need not know: `worker1` makes the pages as they are taken.
    /// let pending: Vec<_> = (0..100).map(|number| page::on(&peer, number).start()).collect();
    /// for (number, page) in (0..).zip(pending) {
    ///     assert_eq!(page.await?.parse(), Ok(number));
    /// }
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_answer_bytes_per_peer(mut self, bytes: u64) -> Self {
        self.settings.max_answer_bytes = bytes;
        self
    }
}
