//! From a set-up to a member: store, listeners, agent, protocol, sponsor.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farref_proto::{Membership, NodeId};
use tokio::task::JoinHandle;

use super::hosting::HostedStore;
use super::tending::{keep_store, pump, watch_runtime};
use super::{Life, Place, Worker, WorkerBuilder};
use crate::agent::{Agent, Inbound};
use crate::error::{Error, Result};
use crate::native::{
    BindOptions, Bound, Identity, NativeAgent, Predecessors, Rejection, WIRE_VERSION,
};
use crate::rendezvous::{
    self, Address, Directory, Entry, Opened, Plan, Rendezvous, RendezvousError, TokenTag,
    advertised_address, check_name, check_rank, host_id,
};
use crate::runtime::names::{AddressBook, Names};
use crate::runtime::registry::Registry;
use crate::runtime::settings::{MessageLimits, Settings};
use crate::runtime::{Core, Stage};
use crate::support::io_thread::IoThread;

/// How long a sponsor may take to let this worker in before another is asked too. One that refuses
/// connections is not waited for.
const SPONSOR_PATIENCE: Duration = Duration::from_secs(2);

/// How long the members of a growing group have to write it into a store whose former host is gone. They try
/// to reach it four times a second.
const GRACE: Duration = Duration::from_secs(2);

pub(super) async fn join(builder: WorkerBuilder) -> Result<Worker> {
    // What is wrong with the program comes before what is wrong with the network.
    Registry::of_program()?;
    let place = builder.place.clone()?.ok_or_else(|| {
        Error::Config(
            "nothing says where the workers meet: set MASTER_ADDR and MASTER_PORT or \
             FARREF_RENDEZVOUS, or call `.rendezvous(\"tcp://host:port\")`"
                .to_owned(),
        )
    })?;
    let name = match (&builder.name, builder.rank) {
        (Some(name), _) => name.clone(),
        (None, Some(rank)) => format!("worker{rank}"),
        (None, None) => {
            return Err(Error::Config(
                "the worker has no name: set FARREF_NAME or a rank".to_owned(),
            ));
        }
    };
    check_name(&name)?;
    check_rank(builder.rank, builder.world_size)?;
    // The store is opened there before there is a worker that keeps it.
    let _io = io_thread()?;
    let deadline = Instant::now() + builder.join_timeout;
    let (opened, bind, advertised) = prepare(&builder, &place, &name).await?;
    let entering = async {
        let bound = Bound::bind(&bind).await?;
        let host = host_id();
        let addresses = told(bound.addresses(), advertised, builder.advertise_port);
        let token = builder.token.as_deref();
        let presence =
            Predecessors::new(&name, &host, addresses.clone(), token, bind.memory.clone());
        let plan = Plan {
            name: name.clone(),
            rank: builder.rank,
            world_size: builder.world_size,
            addresses,
            host,
            timeout: deadline.saturating_duration_since(Instant::now()),
            grace: grace(&builder, &place),
            prefix: rendezvous::prefix(builder.run_id.as_deref()),
            wire: WIRE_VERSION,
            token: token.map(TokenTag::of),
            presence: Arc::new(presence),
        };
        if let Some(run) = &builder.run_id {
            rendezvous::announce(&*opened.store, run).await;
        }
        let entry = rendezvous::enter(Arc::clone(&opened.store), plan).await?;
        Ok((bound, entry))
    };
    let (bound, entry) = match entering.await {
        Ok(entered) => entered,
        Err(error) => {
            let reason = match &error {
                Error::Rendezvous(reason) => Some(&**reason),
                _ => None,
            };
            opened.give_up(reason).await;
            return Err(error);
        }
    };
    let patience = builder.join_timeout;
    let may_host = match entry.directory.grows() {
        true => match &place {
            Place::Shared(rendezvous) => may_host(&builder, rendezvous).await,
            Place::Memory(..) => None,
        },
        false => None,
    };
    let may_host = may_host.map(|(host, port)| (host.to_owned(), port));
    let hosted = HostedStore::new(opened.server, may_host);
    let worker = start(builder, name, bound, entry, hosted)?;
    if *worker.core.stage.borrow() == Stage::Joining {
        let joined = worker.find_sponsor(deadline, patience).await;
        if let Err(error) = joined {
            worker.crash().await;
            return Err(error);
        }
    }
    Ok(worker)
}

/// Whether an empty store may be the successor of one that knew a group, and how long that takes to show.
fn grace(builder: &WorkerBuilder, place: &Place) -> Duration {
    match place {
        Place::Shared(Rendezvous::Tcp { .. })
            if builder.rank.is_none() && builder.world_size.is_none() =>
        {
            GRACE
        }
        _ => Duration::ZERO,
    }
}

/// Opens the store and finds out where to listen, and under which address the others find it.
async fn prepare(
    builder: &WorkerBuilder,
    place: &Place,
    name: &str,
) -> Result<(Opened, BindOptions, Option<IpAddr>)> {
    match place {
        Place::Memory(store, network) => {
            let opened = Opened {
                store: Arc::new(store.clone()),
                server: None,
            };
            Ok((opened, BindOptions::memory(network, name), None))
        }
        Place::Shared(rendezvous) => {
            let advertised = advertised_address(builder.advertise, Some(rendezvous)).await?;
            check_security(builder, advertised)?;
            let opened = open_store(builder, rendezvous).await?;
            let mut bind = BindOptions::default();
            let ip = builder.bind.unwrap_or(advertised);
            bind.tcp = Some(SocketAddr::new(ip, builder.port));
            bind.unix = builder.unix_sockets;
            Ok((opened, bind, Some(advertised)))
        }
    }
}

/// Rank 0 hosts the store, or else it is an error. In a group without ranks, the first worker on the
/// store's host does, and those who come later find it taken.
async fn open_store(builder: &WorkerBuilder, rendezvous: &Rendezvous) -> Result<Opened> {
    let patience = builder.join_timeout;
    if may_host(builder, rendezvous).await.is_some() {
        match open(rendezvous, true, patience).await {
            Ok(opened) => return Ok(opened),
            Err(error) => tracing::debug!(%error, "somebody else hosts the store"),
        }
    }
    let must_host = builder.rank == Some(0) && !builder.hosted_elsewhere;
    open(rendezvous, must_host, patience).await
}

/// Where a worker without a rank hosts the store if nobody else does: host and port, if it can.
async fn may_host<'a>(
    builder: &WorkerBuilder,
    rendezvous: &'a Rendezvous,
) -> Option<(&'a str, u16)> {
    match rendezvous {
        Rendezvous::Tcp { host, port }
            if builder.rank.is_none() && !builder.hosted_elsewhere && is_this_host(host).await =>
        {
            Some((host, *port))
        }
        _ => None,
    }
}

/// Whether a name stands for an address of this host: then one can listen at it.
async fn is_this_host(name: &str) -> bool {
    let Ok(addresses) = tokio::net::lookup_host((name, 0)).await else {
        return false;
    };
    for address in addresses {
        if tokio::net::TcpListener::bind(address).await.is_ok() {
            return true;
        }
    }
    false
}

/// What the others are told of the addresses at which this worker listens: where they reach them.
fn told(listening: Vec<Address>, ip: Option<IpAddr>, port: Option<u16>) -> Vec<Address> {
    let reachable = |address| match address {
        Address::Tcp(at) => Address::Tcp(SocketAddr::new(
            ip.unwrap_or_else(|| at.ip()),
            port.unwrap_or_else(|| at.port()),
        )),
        other => other,
    };
    listening.into_iter().map(reachable).collect()
}

/// Nothing leaves the host in the clear unless somebody has said that it may.
fn check_security(builder: &WorkerBuilder, advertised: IpAddr) -> Result<()> {
    if advertised.is_loopback() {
        return Ok(());
    }
    if !builder.insecure {
        return Err(Error::Config(format!(
            "the workers would talk over the network (this one at {advertised}) without encryption: \
             say `.insecure()` or FARREF_INSECURE=1 if the network is trusted, and set a token; or \
             meet at 127.0.0.1 if all are on this host"
        )));
    }
    if builder.token.is_none() {
        tracing::warn!(
            "workers at {advertised} accept anyone who can reach them: set a token for the group"
        );
    } else {
        tracing::warn!("workers at {advertised} talk without encryption");
    }
    Ok(())
}

fn start(
    builder: WorkerBuilder,
    name: String,
    bound: Bound,
    entry: Entry,
    hosted: HostedStore,
) -> Result<Worker> {
    let me = entry.me.node;
    let founders = entry.founders.unwrap_or_default();
    let lives: Vec<NodeId> = founders.iter().map(|card| card.node).collect();
    let membership = if lives.is_empty() {
        Membership::joining(me)
    } else {
        Membership::founding(me, lives)
    };
    let names = Names::new(Some(entry.directory));
    founders.into_iter().for_each(|card| names.insert(card));
    names.insert(entry.me.clone());
    let identity = Identity {
        card: entry.me,
        group: entry.group,
        token: builder.token.map(String::into_bytes),
        max_calls: builder.settings.max_calls,
    };
    let native = builder.native;
    let settings = Settings {
        message: MessageLimits::of(&native),
        ..builder.settings
    };
    launch(name, settings, membership, names, hosted, |core, io| {
        let inbound: Arc<dyn Inbound> = core.clone();
        let contacts = Arc::new(AddressBook(Arc::downgrade(core)));
        let inbound = Arc::downgrade(&inbound);
        NativeAgent::start(bound, identity, contacts, inbound, native, Arc::clone(io))
    })
}

/// Sets a worker going on whatever wire `agent` makes.
pub(super) fn launch<A: Agent>(
    name: String,
    settings: Settings,
    membership: Membership,
    names: Names,
    hosted: HostedStore,
    agent: impl FnOnce(&Arc<Core>, &Arc<IoThread>) -> Arc<A>,
) -> Result<Worker> {
    let core = Core::new(
        Arc::from(name),
        settings,
        membership,
        tokio::runtime::Handle::current(),
        Registry::of_program()?,
        names,
        random()?,
    );
    let io = io_thread()?;
    core.attach(agent(&core, &io));
    let hosted = Arc::new(hosted);
    let keep_store = keep_store(Arc::downgrade(&core), Arc::downgrade(&hosted));
    let tasks = [
        io.handle().spawn(pump(Arc::downgrade(&core))),
        tokio::spawn(keep_store),
    ];
    drop(tokio::spawn(watch_runtime(Arc::downgrade(&core))));
    let life = Life {
        core: Arc::clone(&core),
        io,
        tasks,
        hosted,
    };
    Ok(Worker {
        core,
        life: Some(Arc::new(life)),
    })
}

impl Worker {
    /// Asks one member after the other to be let in. What was asked stays asked: whoever answers
    /// first is the sponsor.
    async fn find_sponsor(&self, deadline: Instant, waited: Duration) -> Result<()> {
        let core = &self.core;
        let mut stage = core.stage.subscribe();
        let mut unreachable = core.unreachable.subscribe();
        let mut rejections = core.names.rejections.subscribe();
        let mut asked = BTreeMap::new();
        let Some(directory) = core.names.directory() else {
            return Err(core.not_member());
        };
        loop {
            let sponsors = tokio::time::timeout_at(deadline.into(), directory.sponsors());
            // Out of time: the error below says for whom.
            let sponsors = sponsors.await.unwrap_or_else(|_| Ok(Vec::new()))?;
            for card in sponsors {
                let (sponsor, name) = (card.node, card.name.clone());
                if self.is_no_sponsor(sponsor) {
                    continue;
                }
                core.names.insert(card);
                core.input(|node, out| node.join(sponsor, out));
                let patience =
                    SPONSOR_PATIENCE.min(deadline.saturating_duration_since(Instant::now()));
                let decided = async {
                    tokio::select! {
                        _ = stage.wait_for(|stage| *stage != Stage::Joining) => {}
                        _ = unreachable.wait_for(|nodes| nodes.contains(&sponsor)) => {}
                        _ = rejections.wait_for(|nodes| nodes.contains_key(&sponsor)) => {}
                    }
                };
                if tokio::time::timeout(patience, decided).await.is_err() {
                    asked.insert(sponsor, name);
                }
                let reached = *stage.borrow();
                match reached {
                    Stage::Joining => {}
                    Stage::Member => {
                        self.learn_names(directory, deadline).await;
                        return Ok(());
                    }
                    _ => return Err(core.not_member()),
                }
                if Instant::now() >= deadline {
                    break;
                }
            }
            let is_late = Instant::now() >= deadline;
            // Whoever was asked and has not said no may still say yes.
            if (is_late || asked.keys().all(|sponsor| self.is_no_sponsor(*sponsor)))
                && let Some(error) = self.rejected()
            {
                return Err(error);
            }
            if is_late {
                let mut asked: Vec<String> = asked.into_values().collect();
                asked.sort();
                asked.dedup();
                return Err(Error::from(RendezvousError::NotLetIn {
                    name: core.name.to_string(),
                    asked,
                    waited,
                }));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
            let reached = *stage.borrow();
            if reached == Stage::Member {
                self.learn_names(directory, deadline).await;
                return Ok(());
            }
        }
    }

    /// Whether a worker cannot let this one in.
    fn is_no_sponsor(&self, node: NodeId) -> bool {
        self.core.is_gone(node)
            || self.core.unreachable.borrow().contains(&node)
            || self.core.names.rejections.borrow().contains_key(&node)
    }

    /// Why others do not let this worker in, if one of them has said so.
    fn rejected(&self) -> Option<Error> {
        let names = &self.core.names;
        let (by, rejection) = names
            .rejections
            .borrow()
            .first_key_value()
            .map(|(by, why)| (*by, *why))?;
        let by = names
            .of(by)
            .map_or_else(|| by.to_string(), |name| name.to_string());
        Some(Error::from(match rejection {
            Rejection::Token => RendezvousError::WrongToken {
                name: self.core.name.to_string(),
                by,
            },
            Rejection::Version(theirs) => RendezvousError::WireVersion {
                worker: by,
                theirs,
                ours: WIRE_VERSION,
            },
        }))
    }

    /// Whoever was let in can call the others by their names at once.
    async fn learn_names(&self, directory: &Directory, deadline: Instant) {
        let core = &self.core;
        let members: Vec<NodeId> = core.look(|node| node.membership().view().members().collect());
        let unknown = members
            .into_iter()
            .filter(|node| core.names.of(*node).is_none());
        for node in unknown {
            match tokio::time::timeout_at(deadline.into(), directory.lookup(node)).await {
                Ok(Ok(card)) => core.names.insert(card),
                // In its own time, then.
                _ => core.names.learn(core, node),
            }
        }
    }
}

fn io_thread() -> Result<Arc<IoThread>> {
    IoThread::get().map_err(|error| {
        Error::Config(format!(
            "the system gives no thread for signs of life: {error}"
        ))
    })
}

/// Opens the store on the thread that no program can keep from running: others join through it, and this
/// worker looks them up in it, whatever the program does.
async fn open(rendezvous: &Rendezvous, hosts: bool, patience: Duration) -> Result<Opened> {
    let rendezvous = rendezvous.clone();
    let opening = async move { rendezvous::open(&rendezvous, hosts, patience).await };
    // Given up if nobody waits for it any more.
    struct AbortOnDrop(JoinHandle<Result<Opened, RendezvousError>>);

    impl Drop for AbortOnDrop {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    let mut task = AbortOnDrop(io_thread()?.handle().spawn(opening));
    match (&mut task.0).await {
        Ok(opened) => Ok(opened?),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}

fn random() -> Result<u64> {
    use ring::rand::{SecureRandom as _, SystemRandom};
    let mut bytes = [0; 8];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| Error::Config("the system gives no random numbers".to_owned()))?;
    Ok(u64::from_le_bytes(bytes))
}
