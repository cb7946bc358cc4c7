//! Child processes of tests.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use crate::TEST_TIMEOUT;

/// How often a process is asked whether it has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A running process. Dropping it kills it.
///
/// Piped output is read all the time, so that a talkative process never blocks.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    stdout: Option<Receiver<String>>,
    stderr: Option<Receiver<String>>,
}

/// How a process ended, and what it wrote to the streams that were piped.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Process {
    /// Starts `command`, without input. `name` stands for it in errors.
    pub fn start(name: &str, command: &mut Command) -> Result<Self> {
        command.stdin(Stdio::null());
        let child = command
            .spawn()
            .with_context(|| format!("starting `{name}`"))?;
        Ok(Self::from_child(name, child))
    }

    /// Takes over a process that was started otherwise.
    pub fn from_child(name: &str, mut child: Child) -> Self {
        Self {
            name: name.to_owned(),
            stdout: child.stdout.take().map(read_all),
            stderr: child.stderr.take().map(read_all),
            child,
        }
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> Result<bool> {
        Ok(self.child.try_wait()?.is_some())
    }

    /// Kills it with SIGKILL and waits until it is gone.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Waits until it ends by itself.
    pub async fn ended(&mut self) -> Result<Ended> {
        let began = Instant::now();
        while !self.has_ended()? {
            ensure!(
                began.elapsed() < TEST_TIMEOUT,
                "`{}` does not end",
                self.name
            );
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        self.output()
    }

    /// Like [`Process::ended`], outside a runtime.
    pub fn ended_blocking(&mut self) -> Result<Ended> {
        let began = Instant::now();
        while !self.has_ended()? {
            ensure!(
                began.elapsed() < TEST_TIMEOUT,
                "`{}` does not end",
                self.name
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        self.output()
    }

    /// Waits until it ends by itself, with status 0.
    pub async fn ended_well(&mut self) -> Result<Ended> {
        let ended = self.ended().await?;
        let Ended { status, stderr, .. } = &ended;
        ensure!(
            status.success(),
            "`{}` ended with {status}: {stderr}",
            self.name
        );
        Ok(ended)
    }

    fn output(&mut self) -> Result<Ended> {
        let text = |reader: Option<Receiver<String>>| match reader {
            Some(reader) => reader.recv_timeout(TEST_TIMEOUT).with_context(|| {
                let name = &self.name;
                format!("`{name}` has ended, and a process that it started keeps its output open")
            }),
            None => Ok(String::new()),
        };
        let (stdout, stderr) = (text(self.stdout.take())?, text(self.stderr.take())?);
        Ok(Ended {
            status: self.child.wait()?,
            stdout,
            stderr,
        })
    }
}

#[cfg(unix)]
impl Process {
    /// Sends SIGSTOP and waits until all threads of the process have stopped.
    pub fn stop(&self) -> Result<()> {
        use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

        self.signal(Signal::STOP)?;
        // Without this wait, a running thread could still act after this method returns. `EXITED` is
        // included because a process that has exited never reports `STOPPED`.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()?), stopped)?;
        Ok(())
    }

    /// Resumes it with SIGCONT.
    pub fn resume(&self) -> Result<()> {
        self.signal(rustix::process::Signal::CONT)
    }

    /// Asks it to end with SIGTERM.
    pub fn terminate(&self) -> Result<()> {
        self.signal(rustix::process::Signal::TERM)
    }

    /// Sends it SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) -> Result<()> {
        self.signal(rustix::process::Signal::INT)
    }

    fn signal(&self, signal: rustix::process::Signal) -> Result<()> {
        Ok(rustix::process::kill_process(self.pid()?, signal)?)
    }

    fn pid(&self) -> Result<rustix::process::Pid> {
        match rustix::process::Pid::from_raw(self.id().try_into()?) {
            Some(pid) => Ok(pid),
            None => bail!("`{}` has no process id", self.name),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Reads `from` to its end on a thread.
fn read_all(mut from: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // After a read error, the bytes read so far are still the output.
        let _ = from.read_to_end(&mut bytes);
        // The test may have stopped waiting.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
