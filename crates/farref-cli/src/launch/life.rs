//! One life of a rank: a process with its group, from its start until nothing of it is left.
//!
//! A rank leads a process group of its own. Signals go to the group, so that what the rank has started
//! hears them too, and a terminal's Ctrl-C does not reach anybody twice. When the rank has ended, the rest
//! of its group is asked to end, and killed after the grace period. What is there even then cannot be
//! ended by anybody (it waits for a device, or its parent does not look after it) and is left behind.

use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::net::unix::pipe;
use tokio::process::Child;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::environment::REMOVED;
use super::failure::Ending;
use super::orphans::reap_members;
use super::output::{Printer, copy};
use super::program::Program;
use super::tether;

/// How often to look whether the rest of a group has ended: nobody tells.
const LOOK: Duration = Duration::from_millis(20);
/// How long somebody who was killed may take to be gone.
pub(super) const DYING: Duration = Duration::from_secs(3);

/// What happens to a rank.
#[derive(Debug)]
pub(super) enum Event {
    /// Its process has ended.
    Ended {
        local: u32,
        ending: Ending,
        after: Duration,
    },
    /// So has its group, or what is left of it cannot be ended.
    Empty { local: u32, is_empty: bool },
    /// Everything it printed is on its way out, too.
    Gone { local: u32 },
}

/// A process that runs.
#[derive(Debug)]
pub(super) struct Life {
    child: Child,
    group: Pid,
    streams: (pipe::Receiver, pipe::Receiver),
    began: Instant,
}

impl Life {
    pub(super) fn begin(
        program: &Program,
        variables: Vec<(&'static str, String)>,
    ) -> anyhow::Result<Self> {
        let mut command = tether::command(program);
        for variable in REMOVED {
            command.env_remove(variable);
        }
        let mut child = command
            .envs(variables)
            // A group in the background that reads from a terminal would be stopped.
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw).context("it has no process id")?;
        let stdout = child.stdout.take().context("it has no stdout")?;
        let stderr = child.stderr.take().context("it has no stderr")?;
        let streams = (
            pipe::Receiver::from_owned_fd(stdout.into_owned_fd()?)?,
            pipe::Receiver::from_owned_fd(stderr.into_owned_fd()?)?,
        );
        let began = Instant::now();
        Ok(Self {
            child,
            group,
            streams,
            began,
        })
    }

    pub(super) fn group(&self) -> Pid {
        self.group
    }

    /// Tells of the process's end, then of its group's, then of its output's.
    pub(super) async fn watch(
        self,
        local: u32,
        printers: (Printer, Printer),
        grace: Duration,
        events: mpsc::Sender<Event>,
    ) {
        let Self {
            mut child,
            group,
            streams,
            began,
        } = self;
        let (gone, is_gone) = watch::channel(false);
        let end = async {
            let ending = match child.wait().await {
                Ok(status) => Ending::from(status),
                Err(error) => Ending::NotStarted(format!("cannot wait for it: {error}")),
            };
            let after = began.elapsed();
            let ended = Event::Ended {
                local,
                ending,
                after,
            };
            let _ = events.send(ended).await;
            let is_empty = end_rest(group, grace).await;
            let _ = events.send(Event::Empty { local, is_empty }).await;
            gone.send_replace(true);
        };
        tokio::join!(end, copy(streams, printers, is_gone));
        let _ = events.send(Event::Gone { local }).await;
    }
}

/// Ends what a rank has left behind in its group; returns whether nothing is left.
async fn end_rest(group: Pid, grace: Duration) -> bool {
    signal(group, Signal::TERM);
    let killing = Instant::now() + grace;
    let mut killed = None;
    loop {
        reap_members(group);
        if test_kill_process_group(group) == Err(Errno::SRCH) {
            return true;
        }
        match killed {
            None if Instant::now() >= killing => {
                signal(group, Signal::KILL);
                killed = Some(Instant::now());
            }
            Some(since) if since.elapsed() >= DYING => return false,
            _ => {}
        }
        sleep(LOOK).await;
    }
}

/// Sends a signal to all of a group. There may be nobody left, which is as good.
pub(super) fn signal(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
}
