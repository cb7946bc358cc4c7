//! The workers of the demo: processes of their own, started from this program.

use std::net::SocketAddr;
use std::process::{ExitCode, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context as _, bail};
use farref::{StoreServer, Worker, WorkerBuilder};
use tokio::process::{Child, Command};

use super::arguments::Transport;
use super::plan::Plan;
use farref_group::{GroupToken, PublishedToken, TOKEN_VARIABLE, threads_to_limit};

/// Variables of launchers that would lead the workers elsewhere.
const FOREIGN: [&str; 5] = [
    "FARREF_RENDEZVOUS",
    "FARREF_RANK",
    "FARREF_WORLD_SIZE",
    "FARREF_ADVERTISE",
    "TORCHELASTIC_RUN_ID",
];

/// This process's worker, and the processes of the others.
pub(super) struct Group {
    pub(super) me: Worker,
    /// By name. A process is killed if this is dropped before it has ended.
    children: Mutex<Vec<(String, Child)>>,
    place: SocketAddr,
    _store: StoreServer,
    /// For those who look on, if it could be kept for them.
    _published: Option<PublishedToken>,
}

impl Group {
    /// Starts the processes and waits until all have met.
    pub(super) async fn start(plan: &Plan) -> anyhow::Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0")
            .await
            .context("cannot listen on 127.0.0.1, where the workers would meet")?;
        let place = store.local_addr();
        let token = GroupToken::make()?;
        let published = match token.publish(&place.ip().to_string(), place.port()) {
            Ok(published) => Some(published),
            // As the launcher does: somebody else may have been there first.
            Err(error) => {
                eprintln!("farref: {error:#}: nobody can look into this group");
                None
            }
        };
        let names = plan.names();
        let size = names.len() as u32;
        let mut children = Vec::new();
        for (rank, name) in (0..size).zip(&names).skip(1) {
            let child = start(plan, place, &token, rank, size, name)?;
            children.push((name.clone(), child));
        }
        let me = Worker::builder(&names[0])
            .rank(0)
            .world_size(size)
            .rendezvous(&format!("tcp://{place}"))
            .token(token.secret())
            .store_is_hosted_elsewhere();
        let me = configure(me, plan.tcp)
            .join()
            .await
            .context("the workers did not come together")?;
        Ok(Self {
            me,
            children: Mutex::new(children),
            place,
            _store: store,
            _published: published,
        })
    }

    /// Where the workers meet.
    pub(super) fn place(&self) -> SocketAddr {
        self.place
    }

    /// Kills a worker: SIGKILL, nothing it could do about it.
    pub(super) fn kill(&self, name: &str) -> anyhow::Result<()> {
        let mut children = self
            .children
            .lock()
            .unwrap_or_else(|lock| lock.into_inner());
        let index = children.iter().position(|(child, _)| child == name);
        let index = index.with_context(|| format!("there is no process {name}"))?;
        let (_, mut child) = children.swap_remove(index);
        child
            .start_kill()
            .with_context(|| format!("cannot kill {name}"))
    }

    /// Shuts the group down and waits for the processes.
    pub(super) async fn end(self, patience: Duration) -> anyhow::Result<()> {
        self.me.shutdown().await.context("the shutdown failed")?;
        let children = self.children.into_inner();
        for (name, mut child) in children.unwrap_or_else(|lock| lock.into_inner()) {
            let status = tokio::time::timeout(patience, child.wait())
                .await
                .with_context(|| format!("{name} does not end"))??;
            if !status.success() {
                bail!("{name} ended with {status}");
            }
        }
        Ok(())
    }
}

fn start(
    plan: &Plan,
    place: SocketAddr,
    token: &GroupToken,
    rank: u32,
    size: u32,
    name: &str,
) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find this program again")?;
    let transport = if plan.tcp { "tcp" } else { "unix" };
    let mut command = Command::new(program);
    for variable in FOREIGN {
        command.env_remove(variable);
    }
    // Matrix products share the processors.
    for variable in threads_to_limit(size) {
        command.env(variable, "1");
    }
    command
        .args(["demo", "--worker", "--transport", transport])
        .env("FARREF_NAME", name)
        .env(TOKEN_VARIABLE, token.secret())
        .env("RANK", rank.to_string())
        .env("WORLD_SIZE", size.to_string())
        .env("LOCAL_WORLD_SIZE", size.to_string())
        .env("MASTER_ADDR", place.ip().to_string())
        .env("MASTER_PORT", place.port().to_string())
        .env("TORCHELASTIC_USE_AGENT_STORE", "True")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("cannot start a process for {name}"))
}

fn configure(builder: WorkerBuilder, tcp: bool) -> WorkerBuilder {
    builder
        .unix_sockets(!tcp)
        .fail_on_leaks(true)
        .leak_grace(Duration::from_secs(5))
}

/// What a worker's process does: whatever it is called for, until all are done.
pub(super) async fn be_a_worker(transport: Transport) -> anyhow::Result<ExitCode> {
    let me = configure(Worker::from_env(), transport == Transport::Tcp)
        .join()
        .await?;
    me.serve().await?;
    Ok(ExitCode::SUCCESS)
}
