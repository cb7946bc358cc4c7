//! Processes of this program that form a group, and how much memory they have.

use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use farref::{Peer, Worker};

const ROLE: &str = "FARREF_LOAD_ROLE";

/// A group: this process and others, which end with it.
pub(crate) struct Team {
    pub(crate) me: Worker,
    children: Vec<(String, Child)>,
}

/// Whether this process is one of a group's others.
pub(crate) fn is_member() -> bool {
    std::env::var_os(ROLE).is_some()
}

/// What those do.
pub(crate) async fn serve() -> anyhow::Result<()> {
    let me = Worker::from_env()
        .peer_timeout(PATIENCE)
        .max_calls_per_peer(MOST_CALLS)
        .join()
        .await?;
    Ok(me.serve().await?)
}

/// How many calls of one peer each process has open: what is beyond would wait with the caller.
pub(crate) const MOST_CALLS: u32 = 1 << 20;

/// Longer than any process is stopped.
const PATIENCE: Duration = Duration::from_secs(120);

impl Team {
    pub(crate) async fn start(names: &[String]) -> anyhow::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let world_size = names.len() as u32 + 1;
        let place = format!("tcp://127.0.0.1:{port}");
        let mut children = Vec::new();
        for (rank, name) in (1..).zip(names) {
            let child = Command::new(std::env::current_exe()?)
                .env(ROLE, "")
                .env("FARREF_NAME", name)
                .env("FARREF_RANK", u32::to_string(&rank))
                .env("FARREF_WORLD_SIZE", world_size.to_string())
                .env("FARREF_RENDEZVOUS", &place)
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .spawn()?;
            children.push((name.clone(), child));
        }
        let me = Worker::builder("driver")
            .rank(0)
            .world_size(world_size)
            .rendezvous(&place)
            .peer_timeout(PATIENCE)
            .fail_on_leaks(true)
            .join()
            .await?;
        Ok(Self { me, children })
    }

    pub(crate) fn peer(&self, name: &str) -> anyhow::Result<Peer> {
        Ok(self.me.peer(name)?)
    }

    pub(crate) fn pid(&self, name: &str) -> anyhow::Result<u32> {
        let child = self.children.iter().find(|(known, _)| known == name);
        Ok(child.context("no such process")?.1.id())
    }

    /// Of each process of the group, this one included, the megabytes that it has now.
    pub(crate) fn resident(&self) -> anyhow::Result<Vec<f64>> {
        let own = std::process::id();
        let children = self.children.iter().map(|(_, child)| child.id());
        children.chain([own]).map(resident).collect()
    }

    pub(crate) fn peak(&self) -> anyhow::Result<Vec<f64>> {
        let own = std::process::id();
        let children = self.children.iter().map(|(_, child)| child.id());
        children.chain([own]).map(peak).collect()
    }

    /// Shuts down. Fails if a process ends badly, or references are left.
    pub(crate) async fn end(mut self) -> anyhow::Result<()> {
        self.me.shutdown().await?;
        for (name, mut child) in std::mem::take(&mut self.children) {
            let status = child.wait()?;
            ensure!(status.success(), "`{name}` ended with {status}");
        }
        Ok(())
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        for (_, child) in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// The megabytes that a process has.
pub(crate) fn resident(pid: u32) -> anyhow::Result<f64> {
    status(pid, "VmRSS:")
}

/// The most that it ever had.
pub(crate) fn peak(pid: u32) -> anyhow::Result<f64> {
    status(pid, "VmHWM:")
}

/// A figure of two processes.
pub(crate) fn of_both(
    pids: [u32; 2],
    figure: fn(u32) -> anyhow::Result<f64>,
) -> anyhow::Result<[f64; 2]> {
    Ok([figure(pids[0])?, figure(pids[1])?])
}

fn status(pid: u32, line: &str) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = text.lines().find_map(|text| text.strip_prefix(line));
    let kilobytes = found.with_context(|| format!("process {pid} has no {line}"))?;
    let kilobytes: f64 = kilobytes.trim().trim_end_matches(" kB").parse()?;
    Ok(crate::round(kilobytes / 1024.0))
}
