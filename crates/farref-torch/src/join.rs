//! Joining a PyTorch group.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use farref::agent::{Group, NodeId};
use farref::functions::Functions;
use farref::{Store, StoreServer, TcpStoreClient, Worker, WorkerBuilder};

use crate::agent::{GroupKind, Parts, TorchAgent};
use crate::group::{
    self, Change, GLOO_INTERFACE, GroupError, GroupStore, Place, RPC_INTERFACE, Turn,
};
use crate::transport::{Limits, Listener, PipeError, cma_domain};

/// How long a worker waits for the others to shut down.
const NO_END: Duration = Duration::from_secs(365 * 24 * 3600);

/// Until what was dropped before the end is gone: who lets go of it tells the owner by a pipe of its own, and may be
/// overtaken by the news that all are ready.
const GRACE: Duration = Duration::from_secs(2);

/// How long a worker that fails to join tries to tell so.
const FAREWELL: Duration = Duration::from_secs(2);

/// Why a worker is not in a PyTorch group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A setting is missing or makes no sense.
    #[error("{0}")]
    Config(String),
    /// The store cannot be hosted or reached.
    #[error("the store at {address}: {source}")]
    Store {
        /// Where it is.
        address: String,
        /// What is wrong.
        source: farref::StoreError,
    },
    /// The group did not come together.
    #[error(transparent)]
    Group(#[from] GroupError),
    /// This worker cannot listen.
    #[error(transparent)]
    Pipe(#[from] PipeError),
    /// The worker cannot run.
    #[error(transparent)]
    Farref(#[from] farref::Error),
    /// The workers have met, but do not talk to each other.
    #[error("the workers met in the store, but not by RPC: {0}")]
    Talk(String),
}

/// A worker of a `torch.distributed.rpc` group, about to join.
///
/// The other workers are PyTorch's own, in Python, and know nothing of this; or they are like this one. What
/// comes of it is a [`Worker`] like any other: it calls and is called, holds references and has them held, and
/// shuts down together with the group.
///
/// Here both are Rust. Each would not notice if the other were Python's:
///
/// ```
/// use farref_torch::{TorchGroup, py_call};
///
/// #[farref::remote(python = "maths.double")]
/// async fn double(number: i64) -> i64 {
///     2 * number
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let probe = std::net::TcpListener::bind("127.0.0.1:0")?;
/// # let port = probe.local_addr()?.port();
/// # drop(probe);
/// let group = |name: &str| {
///     let local = std::net::Ipv4Addr::LOCALHOST.into();
///     TorchGroup::new(name).master("127.0.0.1", port).address(local).world_size(2)
/// };
/// let (server, client) = tokio::try_join!(
///     group("server").rank(0).join(), // hosts the store, as rank 0 does
///     group("client").rank(1).join(),
/// )?;
/// let answer: i64 = py_call(&client.peer("server")?, "maths.double", (21,)).await?;
/// assert_eq!(answer, 42);
/// tokio::try_join!(server.serve(), client.shutdown())?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TorchGroup {
    name: String,
    master: Option<(String, u16)>,
    rank: Option<u16>,
    world_size: Option<u16>,
    hosts: Option<bool>,
    store_address: Option<IpAddr>,
    address: Option<IpAddr>,
    key_prefix: String,
    groups_before: u32,
    rounds_before: Option<u64>,
    same_names_before: u32,
    patience: Duration,
    worker: WorkerBuilder,
    limits: Limits,
    shared_memory: Option<bool>,
}

impl TorchGroup {
    /// A worker of this name. Where the store is, and which worker this is, is taken from the variables that
    /// `torchrun` sets (`MASTER_ADDR`, `MASTER_PORT`, `RANK`, `WORLD_SIZE`), until something else is said.
    pub fn new(name: impl Into<String>) -> Self {
        fn variable<T: std::str::FromStr>(name: &str) -> Option<T> {
            std::env::var(name).ok()?.parse().ok()
        }
        Self {
            name: name.into(),
            master: variable("MASTER_ADDR").zip(variable("MASTER_PORT")),
            rank: variable("RANK"),
            world_size: variable("WORLD_SIZE"),
            hosts: None,
            store_address: None,
            address: None,
            key_prefix: String::new(),
            groups_before: 0,
            rounds_before: None,
            same_names_before: 0,
            patience: Duration::from_secs(60),
            // Workers wait for each other's shutdown as long as it takes, as PyTorch's do.
            worker: Worker::builder("")
                .leak_grace(GRACE)
                .shutdown_timeout(NO_END),
            limits: Limits::default(),
            shared_memory: None,
        }
    }

    /// Where the group's store is.
    pub fn master(mut self, host: impl Into<String>, port: u16) -> Self {
        self.master = Some((host.into(), port));
        self
    }

    /// Which worker this is: from 0, below the world size. In a dynamic group, a number that no worker had
    /// before.
    pub fn rank(mut self, rank: u16) -> Self {
        self.rank = Some(rank);
        self
    }

    /// How many workers there are. All of them say so, or none does: then workers come and go.
    pub fn world_size(mut self, workers: u16) -> Self {
        self.world_size = Some(workers);
        self
    }

    /// Workers come and go: no world size, whatever the environment says.
    pub fn dynamic(mut self) -> Self {
        self.world_size = None;
        self
    }

    /// Whether this worker hosts the store. As in PyTorch, rank 0 does, unless something else is said, or
    /// `TORCHELASTIC_USE_AGENT_STORE` says that `torchrun` hosts it.
    pub fn host_store(mut self, hosts: bool) -> Self {
        self.hosts = Some(hosts);
        self
    }

    /// Where the store listens, if this worker hosts it: on all interfaces, as PyTorch's does, unless something else is said.
    /// `Ipv4Addr::LOCALHOST` keeps it to this host.
    pub fn store_address(mut self, address: impl Into<IpAddr>) -> Self {
        self.store_address = Some(address.into());
        self
    }

    /// The address that others reach this worker under. If nothing is said, PyTorch's rules hold: that of the
    /// interface which `TP_SOCKET_IFNAME` names, or of the host's name.
    pub fn address(mut self, address: IpAddr) -> Self {
        self.address = Some(address);
        self
    }

    /// What the launcher puts before all keys of the store; nothing, unless something is said.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.key_prefix = prefix.into();
        self
    }

    /// How often the Python processes have called `init_rpc` before: they count, and put the number into their
    /// keys.
    pub fn groups_before(mut self, groups: u32) -> Self {
        self.groups_before = groups;
        self
    }

    /// How many rounds it took the Python processes to shut down their earlier groups, which they count as well.
    /// Three each, unless something else is said: one more for each time that calls were still open.
    pub fn rounds_before(mut self, rounds: u64) -> Self {
        self.rounds_before = Some(rounds);
        self
    }

    /// How many of the earlier groups had workers of exactly these names, none unless something else is said.
    pub fn same_names_before(mut self, groups: u32) -> Self {
        self.same_names_before = groups;
        self
    }

    /// How long to wait for the others when joining, and in a dynamic group for the turn to leave; one minute unless
    /// something else is said. At the end of a static group they are waited for without a limit.
    pub fn join_timeout(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The most bytes of one message, tensors included. A peer that sends more is cut off.
    pub fn max_message_size(mut self, bytes: u64) -> Self {
        self.limits.message = bytes;
        self.limits.payload = self.limits.payload.min(bytes);
        self
    }

    /// Whether tensors travel to and from workers on the same host through memory, as among PyTorch's own workers
    /// (TensorPipe's channel `cma`): whoever receives a tensor reads it where its sender has it. Unless something is said
    /// here it is so wherever the system lets processes of one user read each other's memory. Some systems let them only
    /// if the process that is read agrees (Yama's `ptrace_scope` 1): `true` is to agree, which lets every process of the
    /// same user read this one's memory and debug it, as PyTorch's workers do. Nobody else's memory is ever read than that of
    /// the process at the other end of a connection.
    pub fn shared_memory(mut self, through_memory: bool) -> Self {
        self.shared_memory = Some(through_memory);
        self
    }

    /// Other settings of the worker: time limits, threads, what happens to leaks. Those about rendezvous and
    /// connections have no meaning here. A worker in [`Worker::shutdown`] waits for the others without end. If
    /// `shutdown_timeout` is set, it counts from when all want to end; if one of them dies, nobody waits any longer.
    pub fn worker(mut self, settings: impl FnOnce(WorkerBuilder) -> WorkerBuilder) -> Self {
        self.worker = settings(self.worker);
        self
    }

    /// Joins the group. Comes back when all have joined, in a static group.
    pub async fn join(mut self) -> Result<Worker, JoinError> {
        // What is wrong with the program comes before what is wrong with the network.
        let functions = Functions::of_program()?;
        let missing = |what: &str| JoinError::Config(what.to_owned());
        let (host, port) = self.master.clone().ok_or_else(|| {
            missing("nothing says where the workers meet: set MASTER_ADDR and MASTER_PORT, or call `.master(..)`")
        })?;
        let rank = self
            .rank
            .ok_or_else(|| missing("the worker has no rank: set RANK, or call `.rank(..)`"))?;
        let store_error = |source| JoinError::Store {
            address: format!("{host}:{port}"),
            source,
        };
        let launcher_hosts =
            std::env::var("TORCHELASTIC_USE_AGENT_STORE").is_ok_and(|it| it == "True");
        let server = match self.hosts.unwrap_or(rank == 0 && !launcher_hosts) {
            true => {
                let addresses = store_addresses(self.store_address, port);
                let bound = StoreServer::bind(&addresses[..]).await;
                Some(bound.map_err(store_error)?)
            }
            false => None,
        };
        let client = TcpStoreClient::connect(&host, port, self.patience).await;
        let client = Arc::new(client.map_err(store_error)?);
        let place = Place {
            name: self.name.clone(),
            id: rank,
            world: self.world_size,
            base: self.key_prefix.clone(),
            prefix: self.groups_before,
            rounds_before: self
                .rounds_before
                .unwrap_or_else(|| 3 * u64::from(self.groups_before)),
            patience: self.patience,
        };
        let store: Arc<dyn Store> = Arc::clone(&client) as _;
        let group_store = Arc::new(GroupStore::new(store, place)?);
        let ip = group::published_ip(self.address, RPC_INTERFACE).await;
        self.limits.cma = match self.shared_memory {
            Some(false) => None,
            agreed => cma_domain(agreed == Some(true)),
        };
        let listener = Listener::bind(SocketAddr::new(ip, 0), self.limits.clone()).await?;
        let address = format!("uv://{}", listener.local_addr());
        let joining = Joining {
            functions,
            rank,
            listener,
            address,
            group_store,
            server,
            settings: self,
        };
        match joining.settings.world_size {
            Some(world) => joining.join_static(&client, world).await,
            None => joining.join_dynamic().await,
        }
    }
}

/// Where the store listens: as PyTorch's does, on all interfaces, whatever address this worker is told. The others may be told
/// another one. The first that the system has is taken: all IPv6 addresses are all IPv4 ones, too, and not all systems have
/// IPv6.
fn store_addresses(told: Option<IpAddr>, port: u16) -> Vec<SocketAddr> {
    let all: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let reach = told.map_or_else(|| all.to_vec(), |address| vec![address]);
    reach
        .into_iter()
        .map(|ip| SocketAddr::new(ip, port))
        .collect()
}

/// A worker that has found the store.
struct Joining {
    functions: Functions,
    rank: u16,
    listener: Listener,
    address: String,
    group_store: Arc<GroupStore>,
    server: Option<StoreServer>,
    settings: TorchGroup,
}

impl Joining {
    async fn join_static(self, client: &TcpStoreClient, world: u16) -> Result<Worker, JoinError> {
        let patience = self.settings.patience;
        let dialect = group::arrive(client, world, patience).await?;
        let ip = group::published_ip(self.settings.address, GLOO_INTERFACE).await;
        let (members, mut gloo) = self
            .group_store
            .enter_static(dialect, ip, &self.address)
            .await?;
        let names: Vec<String> = members.iter().map(|member| member.name.clone()).collect();
        // They gather twice in each group: now, and before they shut down.
        let gathering = 2 * u64::from(self.settings.same_names_before);
        let group_kind = GroupKind::Static {
            names: names.clone(),
            gathering: gathering + 1,
        };
        let (worker, agent) = self.start(members, group_kind).await?;
        let met = tokio::time::timeout(patience, agent.shared().gather(&names, gathering)).await;
        let met = met.unwrap_or_else(|_| Err("not all answered in time".to_owned()));
        if let Err(problem) = met {
            worker.crash().await;
            return Err(JoinError::Talk(problem));
        }
        if let Err(error) = gloo.barrier(patience).await {
            worker.crash().await;
            return Err(GroupError::from(error).into());
        }
        gloo.close().await;
        Ok(worker)
    }

    async fn join_dynamic(self) -> Result<Worker, JoinError> {
        let patience = self.settings.patience;
        let turn = Turn::take(&self.group_store, Change::Join).await?;
        let joined = async {
            let members = self.group_store.enter_dynamic(&self.address).await?;
            let (worker, agent) = self.start(members, GroupKind::Dynamic).await?;
            let shared = agent.shared();
            // A member that is there and does not answer must not keep the group from changing.
            let told = tokio::time::timeout(patience, shared.announce(true)).await;
            let told = told.unwrap_or_else(|_| Err("not all answered in time".to_owned()));
            if let Err(problem) = told {
                // Some may have been told that this worker is there.
                drop(tokio::time::timeout(FAREWELL, shared.announce(false)).await);
                worker.crash().await;
                return Err(JoinError::Talk(problem));
            }
            Ok(worker)
        };
        let joined = joined.await;
        let ended = turn.end(joined.is_ok()).await;
        // Why it failed comes first.
        let worker = joined?;
        ended?;
        Ok(worker)
    }

    /// Sets the worker going among those who are there.
    async fn start(
        self,
        members: Vec<group::Member>,
        group_kind: GroupKind,
    ) -> Result<(Worker, Arc<TorchAgent>), JoinError> {
        let node = |id: u16| NodeId::new(id.into(), 0);
        let me = node(self.rank);
        let mut all: Vec<_> = members
            .iter()
            .map(|member| (node(member.id), member.name.clone()))
            .collect();
        if !all.iter().any(|(node, _)| *node == me) {
            all.push((me, self.settings.name.clone()));
        }
        let others = members.into_iter().filter(|member| member.id != self.rank);
        let parts = Parts {
            id: self.rank,
            name: self.settings.name.clone(),
            members: others.collect(),
            limits: self.settings.limits,
            group_store: self.group_store,
            group_kind,
            functions: self.functions,
            server: self.server,
        };
        let (group, listener) = (Group { me, members: all }, self.listener);
        let mut agent = None;
        let worker = self.settings.worker.attach(group, |inbound| {
            let started = TorchAgent::start(parts, listener, inbound);
            agent = Some(Arc::clone(&started));
            started
        });
        let worker = worker.await?;
        let agent = agent.ok_or_else(|| JoinError::Config("no agent was made".to_owned()))?;
        agent.belongs_to(&worker);
        Ok((worker, agent))
    }
}
