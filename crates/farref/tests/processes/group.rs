//! Starting, killing, stopping and ending groups of processes.

use std::collections::BTreeMap;
use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use farref::{Peer, PeerSnapshot, Worker, WorkerBuilder};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde::{Deserialize, Serialize};

use crate::certificates;
use crate::proxy::Route;
use crate::worker::{EVICTED, PATIENCE, ROLE};

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
    /// The folder of an [`Authority`](crate::certificates::Authority), which has a certificate for each worker.
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
    /// Whom the others reach through a [`Proxy`](crate::proxy::Proxy).
    pub(crate) routes: BTreeMap<String, Route>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            peer_timeout_ms: 30_000,
            unix_sockets: true,
            leak_grace_ms: 500,
            fail_on_leaks: true,
            may_be_evicted: false,
            require_majority: false,
            join_timeout_ms: 60_000,
            shutdown_timeout_ms: PATIENCE.as_millis() as u64,
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
            builder = builder.tls(certificates::tls([
                file("pem"),
                file("key"),
                folder.join("ca.pem"),
            ]));
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
    children: BTreeMap<String, Process>,
}

struct Process {
    rank: u32,
    child: Child,
    /// Whether the test has ended it on purpose.
    killed: bool,
}

/// Runs a test with a group, and ends the group with it.
pub(crate) fn run(
    options: Options,
    names: &[&str],
    test: impl AsyncFnOnce(&mut Group) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let mut group = Group::start(options, names).await?;
        match tokio::time::timeout(PATIENCE, test(&mut group)).await {
            Ok(Ok(())) => group.finish().await,
            Ok(Err(error)) => Err(error),
            Err(_) => bail!("the test hangs"),
        }
    })
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
        let mut children = BTreeMap::new();
        for (rank, name) in (1 + options.played..).zip(names) {
            let child = spawn(name, rank, world_size, port, &options)?;
            let process = Process {
                rank,
                child,
                killed: false,
            };
            children.insert((*name).to_owned(), process);
        }
        let builder = Worker::builder("driver")
            .rank(0)
            .world_size(world_size)
            .rendezvous(&format!("tcp://127.0.0.1:{port}"));
        let joined = options.route("driver", options.apply(builder)).join().await;
        let me = match joined.context("the driver cannot join") {
            Ok(me) => me,
            Err(error) => {
                children.values_mut().for_each(Process::end);
                return Err(error);
            }
        };
        Ok(Self {
            me,
            options,
            port,
            world_size,
            children,
        })
    }

    pub(crate) fn rendezvous(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.port)
    }

    pub(crate) fn peer(&self, name: &str) -> anyhow::Result<Peer> {
        Ok(self.me.peer(name)?)
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.children
            .values()
            .map(|process| process.child.id())
            .collect()
    }

    fn process(&mut self, name: &str) -> anyhow::Result<&mut Process> {
        self.children.get_mut(name).context("no such process")
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self, name: &str) -> anyhow::Result<()> {
        let process = self.process(name)?;
        process.killed = true;
        process.child.kill()?;
        process.child.wait()?;
        Ok(())
    }

    /// SIGSTOP, and waits until all of its threads stand still.
    pub(crate) fn stop(&mut self, name: &str) -> anyhow::Result<()> {
        self.signal(name, Signal::STOP)?;
        // The signal is on its way: a worker that is running may still do something before it is there.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.process_id(name)?), stopped)?;
        Ok(())
    }

    /// SIGCONT.
    pub(crate) fn resume(&mut self, name: &str) -> anyhow::Result<()> {
        self.signal(name, Signal::CONT)
    }

    fn signal(&mut self, name: &str, signal: Signal) -> anyhow::Result<()> {
        Ok(kill_process(self.process_id(name)?, signal)?)
    }

    fn process_id(&mut self, name: &str) -> anyhow::Result<Pid> {
        let id = self.process(name)?.child.id();
        Pid::from_raw(id.try_into()?).context("no process id")
    }

    /// Starts a killed worker again, under its old name and rank.
    pub(crate) async fn restart(&mut self, name: &str) -> anyhow::Result<()> {
        let (port, world_size, options) = (self.port, self.world_size, self.options.clone());
        let process = self.process(name)?;
        ensure!(process.killed, "kill it first");
        process.child = spawn(name, process.rank, world_size, port, &options)?;
        process.killed = false;
        Ok(())
    }

    /// How a process ended that has to end by itself.
    pub(crate) async fn ended(&mut self, name: &str) -> anyhow::Result<ExitStatus> {
        let process = self.process(name)?;
        process.killed = true;
        wait_for(name, &mut process.child).await
    }

    /// Waits until something is so.
    pub(crate) async fn eventually(
        &self,
        what: &str,
        mut is_so: impl AsyncFnMut() -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        while !is_so().await? {
            ensure!(began.elapsed() < PATIENCE / 2, "never: {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Shuts everyone down. Fails if anyone had references left (`fail_on_leaks`; calls that are left
    /// keep the shutdown from ending), or ended badly.
    pub(crate) async fn finish(mut self) -> anyhow::Result<()> {
        self.me.shutdown().await.context("the driver's shutdown")?;
        for (name, process) in &mut self.children {
            if process.killed {
                continue;
            }
            let status = wait_for(name, &mut process.child).await?;
            let evicted = self.options.may_be_evicted && status.code() == Some(EVICTED);
            ensure!(status.success() || evicted, "`{name}` ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.children.values_mut().for_each(Process::end);
    }
}

impl Process {
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// How a process ends.
pub(crate) async fn wait_for(name: &str, child: &mut Child) -> anyhow::Result<ExitStatus> {
    let began = Instant::now();
    loop {
        match child.try_wait()? {
            Some(status) => return Ok(status),
            None if began.elapsed() > PATIENCE => bail!("`{name}` does not end"),
            None => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

fn spawn(
    name: &str,
    rank: u32,
    world_size: u32,
    port: u16,
    options: &Options,
) -> anyhow::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .env(ROLE, serde_json::to_string(options)?)
        .env("FARREF_NAME", name)
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", world_size.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    command.spawn().context("starting a worker")
}

/// A port that was free a moment ago, and not one that the system gives to the next connection.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(|| fastrand::u16(10_000..20_000))
        .take(1_000)
        .find(is_free)
        .context("no port is free")
}
