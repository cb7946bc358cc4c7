//! Groups of real processes: this one, and children of it that are the same program.

use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result};
use farref::{Peer, Worker};
use farref_testkit::{Process, Scratch};

/// Tells a process that it is a worker of a group, in lines: rank, number of workers, where they meet, and what else it was
/// given, which may be empty.
const ROLE: &str = "FARREF_TEST_ROLE";

/// What a child is for.
pub(crate) struct Role {
    rank: u32,
    workers: u32,
    place: String,
    /// What [`Processes::start`] was given for the children.
    pub(crate) words: String,
}

impl Role {
    /// None in the process that runs the tests.
    pub(crate) fn of_this_process() -> Option<Result<Self>> {
        let role = std::env::var(ROLE).ok()?;
        Some(Self::read(&role))
    }

    fn read(role: &str) -> Result<Self> {
        let mut words = role.splitn(4, '\n');
        let mut next = || words.next().context("a line of the role");
        Ok(Self {
            rank: next()?.parse()?,
            workers: next()?.parse()?,
            place: next()?.to_owned(),
            words: next()?.to_owned(),
        })
    }

    /// Is the worker, until all are shut down.
    pub(crate) async fn serve(&self, wire: Wire) -> Result<()> {
        let me = join(self.rank, self.workers, &self.place, wire).await?;
        me.shutdown().await?;
        Ok(())
    }
}

/// How workers talk to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wire {
    /// As they do by themselves: through Unix sockets, and large values straight out of each other's memory.
    Usual,
    /// Everything through Unix sockets.
    Unix,
    /// Everything through TCP.
    Tcp,
}

async fn join(rank: u32, workers: u32, place: &str, wire: Wire) -> Result<Worker> {
    let builder = Worker::builder(format!("worker{rank}"))
        .rank(rank)
        .world_size(workers)
        .rendezvous(place)
        // Large tensors go to and fro.
        .kept_receive_buffers(512 << 20)
        .fail_on_leaks(true);
    let builder = match wire {
        Wire::Usual => builder,
        Wire::Unix => builder.shared_memory(false),
        Wire::Tcp => builder.unix_sockets(false).token("of this test"),
    };
    Ok(builder.join().await?)
}

/// Worker 0 is this process, the others are its children.
pub(crate) struct Processes {
    pub(crate) me: Worker,
    children: Vec<Process>,
    _scratch: Scratch,
}

impl Processes {
    /// Each child is given these words.
    pub(crate) async fn start(workers: u32, words: &str, wire: Wire) -> Result<Self> {
        let scratch = Scratch::new()?;
        let address = format!("file://{}", scratch.file("group"));
        let mut children = Vec::new();
        for rank in 1..workers {
            let mut command = Command::new(std::env::current_exe()?);
            command.env(ROLE, format!("{rank}\n{workers}\n{address}\n{words}"));
            children.push(Process::start(&format!("worker{rank}"), &mut command)?);
        }
        let me = join(0, workers, &address, wire).await?;
        Ok(Self {
            me,
            children,
            _scratch: scratch,
        })
    }

    pub(crate) fn peer(&self, rank: u32) -> Result<Peer> {
        Ok(self.me.peer(&format!("worker{rank}"))?)
    }

    /// Kills the child with this rank, of those that are left the one started at that place.
    pub(crate) fn kill(&mut self, rank: usize) -> Result<()> {
        self.children.remove(rank - 1).kill()
    }

    /// Everybody that is left ends well.
    pub(crate) async fn shutdown(self) -> Result<()> {
        self.me.shutdown().await?;
        for mut child in self.children {
            child.ended_well().await?;
        }
        Ok(())
    }
}

pub(crate) fn in_runtime(work: impl Future<Output = Result<()>>) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(work)
}

/// The end of a process that is no test.
pub(crate) fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:?}");
            ExitCode::FAILURE
        }
    }
}
