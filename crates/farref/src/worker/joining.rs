//! From a set-up to a member: store, listeners, agent, protocol, sponsor.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use farref_proto::{Membership, NodeId};
use tokio::task::JoinHandle;

use super::Worker;
use super::builder::{MeetingPoint, WorkerBuilder};
use super::certificate::watch_certificate;
use super::foreign_store::ForeignStore;
use super::hosting::HostedStore;
use super::starting::{io_thread, launch};
use super::wire_callbacks::CoreCallbacks;
use crate::agent::Inbound;
use crate::error::{ConfigError, Error, Result};
use crate::native::{
    BindOptions, Bound, Identity, NativeAgent, NativeConfig, Predecessors, Tls, WIRE_VERSION,
};
use crate::rendezvous::{
    self, Address, Entry, Opened, Plan, Rendezvous, RendezvousError, TokenTag, advertised_address,
    check_name, check_rank, host_id,
};
use crate::runtime::WorkerStage;
use crate::runtime::registry::Registry;
use crate::runtime::settings::{MessageLimits, Settings};
use crate::support::clock::Instant;
use crate::tables::names::Names;

/// How long the members of a growing group have to write it into a store whose former host is gone. They try
/// to reach it four times a second.
const GRACE: Duration = Duration::from_secs(2);

/// How soon joining is begun anew after the group that was found has ended.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a store may take to hear of a new member before that is left to the background.
const SETTLING: Duration = Duration::from_secs(2);

impl WorkerBuilder {
    /// Joins the group, or founds it together with the others. Needs a tokio runtime, which the
    /// worker uses from then on.
    ///
    /// ```
    /// use farref::{StoreServer, Worker};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// # let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
    /// # let place = format!("tcp://{}", store.local_addr());
    /// // A group without a fixed size: the first to come founds it, others join.
    /// let worker = |name| {
    ///     let builder = Worker::builder(name).rendezvous(&place);
    ///     builder.store_is_hosted_elsewhere().join()
    /// };
    /// let first = worker("first").await?;
    /// let second = worker("second").await?;
    /// assert_eq!(second.peers().len(), 2);
    /// # tokio::try_join!(first.shutdown(), second.shutdown())?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn join(self) -> Result<Worker> {
        let deadline = Instant::now() + self.join_timeout;
        // What is over stays over in a store that is not opened anew.
        let opens = matches!(&self.place, Ok(Some(MeetingPoint::Shared(_))));
        loop {
            match join(self.clone(), deadline).await {
                // The group that was found there has ended meanwhile: the next one can be founded.
                Err(Error::Rendezvous(error))
                    if opens && error.is_ended() && Instant::now() + PAUSE < deadline =>
                {
                    tracing::debug!(%error, "joining is begun anew");
                    tokio::time::sleep(PAUSE).await;
                }
                joined => return joined,
            }
        }
    }
}

/// One attempt to join.
async fn join(builder: WorkerBuilder, deadline: Instant) -> Result<Worker> {
    // What is wrong with the program comes before what is wrong with the network.
    Registry::of_program()?;
    let place = builder.place.clone()?.ok_or(ConfigError::NoRendezvous)?;
    // A store that the program brought is left by who has been a member: it may join with it again.
    let is_foreign = matches!(place, MeetingPoint::Foreign(_));
    let name = match (&builder.name, builder.rank) {
        (Some(name), _) => name.clone(),
        (None, Some(rank)) => format!("worker{rank}"),
        (None, None) => return Err(ConfigError::NoName.into()),
    };
    check_name(&name)?;
    check_rank(builder.rank, builder.world_size)?;
    let tls = builder.tls.clone()?;
    if let Some(bearer) = tls.as_ref().map(Tls::bearer)
        && !bearer.may_be(&name)
    {
        let bearer = bearer.to_string();
        return Err(ConfigError::CertificateName { name, bearer }.into());
    }
    // The store is opened there before there is a worker that keeps it.
    let _io = io_thread()?;
    let Prepared {
        opened,
        bind,
        advertised,
        may_host,
    } = prepare(&builder, &place, &name, deadline).await?;
    let entering = async {
        let bound = Bound::bind(&bind).await?;
        let host = host_id();
        let addresses = told(bound.addresses(), advertised, builder.advertise_port);
        let token = builder.token.as_deref();
        let probe = Predecessors::new(
            &name,
            &host,
            addresses.clone(),
            token,
            bound.reach(),
            tls.clone(),
        );
        let plan = Plan {
            name: name.clone(),
            rank: builder.rank,
            world_size: builder.world_size,
            addresses,
            host,
            timeout: deadline.saturating_duration_since(Instant::now()),
            grace: grace(&builder, &place),
            prefix: rendezvous::key_prefix(builder.run_id.as_deref()),
            wire: WIRE_VERSION,
            token: token.map(TokenTag::of),
            certificate: tls.as_ref().map(Tls::tag),
            probe: Arc::new(probe),
        };
        if let Some(run) = &builder.run_id {
            rendezvous::announce_run(&*opened.store, run).await;
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
            if !is_foreign {
                opened.give_up(reason).await;
            }
            return Err(error);
        }
    };
    let timeout = builder.join_timeout;
    let may_host = may_host.filter(|_| entry.directory.grows());
    let directory = entry.directory.clone();
    let hosted = HostedStore::new(opened.server, may_host, Some(directory.clone()));
    let worker = start(builder, name, bound, entry, hosted)?;
    if let Some(tls) = tls {
        let watching = watch_certificate(&worker.core, tls);
        io_thread()?.spawn(watching);
    }
    let founds = *worker.core.stage.borrow() != WorkerStage::Joining;
    if !founds {
        let joined = tokio::select! {
            biased;
            joined = worker.find_sponsor(deadline, timeout) => joined,
            // Of those who are asked nobody is a member any more.
            over = directory.over() => Err(over.into()),
        };
        if let Err(error) = joined {
            directory.withdraw().await;
            return give_up(worker, error, is_foreign).await;
        }
    }
    match tokio::time::timeout(SETTLING, directory.settle()).await {
        Ok(Ok(())) => {}
        // Nobody has settled in the group that this worker has founded with others: they begin anew, too.
        Ok(Err(error)) if founds && error.is_ended() => {
            return give_up(worker, error.into(), is_foreign).await;
        }
        // The others know this member, and the store hears of it as soon as it can.
        unsettled => {
            tracing::debug!(?unsettled, "the store does not know of this member yet");
            worker.core.store_lost.notify_one();
        }
    }
    Ok(worker)
}

/// Ends a worker that has not got into its group.
async fn give_up(worker: Worker, error: Error, keeps_store: bool) -> Result<Worker> {
    if keeps_store && let Some(life) = &worker.life {
        life.hosted.keep();
    }
    worker.crash().await;
    Err(error)
}

/// Whether an empty store may be the successor of one that knew a group, and how long that takes to show.
fn grace(builder: &WorkerBuilder, place: &MeetingPoint) -> Duration {
    match place {
        MeetingPoint::Shared(Rendezvous::Tcp { .. })
            if builder.rank.is_none() && builder.world_size.is_none() =>
        {
            GRACE
        }
        _ => Duration::ZERO,
    }
}

/// What there is before a worker enters its group.
struct Prepared {
    opened: Opened,
    bind: BindOptions,
    /// Under which address the others find it.
    advertised: Option<IpAddr>,
    /// Host and port of the store, if this worker may take it over. Found out before anybody waits for it to
    /// serve: names may take long to be resolved.
    may_host: Option<(String, u16)>,
}

/// Opens the store and finds out where to listen, and under which address the others find it.
async fn prepare(
    builder: &WorkerBuilder,
    place: &MeetingPoint,
    name: &str,
    deadline: Instant,
) -> Result<Prepared> {
    match place {
        MeetingPoint::Memory(store, network) => {
            let opened = Opened {
                store: Arc::new(store.clone()),
                server: None,
            };
            Ok(Prepared {
                opened,
                bind: BindOptions::memory(network, name),
                advertised: None,
                may_host: None,
            })
        }
        MeetingPoint::Foreign(store) => {
            let advertised =
                advertised_address(builder.advertise, None, leaves_host(builder)).await?;
            let bind = bind_options(builder, advertised)?;
            let opened = Opened {
                store: Arc::new(ForeignStore::new(Arc::clone(store))),
                server: None,
            };
            Ok(Prepared {
                opened,
                bind,
                advertised: Some(advertised),
                may_host: None,
            })
        }
        MeetingPoint::Shared(rendezvous) => {
            let advertised =
                advertised_address(builder.advertise, Some(rendezvous), leaves_host(builder))
                    .await?;
            let bind = bind_options(builder, advertised)?;
            let may_host = may_host(builder, rendezvous).await;
            let opened = open_store(builder, rendezvous, may_host.is_some(), deadline).await?;
            Ok(Prepared {
                opened,
                bind,
                advertised: Some(advertised),
                may_host: may_host.map(|(host, port)| (host.to_owned(), port)),
            })
        }
    }
}

/// Whether connections with other hosts are allowed.
fn leaves_host(builder: &WorkerBuilder) -> bool {
    builder.insecure || matches!(builder.tls, Ok(Some(_)))
}

/// Where to listen, if others reach this worker under `advertised`, and if it may.
fn bind_options(builder: &WorkerBuilder, advertised: IpAddr) -> Result<BindOptions> {
    let mut bind = BindOptions::default();
    let ip = builder.bind.unwrap_or(advertised);
    let by_tcp = check_security(builder, advertised, ip)?;
    bind.tcp = by_tcp.then_some(SocketAddr::new(ip, builder.port));
    bind.unix = builder.unix_sockets;
    Ok(bind)
}

/// Rank 0 hosts the store, or else it is an error. In a group without ranks, the first worker on the
/// store's host does, and those who come later find it taken.
async fn open_store(
    builder: &WorkerBuilder,
    rendezvous: &Rendezvous,
    may_host: bool,
    deadline: Instant,
) -> Result<Opened> {
    let timeout = deadline.saturating_duration_since(Instant::now());
    if may_host {
        match open(rendezvous, true, timeout).await {
            Ok(opened) => return Ok(opened),
            Err(error) => tracing::debug!(%error, "somebody else hosts the store"),
        }
    }
    let must_host = builder.rank == Some(0) && !builder.hosted_elsewhere;
    open(rendezvous, must_host, timeout).await
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

/// Nothing leaves the host in the clear unless somebody has said that it may, and no other user of the host gets in unless
/// somebody has: whether to listen at a TCP port, too. Of a Unix socket the system says whose process is at the other end.
fn check_security(builder: &WorkerBuilder, advertised: IpAddr, listening: IpAddr) -> Result<bool> {
    let has_token = builder
        .token
        .as_ref()
        .is_some_and(|token| !token.is_empty());
    let has_tls = matches!(builder.tls, Ok(Some(_)));
    let outward = [advertised, listening];
    let Some(address) = outward.into_iter().find(|ip| !ip.is_loopback()) else {
        let by_tcp = has_token || builder.insecure || has_tls;
        // Who asks for a port is to have it, or to hear why not.
        let asks_for_tcp = builder.port != 0
            || builder.advertise_port.is_some()
            || builder.bind.is_some()
            || !builder.unix_sockets;
        if asks_for_tcp && !by_tcp {
            return Err(ConfigError::NoToken { address: listening }.into());
        }
        return Ok(by_tcp);
    };
    if has_tls {
        return Ok(true);
    }
    if !builder.insecure {
        return Err(ConfigError::Unencrypted { address }.into());
    }
    if has_token {
        tracing::warn!("workers at {address} talk without encryption");
    } else {
        tracing::warn!(
            "workers at {address} accept anyone who can reach them: set a token for the group"
        );
    }
    Ok(true)
}

/// What one message of farref's own wire may have.
fn message_limits(wire: &NativeConfig) -> MessageLimits {
    let head = u64::from(wire.max_head_bytes).saturating_sub(MessageLimits::HEAD);
    MessageLimits {
        bytes: wire.max_message_bytes,
        parts: wire.max_parts as usize,
        references: (head / MessageLimits::REFERENCE) as usize,
    }
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
        tls: builder.tls.unwrap_or_default(),
        max_calls: builder.settings.max_calls,
    };
    let native = builder.native;
    let settings = Settings {
        message: message_limits(&native),
        ..builder.settings
    };
    launch(name, settings, membership, names, hosted, |core, io| {
        let inbound: Arc<dyn Inbound> = core.clone();
        let callbacks = Arc::new(CoreCallbacks {
            core: Arc::downgrade(core),
        });
        let inbound = Arc::downgrade(&inbound);
        NativeAgent::start(bound, identity, callbacks, inbound, native, Arc::clone(io))
    })
}

/// Opens the store on the thread that no program can keep from running: others join through it, and this
/// worker looks them up in it, whatever the program does.
async fn open(rendezvous: &Rendezvous, hosts: bool, timeout: Duration) -> Result<Opened> {
    let rendezvous = rendezvous.clone();
    let opening = async move { rendezvous::open(&rendezvous, hosts, timeout).await };
    // Given up if nobody waits for it any more.
    struct AbortOnDrop(JoinHandle<Result<Opened, RendezvousError>>);

    impl Drop for AbortOnDrop {
        fn drop(&mut self) {
            self.0.abort();
        }
    }

    let mut task = AbortOnDrop(io_thread()?.spawn(opening));
    match (&mut task.0).await {
        Ok(opened) => Ok(opened?),
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    }
}
