//! A group whose workers are on several hosts: the driver on host 1, where the store is, the others where a test wants them.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use anyhow::{Context as _, ensure};
use farref::{Error, Peer, Worker};
use farref_testkit::{Authority, TEST_TIMEOUT, eventually_async, free_port};

use super::network::Network;
use crate::functions::{add_on, call_everyone};
use crate::group::{Options, tls};
use crate::launch::{Launch, Launched};

/// Where a worker finds its certificate, its key, and whose certificates count.
const TLS_FILES: [&str; 3] = ["FARREF_TLS_CERT", "FARREF_TLS_KEY", "FARREF_TLS_CA"];

/// One worker beside the driver.
struct Member {
    name: &'static str,
    host: u8,
    options: Options,
}

/// A group to be.
pub(crate) struct Plan<'a> {
    network: &'a Network,
    options: Options,
    place: IpAddr,
    members: Vec<Member>,
    authority: Option<Authority>,
}

/// A group. What is left of its processes is killed when it is dropped.
pub(crate) struct Team<'a> {
    pub(crate) me: Worker,
    network: &'a Network,
    place: SocketAddr,
    members: Vec<Member>,
    authority: Option<Authority>,
    workers: BTreeMap<&'static str, Launched>,
}

/// What workers on several hosts need that have no certificates.
pub(crate) fn options() -> Options {
    Options {
        // Network namespaces do not keep processes from seeing each other's sockets in the file system.
        unix_sockets: false,
        insecure: true,
        ..Options::default()
    }
}

/// With certificates they need nothing else.
pub(crate) fn certified() -> Options {
    Options {
        insecure: false,
        token: None,
        ..options()
    }
}

impl<'a> Plan<'a> {
    /// Workers that may talk without encryption have no certificates, and all others have.
    pub(crate) fn new(network: &'a Network, options: Options) -> Self {
        Self {
            authority: (!options.insecure).then(Authority::new),
            network,
            options,
            place: network.address(1),
            members: Vec::new(),
        }
    }

    /// They meet at another address of host 1.
    pub(crate) fn meeting_at(mut self, place: IpAddr) -> Self {
        self.place = place;
        self
    }

    pub(crate) fn worker(self, name: &'static str, host: u8) -> Self {
        let options = self.options.clone();
        self.worker_with(name, host, options)
    }

    pub(crate) fn worker_with(mut self, name: &'static str, host: u8, options: Options) -> Self {
        self.members.push(Member {
            name,
            host,
            options,
        });
        self
    }

    /// Starts the workers, and joins them as `driver`.
    pub(crate) async fn start(self) -> anyhow::Result<Team<'a>> {
        let place = SocketAddr::new(self.place, free_port()?);
        let world_size = self.members.len() as u32 + 1;
        let mut workers = BTreeMap::new();
        for member in &self.members {
            let authority = self.authority.as_ref();
            let launched = start(self.network, place, &self.members, member, authority)?;
            workers.insert(member.name, launched);
        }
        let builder = Worker::builder("driver").rank(0).world_size(world_size);
        let builder = builder.rendezvous(&format!("tcp://{place}"));
        let mut builder = self.options.apply(builder);
        if let Some(authority) = &self.authority {
            builder = builder.tls(tls(authority.worker("driver")));
        }
        let me = builder.join().await;
        Ok(Team {
            me: me.context("the driver cannot join")?,
            network: self.network,
            place,
            members: self.members,
            authority: self.authority,
            workers,
        })
    }
}

fn start(
    network: &Network,
    place: SocketAddr,
    members: &[Member],
    member: &Member,
    authority: Option<&Authority>,
) -> anyhow::Result<Launched> {
    let rank = members.iter().position(|other| other.name == member.name);
    let mut launch = Launch::with(network.command_on(member.host)?, &member.options)?;
    if let Some(authority) = authority {
        for (variable, file) in TLS_FILES.into_iter().zip(authority.worker(member.name)) {
            launch = launch.env(variable, file.display());
        }
    }
    launch
        .env("FARREF_NAME", member.name)
        .env("FARREF_RANK", rank.context("no such worker")? + 1)
        .env("FARREF_WORLD_SIZE", members.len() + 1)
        .env("FARREF_RENDEZVOUS", format!("tcp://{place}"))
        .start(member.name)
}

impl Team<'_> {
    pub(crate) fn peer(&self, name: &str) -> anyhow::Result<Peer> {
        Ok(self.me.peer(name)?)
    }

    /// How a worker ends by itself.
    pub(crate) async fn ended(&mut self, name: &str) -> anyhow::Result<Option<i32>> {
        let worker = self.workers.remove(name).context("no such worker")?;
        let (status, complaints) = worker.ended().await?;
        if !complaints.is_empty() {
            eprintln!("`{name}` ended with {status}: {complaints}");
        }
        Ok(status.code())
    }

    /// Starts a worker again that has ended, under its old name and rank, and waits until it is in.
    pub(crate) async fn restart(&mut self, name: &str) -> anyhow::Result<Peer> {
        let is_it = |member: &&Member| member.name == name;
        let member = self.members.iter().find(is_it).context("no such worker")?;
        let authority = self.authority.as_ref();
        let launched = start(self.network, self.place, &self.members, member, authority)?;
        self.workers.insert(member.name, launched);
        Ok(self.me.wait_for_peer(name, TEST_TIMEOUT).await?)
    }

    /// One worker reaches another, perhaps not at once: each learns in its own time that the other is there again.
    pub(crate) async fn reaches(&self, from: &str, to: &str) -> anyhow::Result<()> {
        let from = self.peer(from)?;
        eventually_async("it is reached", async || {
            match add_on::on(&from, to.to_owned(), 1, 2).await {
                Ok(sum) => Ok(sum == 3),
                Err(Error::Remote(_)) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
        .await
    }

    /// Everybody calls everybody, and is answered.
    pub(crate) async fn calls_all_to_all(&self) -> anyhow::Result<()> {
        let peers = self.me.peers();
        for peer in &peers {
            let called = call_everyone::on(peer).await?;
            ensure!(
                called as usize == peers.len(),
                "{called} of {} answered",
                peers.len()
            );
        }
        Ok(())
    }

    /// Everybody knows everybody, over TCP or TLS, at an address that begins like this.
    pub(crate) async fn are_connected(&self, addresses: &str) -> anyhow::Result<()> {
        let transport = self.authority.as_ref().map_or("tcp", |_| "tls");
        let mut snapshots = vec![self.me.snapshot()];
        for name in self.workers.keys() {
            snapshots.push(self.peer(name)?.snapshot().await?);
        }
        for snapshot in snapshots {
            ensure!(snapshot.peers.len() == self.me.peers().len());
            for peer in &snapshot.peers {
                ensure!(peer.status == "alive", "{peer:?}");
                if peer.name == snapshot.worker {
                    continue;
                }
                ensure!(peer.transport.as_deref() == Some(transport), "{peer:?}");
                let is_there = |address: &String| address.starts_with(addresses);
                ensure!(peer.addresses.iter().all(is_there), "{peer:?}");
            }
        }
        Ok(())
    }

    /// Shuts everyone down. Fails if anyone had references left, or ended badly.
    pub(crate) async fn finish(self) -> anyhow::Result<()> {
        self.me.shutdown().await.context("the driver's shutdown")?;
        for worker in self.workers.into_values() {
            worker.ended_well().await?;
        }
        Ok(())
    }
}
