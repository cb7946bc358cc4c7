//! Single worker processes, for tests that choose rank, rendezvous and environment themselves.

use std::process::{Command, ExitStatus, Stdio};

use farref_testkit::{Ended, Process};

use crate::worker::ROLE;
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
pub(crate) struct Launched(Process);

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
        Process::start(name, &mut self.command).map(Launched)
    }
}

impl Launched {
    /// SIGKILL.
    pub(crate) fn kill(mut self) -> anyhow::Result<()> {
        self.0.kill()
    }

    /// SIGSTOP.
    pub(crate) fn stop(&self) -> anyhow::Result<()> {
        self.0.stop()
    }

    /// SIGCONT.
    pub(crate) fn resume(&self) -> anyhow::Result<()> {
        self.0.resume()
    }

    /// How it ends by itself, and its complaints.
    pub(crate) async fn ended(mut self) -> anyhow::Result<(ExitStatus, String)> {
        let Ended { status, stderr, .. } = self.0.ended().await?;
        Ok((status, stderr))
    }

    /// Ends by itself, with status 0.
    pub(crate) async fn ended_well(mut self) -> anyhow::Result<()> {
        self.0.ended_well().await.map(drop)
    }
}
