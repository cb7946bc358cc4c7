//! Single worker processes, for tests that choose rank, rendezvous and environment themselves.

use std::io::Read as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};

use crate::group::wait_for;
use crate::worker::{PATIENCE, ROLE};
use crate::{Group, Options};

/// Everything that a launcher may have set for this very process.
const LAUNCHERS: [&str; 20] = [
    "FARREF_NAME",
    "FARREF_RANK",
    "FARREF_WORLD_SIZE",
    "FARREF_RENDEZVOUS",
    "FARREF_TOKEN",
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "JOB_COMPLETION_INDEX",
];

/// A worker process to be.
pub(crate) struct Launch {
    command: Command,
}

/// A worker process. Killed when dropped.
pub(crate) struct Launched {
    name: String,
    child: Child,
    complaints: Option<JoinHandle<String>>,
}

impl Launch {
    /// A worker that knows nothing yet of rank, rendezvous and name.
    pub(crate) fn new(options: &Options) -> anyhow::Result<Self> {
        Self::with(Command::new(std::env::current_exe()?), options)
    }

    /// The same, started by a command that becomes this program, in another place.
    pub(crate) fn with(mut command: Command, options: &Options) -> anyhow::Result<Self> {
        for variable in LAUNCHERS {
            command.env_remove(variable);
        }
        command
            .env(ROLE, serde_json::to_string(options)?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        Ok(Self { command })
    }

    /// The next worker of that name and rank in a group that is running.
    pub(crate) fn again(group: &Group, name: &str, rank: u32) -> anyhow::Result<Self> {
        Ok(Self::new(&group.options)?
            .env("FARREF_NAME", name)
            .env("FARREF_RENDEZVOUS", group.rendezvous())
            .env("FARREF_RANK", rank)
            .env("FARREF_WORLD_SIZE", group.world_size))
    }

    /// An additional worker of a group that is running.
    pub(crate) fn addition(group: &Group, name: &str) -> anyhow::Result<Self> {
        Ok(Self::new(&group.options)?
            .env("FARREF_NAME", name)
            .env("FARREF_RENDEZVOUS", group.rendezvous()))
    }

    pub(crate) fn env(mut self, variable: &str, value: impl ToString) -> Self {
        self.command.env(variable, value.to_string());
        self
    }

    pub(crate) fn start(mut self, name: &str) -> anyhow::Result<Launched> {
        let mut child = self.command.spawn().context("starting a worker")?;
        let complaints = child.stderr.take().map(|mut stderr| {
            std::thread::spawn(move || {
                let mut text = String::new();
                // What could be read is better than nothing.
                let _ = stderr.read_to_string(&mut text);
                text
            })
        });
        Ok(Launched {
            name: name.to_owned(),
            child,
            complaints,
        })
    }
}

impl Launched {
    /// SIGKILL.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGSTOP.
    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        self.signal(Signal::STOP)
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = Pid::from_raw(self.child.id().try_into()?).context("no process id")?;
        Ok(kill_process(pid, signal)?)
    }

    /// How it ends by itself, and what it complained of.
    pub(crate) async fn ended(mut self) -> anyhow::Result<(ExitStatus, String)> {
        let status = wait_for(&self.name, &mut self.child).await?;
        let complaints = self.complaints.take().map(JoinHandle::join);
        Ok((status, complaints.and_then(Result::ok).unwrap_or_default()))
    }

    /// Ends by itself, and well.
    pub(crate) async fn ended_well(self) -> anyhow::Result<()> {
        let name = self.name.clone();
        let (status, complaints) = self.ended().await?;
        anyhow::ensure!(
            status.success(),
            "`{name}` ended with {status}: {complaints}"
        );
        Ok(())
    }
}

impl Drop for Launched {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs a test that makes its own group.
pub(crate) fn run(test: impl AsyncFnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let ended = runtime.block_on(async { tokio::time::timeout(PATIENCE, test()).await });
    // A test that failed may have left blocking work behind.
    runtime.shutdown_background();
    ended.context("the test hangs")?
}
