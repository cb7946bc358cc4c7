//! Starting, killing, stopping and ending groups of processes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use farref::{Peer, PeerSnapshot, Tls, Worker, WorkerBuilder};
use farref_testkit::{Process, Proxy, TEST_TIMEOUT, free_port, run_test};
use serde::{Deserialize, Serialize};

use crate::worker::{EVICTED, ROLE};

/// A time limit that no test reaches.
pub(crate) const NEVER_MS: u64 = 600_000;

/// How long a worker may be silent in tests about silence: longer than a busy machine makes one that
/// is not stopped.
pub(crate) const SILENT_MS: u64 = 10_000;

/// Where a worker listens, and the port that it tells the others.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Route {
    listen: u16,
    advertise: u16,
}

/// How the workers of a test are set up; travels to their processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Options {
    pub(crate) peer_timeout_ms: u64,
    pub(crate) unix_sockets: bool,
    pub(crate) leak_grace_ms: u64,
    pub(crate) fail_on_leaks: bool,
    pub(crate) may_be_evicted: bool,
    pub(crate) require_majority: bool,
    pub(crate) join_timeout_ms: u64,
    pub(crate) shutdown_timeout_ms: u64,
    pub(crate) token: Option<String>,
    /// The folder of an [`Authority`](farref_testkit::Authority), which has a certificate for each worker.
    pub(crate) certificates: Option<PathBuf>,
    /// Whether it may talk to other hosts without encryption.
    pub(crate) insecure: bool,
    pub(crate) advertise: Option<IpAddr>,
    pub(crate) bind: Option<IpAddr>,
    /// Whether each worker calls all others before it shuts down.
    pub(crate) calls_everyone: bool,
    /// A file without which it has not begun to serve. Until then it says nothing to anybody of its own accord.
    pub(crate) serves_after: Option<String>,
    /// Whether it leaves then, instead of waiting for the others.
    pub(crate) leaves: bool,
    /// Whether it complains of connections that it has refused.
    pub(crate) counts_refusals: bool,
    /// Whether it keeps what it counts and logs.
    pub(crate) watched: bool,
    /// How many founders there are beside the processes, which the test plays: those after the driver.
    pub(crate) played: u32,
    /// Who may not call what.
    pub(crate) refused: Option<(String, String)>,
    pub(crate) max_calls: u32,
    pub(crate) max_answer_bytes: u64,
    pub(crate) blocking_threads: usize,
    pub(crate) max_message_bytes: u64,
    /// The threads of the workers' runtimes; one is a runtime without threads of its own.
    pub(crate) runtime_threads: usize,
    /// Who shares no memory with the others.
    pub(crate) keeps_memory: Vec<String>,
    /// Workers that the others reach through a [`Proxy`].
    pub(crate) routes: BTreeMap<String, Route>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            // Only a test of this limit has a lower one: a busy machine makes workers silent.
            peer_timeout_ms: NEVER_MS,
            unix_sockets: true,
            leak_grace_ms: 500,
            fail_on_leaks: true,
            may_be_evicted: false,
            require_majority: false,
            join_timeout_ms: TEST_TIMEOUT.as_millis() as u64,
            shutdown_timeout_ms: TEST_TIMEOUT.as_millis() as u64,
            token: Some("of this test".to_owned()),
            certificates: None,
            insecure: false,
            advertise: None,
            bind: None,
            calls_everyone: false,
            serves_after: None,
            leaves: false,
            counts_refusals: false,
            watched: false,
            played: 0,
            refused: None,
            max_calls: 16_384,
            max_answer_bytes: 256 << 20,
            blocking_threads: 64,
            max_message_bytes: 4 << 30,
            runtime_threads: 2,
            keeps_memory: Vec::new(),
            routes: BTreeMap::new(),
        }
    }
}

impl Options {
    pub(crate) fn apply(&self, builder: WorkerBuilder) -> WorkerBuilder {
        let mut builder = match &self.token {
            Some(token) => builder.token(token),
            None => builder,
        };
        if self.insecure {
            builder = builder.insecure();
        }
        if let Some(address) = self.advertise {
            builder = builder.advertise(address);
        }
        if let Some(address) = self.bind {
            builder = builder.bind(address);
        }
        if let Some((caller, function)) = self.refused.clone() {
            builder = builder
                .authorize(move |call| call.caller() != caller || call.function() != function);
        }
        builder
            .call_timeout(TEST_TIMEOUT)
            .join_timeout(Duration::from_millis(self.join_timeout_ms))
            .peer_timeout(Duration::from_millis(self.peer_timeout_ms))
            .unix_sockets(self.unix_sockets)
            .leak_grace(Duration::from_millis(self.leak_grace_ms))
            .fail_on_leaks(self.fail_on_leaks)
            .require_majority(self.require_majority)
            .max_calls_per_peer(self.max_calls)
            .max_answer_bytes_per_peer(self.max_answer_bytes)
            .blocking_threads(self.blocking_threads)
            .max_message_bytes(self.max_message_bytes)
            .shutdown_timeout(Duration::from_millis(self.shutdown_timeout_ms))
    }

    /// Puts a worker behind the proxy, if there is one, and says what is special about it.
    pub(crate) fn route(&self, name: &str, builder: WorkerBuilder) -> WorkerBuilder {
        let shares = !self.keeps_memory.iter().any(|keeps| keeps == name);
        let mut builder = builder.shared_memory(shares);
        if let Some(folder) = &self.certificates {
            let file = |end| folder.join(format!("{name}.{end}"));
            builder = builder.tls(tls([file("pem"), file("key"), folder.join("ca.pem")]));
        }
        match self.routes.get(name) {
            Some(route) => builder.port(route.listen).advertise_port(route.advertise),
            None => builder,
        }
    }
}

/// One group: this process as `driver`, rank 0, and the others as children.
pub(crate) struct Group {
    pub(crate) me: Worker,
    pub(crate) options: Options,
    pub(crate) port: u16,
    pub(crate) world_size: u32,
    members: BTreeMap<String, Member>,
}

struct Member {
    rank: u32,
    process: Process,
    /// Whether the test has ended it on purpose.
    killed: bool,
}

/// Runs a test with a group, and ends the group with it.
pub(crate) fn run(
    options: Options,
    names: &[&str],
    test: impl AsyncFnOnce(&mut Group) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    run_test(async {
        let mut group = Group::start(options, names).await?;
        test(&mut group).await?;
        group.finish().await
    })
}

/// A proxy between all workers of these names, and options for a group whose links all pass it.
pub(crate) fn proxied(names: &[&str]) -> anyhow::Result<(Proxy, Options)> {
    let proxy = Proxy::new()?;
    let mut routes = BTreeMap::new();
    for name in names {
        let listen = free_port()?;
        let advertise = proxy
            .add(SocketAddr::from(([127, 0, 0, 1], listen)))?
            .port();
        routes.insert((*name).to_owned(), Route { listen, advertise });
    }
    let options = Options {
        unix_sockets: false,
        routes,
        ..Options::default()
    };
    Ok((proxy, options))
}

/// What a worker needs to use these files.
pub(crate) fn tls([certificate, key, authorities]: [PathBuf; 3]) -> Tls {
    Tls::from_files(certificate, key, authorities).expect("files that make sense")
}

impl Group {
    /// What the driver counts of its link to a worker, and that one of its link to the driver.
    pub(crate) async fn both_ends(
        &self,
        name: &str,
        count: impl Fn(&PeerSnapshot) -> u64,
    ) -> anyhow::Result<[u64; 2]> {
        let there = self.peer(name)?.snapshot().await?;
        let ends = [(self.me.snapshot(), name), (there, "driver")];
        let mut counts = [0; 2];
        for (counted, (snapshot, peer)) in counts.iter_mut().zip(ends) {
            let link = snapshot.peers.iter().find(|known| known.name == peer);
            *counted = count(link.context("no such peer")?);
        }
        Ok(counts)
    }

    /// Starts the processes and joins them as `driver`.
    pub(crate) async fn start(options: Options, names: &[&str]) -> anyhow::Result<Self> {
        Self::start_at(free_port()?, options, names).await
    }

    /// The same with a store at this port.
    pub(crate) async fn start_at(
        port: u16,
        options: Options,
        names: &[&str],
    ) -> anyhow::Result<Self> {
        let world_size = names.len() as u32 + 1 + options.played;
        let mut members = BTreeMap::new();
        for (rank, name) in (1 + options.played..).zip(names) {
            let process = spawn(name, rank, world_size, port, &options)?;
            let member = Member {
                rank,
                process,
                killed: false,
            };
            members.insert((*name).to_owned(), member);
        }
        let builder = Worker::builder("driver")
            .rank(0)
            .world_size(world_size)
            .rendezvous(&format!("tcp://127.0.0.1:{port}"));
        let joined = options.route("driver", options.apply(builder)).join().await;
        Ok(Self {
            me: joined.context("the driver cannot join")?,
            options,
            port,
            world_size,
            members,
        })
    }

    pub(crate) fn rendezvous(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    pub(crate) fn peer(&self, name: &str) -> anyhow::Result<Peer> {
        Ok(self.me.peer(name)?)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        let members = self.members.values();
        members.map(|member| member.process.id()).collect()
    }

    fn member(&mut self, name: &str) -> anyhow::Result<&mut Member> {
        self.members.get_mut(name).context("no such process")
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let member = self.member(name)?;
        member.killed = true;
        member.process.kill()
    }

    /// SIGSTOP, and waits until all of its threads stand still.
    pub(crate) fn stop(&mut self, name: &str) -> anyhow::Result<()> {
        self.member(name)?.process.stop()
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self, name: &str) -> anyhow::Result<()> {
        self.member(name)?.process.resume()
    }

    /// Starts a killed worker again, under its old name and rank.
    pub(crate) async fn restart(&mut self, name: &str) -> anyhow::Result<()> {
        let (port, world_size, options) = (self.port, self.world_size, self.options.clone());
        let member = self.member(name)?;
        ensure!(member.killed, "kill it first");
        member.process = spawn(name, member.rank, world_size, port, &options)?;
        member.killed = false;
        Ok(())
    }

    /// How a process ended that has to end by itself.
    pub(crate) async fn ended(&mut self, name: &str) -> anyhow::Result<ExitStatus> {
        let member = self.member(name)?;
        member.killed = true;
        Ok(member.process.ended().await?.status)
    }

    /// Shuts everyone down. Fails if anyone had references left (`fail_on_leaks`; calls that are left
    /// keep the shutdown from ending), or ended badly.
    pub(crate) async fn finish(mut self) -> anyhow::Result<()> {
        self.me.shutdown().await.context("the driver's shutdown")?;
        for (name, member) in &mut self.members {
            if member.killed {
                continue;
            }
            let status = member.process.ended().await?.status;
            let evicted = self.options.may_be_evicted && status.code() == Some(EVICTED);
            ensure!(status.success() || evicted, "`{name}` ended with {status}");
        }
        Ok(())
    }
}

fn spawn(
    name: &str,
    rank: u32,
    world_size: u32,
    port: u16,
    options: &Options,
) -> anyhow::Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .env(ROLE, serde_json::to_string(options)?)
        .env("FARREF_NAME", name)
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world_size.to_string())
        .stdout(Stdio::null());
    Process::start(name, &mut command)
}
