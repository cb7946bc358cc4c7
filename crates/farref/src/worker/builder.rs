//! Setting a worker up.

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use super::Worker;
use crate::error::{Error, Result};
use crate::native::{MemoryNetwork, NativeConfig};
use crate::protocol::DEFAULT_MAX_CALLS;
use crate::rendezvous::{self, MemoryStore, Rendezvous};
use crate::settings::{MessageLimits, Settings};

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
    pub(super) place: Result<Option<Place>>,
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
pub(crate) enum Place {
    /// A store that other processes reach.
    Shared(Rendezvous),
    /// This process: a store and links in memory.
    Memory(MemoryStore, MemoryNetwork),
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared(rendezvous) => fmt::Display::fmt(rendezvous, f),
            Self::Memory(..) => f.write_str("memory"),
        }
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
                builder.place = Ok(environment.rendezvous.map(Place::Shared));
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
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Its number in a group of fixed size, from 0. Rank 0 hosts the store.
    pub fn rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// How many workers found the group. Without it the group has no fixed size: the first worker
    /// founds it, others join when they come.
    pub fn world_size(mut self, workers: u32) -> Self {
        self.world_size = Some(workers);
        self
    }

    /// Where the workers meet: `tcp://host:port` (hosted by rank 0, or by the first worker of a group
    /// without ranks that runs on that host), or `file:///path/on/a/shared/disk`.
    pub fn rendezvous(mut self, place: &str) -> Self {
        self.place = match place.parse::<Rendezvous>() {
            Ok(place) => Ok(Some(Place::Shared(place))),
            Err(error) => Err(Error::Config(format!(
                "`{place}` is no rendezvous: {error}"
            ))),
        };
        self
    }

    pub(crate) fn place(mut self, place: Place) -> Self {
        self.place = Ok(Some(place));
        self
    }

    /// Somebody else hosts the store at the rendezvous address, a launcher for instance: rank 0 only
    /// connects to it.
    pub fn store_is_hosted_elsewhere(mut self) -> Self {
        self.hosted_elsewhere = true;
        self
    }

    /// How long to wait for the group to come together. 60 s by default.
    pub fn join_timeout(mut self, patience: Duration) -> Self {
        self.join_timeout = patience;
        self
    }

    /// The address that the others are told to reach this worker at. By default that of the interface
    /// that reaches the rendezvous host.
    pub fn advertise(mut self, address: IpAddr) -> Self {
        self.advertise = Some(address);
        self
    }

    /// The address to listen at, if not the advertised one.
    pub fn bind(mut self, address: IpAddr) -> Self {
        self.bind = Some(address);
        self
    }

    /// The port to listen at. By default the system chooses one.
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The port that the others are told to reach this worker at, if not the one it listens at: a
    /// forwarded one, of a container or a proxy.
    pub fn advertise_port(mut self, port: u16) -> Self {
        self.advertise_port = Some(port);
        self
    }

    /// Whether workers on the same host use Unix sockets. They do by default, where there are any.
    pub fn unix_sockets(mut self, wanted: bool) -> Self {
        self.unix_sockets = wanted && cfg!(unix);
        self
    }

    /// A secret that all workers of the group share. Whoever does not know it is refused. It is never
    /// sent; both sides prove that they know it.
    pub fn token(mut self, token: impl Into<String>) -> Self {
        self.token = Some(token.into());
        self
    }

    /// Allows connections that leave this host without being encrypted. Say this only on a network
    /// where nobody listens who should not.
    pub fn insecure(mut self) -> Self {
        self.insecure = true;
        self
    }

    /// How long a peer may be silent before it is taken for dead. 10 s by default; the same on all
    /// workers, or the most impatient one decides.
    pub fn peer_timeout(mut self, patience: Duration) -> Self {
        self.native.peer_timeout = patience;
        self.native.heartbeat_interval = patience / 4;
        self.native.ack_timeout = (patience / 5).min(Duration::from_secs(2));
        self
    }

    /// The largest message that is sent or taken in. 4 GiB by default.
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        self.native.max_message_bytes = bytes;
        self
    }

    /// The time limit of calls that set none. 60 s by default; `None` is unlimited.
    pub fn call_timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.settings.call_timeout = limit.into();
        self
    }

    /// How long a graceful shutdown may take. 60 s by default.
    pub fn shutdown_timeout(mut self, patience: Duration) -> Self {
        self.settings.shutdown_timeout = patience;
        self
    }

    /// How long references may outlive everything else in a shutdown before they are reported and
    /// released. 1 s by default.
    pub fn leak_grace(mut self, patience: Duration) -> Self {
        self.settings.leak_grace = patience;
        self
    }

    /// Makes references that were never dropped an error of the shutdown, instead of a warning.
    pub fn fail_on_leaks(mut self, fail: bool) -> Self {
        self.settings.fail_on_leaks = fail;
        self
    }

    /// How many plain functions may run at once. Those that wait for calls of their own do not count.
    /// 64 by default.
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.settings.blocking_threads = threads;
        self
    }

    /// How many calls of one peer are accepted at once; it holds back the others. 16,384 by default, at
    /// least 64.
    pub fn max_calls_per_peer(mut self, calls: u32) -> Self {
        self.settings.max_calls = calls.max(64);
        self
    }

    /// Joins the group, or founds it together with the others. Needs a tokio runtime, which the
    /// worker uses from then on.
    pub async fn join(self) -> Result<Worker> {
        super::joining::join(self).await
    }
}
