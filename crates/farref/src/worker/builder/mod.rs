//! Setting a worker up: all that a program can set, and the defaults.
//!
//! | settings | of | kept in |
//! | --- | --- | --- |
//! | `group` | the group, and the worker's place in it | [`WorkerBuilder`] itself: only joining needs them |
//! | `wire` | farref's own wire | the same, and [`NativeConfig`] (`native/endpoint/config`) |
//! | `limits` | calls, threads, the shutdown | [`Settings`] (`runtime/settings`) |

mod authorization;
mod group;
mod limits;
mod wire;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Worker;
use crate::error::{ConfigError, Result};
use crate::native::{MemoryNetwork, NativeConfig, Tls};
use crate::rendezvous::{self, MemoryStore, Rendezvous, Store};
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
#[derive(Clone, Debug)]
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
    pub(super) tls: Result<Option<Tls>, ConfigError>,
    pub(super) insecure: bool,
    pub(super) native: NativeConfig,
    pub(super) settings: Settings,
}

/// Where workers meet.
#[derive(Clone)]
pub(crate) enum MeetingPoint {
    /// A store that other processes reach.
    Shared(Rendezvous),
    /// A store that the program brought.
    Foreign(Arc<dyn Store>),
    /// This process: a store and links in memory.
    Memory(MemoryStore, MemoryNetwork),
}

impl fmt::Debug for MeetingPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(rendezvous) => fmt::Display::fmt(rendezvous, f),
            Self::Foreign(_) => f.write_str("the program's store"),
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
            tls: Ok(None),
            insecure: false,
            native: NativeConfig::default(),
            settings: Settings {
                call_timeout: Some(Duration::from_secs(60)),
                shutdown_timeout: Duration::from_secs(60),
                leak_grace: Duration::from_secs(1),
                fail_on_leaks: false,
                require_majority: false,
                max_members: farref_proto::NodeConfig::default().max_members,
                blocking_threads: 64,
                max_calls: DEFAULT_MAX_CALLS,
                max_parked_calls: DEFAULT_MAX_PARKED,
                max_answer_bytes: DEFAULT_MAX_ANSWER_BYTES,
                authorize: None,
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
                builder.tls = Tls::from_env().map_err(ConfigError::from);
                builder.insecure = std::env::var_os("FARREF_INSECURE")
                    .is_some_and(|value| value != "0" && !value.is_empty());
            }
            Err(error) => builder.place = Err(error.into()),
        }
        builder
    }
}
