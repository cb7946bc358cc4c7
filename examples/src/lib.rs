//! What the examples share: a program that starts itself again, as the workers of a group.
//!
//! A real program leaves this to a launcher such as torchrun, mpirun, Slurm or Kubernetes.

use std::io::Read as _;
use std::net::TcpListener;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

/// Says that a process was started by another one of the same program.
const STARTED: &str = "FARREF_EXAMPLES_STARTED";

/// One of these is set if a launcher has started this process.
const LAUNCHED: [&str; 4] = [
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "FARREF_WORLD_SIZE", // Kubernetes: its manifest says it
];

/// How long anything in an example may take before it counts as hanging, also on a busy machine.
pub const TIMEOUT: Duration = Duration::from_secs(100);

/// Starts this program once per name, as ranks 0, 1, ... of a group, and waits until all have ended.
///
/// In the process that does so it returns true, or an error that names the worker that failed. In the
/// workers, whether started by this or by any other launcher, it returns false at once.
pub fn launch(names: &[&str]) -> Result<bool> {
    if was_started() || LAUNCHED.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(false);
    }
    let port = free_port()?;
    let start = |(rank, name): (usize, &&str)| {
        let variables = [
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", names.len().to_string()),
            ("MASTER_ADDR", "127.0.0.1".to_owned()),
            ("MASTER_PORT", port.to_string()),
        ];
        Process::start(name, &variables)
    };
    let mut running: Vec<Process> = names.iter().enumerate().map(start).collect::<Result<_>>()?;
    // All are looked at, since the first may wait for one that has failed.
    while !running.is_empty() {
        for mut process in std::mem::take(&mut running) {
            if !process.has_ended()? {
                running.push(process);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(true)
}

/// Whether this process was started by [`launch`] or [`Process::start`]. It ends when its parent does.
pub fn was_started() -> bool {
    let started = std::env::var_os(STARTED).is_some();
    if started {
        std::thread::spawn(|| {
            // Nothing is ever written; the input ends when the parent is gone, however it went.
            let _ = std::io::stdin().read(&mut [0]);
            std::process::exit(1);
        });
    }
    started
}

/// A free address on this machine for a group to meet at.
pub fn free_rendezvous() -> Result<String> {
    Ok(format!("tcp://127.0.0.1:{}", free_port()?))
}

fn free_port() -> Result<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").context("no port is free")?;
    Ok(listener.local_addr()?.port())
}

/// Waits until something that needs a moment is so.
pub async fn until(what: &str, mut is_so: impl AsyncFnMut() -> Result<bool>) -> Result<()> {
    let began = Instant::now();
    while !is_so().await? {
        ensure!(began.elapsed() < TIMEOUT, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// This program, running once more as a worker. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    /// Open for as long as this process lives.
    _lifeline: ChildStdin,
}

impl Process {
    /// Starts a worker of this name with these variables in its environment.
    pub fn start(name: &str, variables: &[(&str, String)]) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .env(STARTED, "1")
            .env("FARREF_NAME", name)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start `{name}`"))?;
        let lifeline = child.stdin.take().context("a process without an input")?;
        Ok(Self {
            name: name.to_owned(),
            child,
            _lifeline: lifeline,
        })
    }

    /// Ends it by SIGKILL: it gets no chance to say goodbye.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it has ended. An error if it failed.
    pub fn wait(mut self) -> Result<()> {
        let began = Instant::now();
        while !self.has_ended()? {
            ensure!(began.elapsed() < TIMEOUT, "`{}` does not end", self.name);
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn has_ended(&mut self) -> Result<bool> {
        match self.child.try_wait()? {
            Some(status) if !status.success() => bail!("worker `{}`: {status}", self.name),
            ended => Ok(ended.is_some()),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
