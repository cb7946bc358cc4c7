//! One test in a process of its own.

use std::fmt;
use std::io::{self, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// A test that takes longer hangs. Longer than the limit that a test has for itself (`TEST_LIMIT`
/// in `farref-testkit`), so that the test names the reason if it can.
const TEST_LIMIT: Duration = Duration::from_secs(300);

/// What became of a test.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) ended: Ended,
    /// By it and by the workers that it started.
    pub(crate) said: String,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    Passed,
    Failed,
    Hung,
    /// There is no such test.
    NotRun,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}\n{}", self.ended, self.said)
    }
}

/// A test and whatever it starts.
struct Group(Child);

impl Group {
    /// Whether the test is over. It is not taken notice of, so that nobody else has its number.
    fn is_over(&self) -> io::Result<bool> {
        let id = WaitId::Pid(Pid::from_child(&self.0));
        let over = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        Ok(waitid(id, over)?.is_some())
    }

    /// How the test ended. What it left behind, which would keep the output open, ends as well.
    fn end(&mut self) -> io::Result<ExitStatus> {
        // First: once somebody has waited for it, its number may be another's.
        let _ = kill_process_group(Pid::from_child(&self.0), Signal::KILL);
        self.0.wait()
    }
}

/// Whatever else goes wrong, nothing is left. (Whoever interrupts the program leaves the tests that run, which end at their own limits.)
impl Drop for Group {
    fn drop(&mut self) {
        // Where it has ended, this is known already and nothing happens.
        if let Ok(None) = self.0.try_wait() {
            let _ = self.end();
        }
    }
}

/// Runs one test, and whatever it starts, with a fault.
pub(crate) fn run(executable: &Path, test: &str, fault: Option<&str>) -> anyhow::Result<Outcome> {
    let (mut output, write) = io::pipe()?;
    let mut command = Command::new(executable);
    command
        .args([test, "--exact", "--nocapture"])
        .env_remove("FARREF_MUTATION")
        // As cargo does it: some look for files beside them.
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/farref"))
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(write.try_clone()?)
        .stderr(write);
    if let Some(fault) = fault {
        command.env("FARREF_MUTATION", fault);
    }
    let child = command.spawn();
    let mut group = Group(child.with_context(|| format!("cannot start {}", executable.display()))?);
    // Its ends of the pipe.
    drop(command);
    let reading = thread::spawn(move || {
        let mut said = Vec::new();
        let _ = output.read_to_end(&mut said);
        String::from_utf8_lossy(&said).into_owned()
    });
    let began = Instant::now();
    let mut is_over = group.is_over()?;
    while !is_over && began.elapsed() < TEST_LIMIT {
        thread::sleep(Duration::from_millis(20));
        is_over = group.is_over()?;
    }
    let status = group.end()?;
    let said = reading.join().unwrap_or_default();
    let ended = match is_over {
        false => Ended::Hung,
        true if said.contains(" 0 passed; 0 failed;") => Ended::NotRun,
        true if status.success() && said.contains(" 1 passed; 0 failed;") => Ended::Passed,
        true => Ended::Failed,
    };
    Ok(Outcome { ended, said })
}
