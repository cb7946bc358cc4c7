//! Runs the processes of a plan and checks how they end.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use farref_testkit::{Process, Scratch, TEST_TIMEOUT, free_port};
use serde::Deserialize;
use serde_json::Value;

use crate::forks::{Forked, Forks, python};

/// How long a plan may take. It is longer than the `LIFETIME` of the scripts, so that a script that
/// hangs first prints what its threads do.
const PLAN_LIMIT: Duration = Duration::from_secs(6 * TEST_TIMEOUT.as_secs());

/// How long the others of a plan may go on once a process has failed, to report their errors.
const LAST_REPORTS: Duration = Duration::from_secs(2);

/// How often the processes of a plan are asked whether they have ended.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// In these, workers with all of PyTorch's channels read large tensors out of each other's memory,
/// if the system lets them.
const THROUGH_MEMORY: [&str; 1] = ["tensors"];

/// The code of a process that SIGKILL has ended.
const KILLED: i64 = -9;

/// One group of processes.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Plan {
    pub(crate) name: String,
    processes: Vec<Planned>,
}

/// A process of a plan.
#[derive(Clone, Debug, Deserialize)]
struct Planned {
    name: String,
    kind: Kind,
    /// It is the Python worker that drives the scenario.
    main: bool,
    args: Vec<String>,
    end: End,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Python,
    Peer,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum End {
    Ok,
    Killed,
}

/// The plans that are to be run.
pub(crate) fn all() -> Result<Vec<Plan>> {
    let mut asked = python();
    asked.args(["worker.py", "--plans"]);
    if std::env::var_os("FARREF_TORCH_PLANS").is_some_and(|which| which == "all") {
        asked.arg("--all");
    }
    let plans = asked.output()?;
    let stderr = String::from_utf8_lossy(&plans.stderr);
    ensure!(plans.status.success(), "worker.py --plans: {stderr}");
    serde_json::from_slice(&plans.stdout).context("worker.py --plans")
}

/// Runs one plan.
pub(crate) fn run(plan: &Plan, forks: &Forks) -> Result<()> {
    let scratch = Scratch::new()?;
    let (port, second_port) = (free_port()?, free_port()?);
    let filled_in = [
        ("{master}", format!("127.0.0.1:{port}")),
        ("{master6}", format!("[::1]:{port}")),
        ("{second_master}", format!("127.0.0.1:{second_port}")),
        ("{scratch}", scratch.path().display().to_string()),
    ];
    let mut group = Vec::new();
    for planned in &plan.processes {
        let fill = |arg: &String| {
            filled_in
                .iter()
                .fold(arg.clone(), |arg, (name, value)| arg.replace(name, value))
        };
        let args: Vec<String> = planned.args.iter().map(fill).collect();
        group.push(Running::start(planned, &args, forks, scratch.path())?);
    }
    await_ends(&mut group, scratch.path())?;
    let mut problems = Vec::new();
    let mut checks = 0;
    for process in group {
        let (planned, outcome) = process.finish()?;
        let name = &planned.name;
        let report = outcome.report();
        let is_reported = planned.end == End::Killed || report["ok"] == Value::Bool(true);
        if !planned.is_right(outcome.code) || !is_reported {
            let Outcome {
                code,
                stdout,
                stderr,
            } = &outcome;
            let code =
                code.map_or_else(|| "did not end".to_owned(), |code| format!("ended: {code}"));
            problems.push(format!(
                "--- {name} ({:?}) {code}\n{stdout}\n{}",
                planned.kind,
                tail(stderr)
            ));
        }
        let through_memory = THROUGH_MEMORY.contains(&&plan.name[..]) && memory_can_be_read();
        let debug = &report["debug"];
        if planned.kind == Kind::Peer
            && through_memory
            && debug["bytes_from_memory"]
                .as_u64()
                .is_none_or(|bytes| bytes == 0)
        {
            problems.push(format!(
                "--- {name}: no tensor was read out of memory: {debug}"
            ));
        }
        if planned.main {
            checks = report["checks"].as_u64().unwrap_or(0);
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    // A scenario that checked nothing proves nothing.
    ensure!(
        checks > 0,
        "the main worker of {} checked nothing",
        plan.name
    );
    Ok(())
}

/// Waits until all processes have ended, or one has failed. Writes a file for each that has ended,
/// for the workers that are to outlive it.
fn await_ends(group: &mut [Running<'_>], scratch: &Path) -> Result<()> {
    let mut end = Instant::now() + PLAN_LIMIT;
    let mut has_failed = false;
    while Instant::now() < end && group.iter().any(|process| process.outcome.is_none()) {
        for process in group.iter_mut().filter(|process| process.outcome.is_none()) {
            let Some(is_right) = process.poll()? else {
                continue;
            };
            std::fs::write(scratch.join(format!("ended-{}", process.planned.name)), "")?;
            if !is_right && !has_failed {
                has_failed = true;
                end = Instant::now() + LAST_REPORTS;
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

impl Planned {
    fn is_right(&self, code: Option<i64>) -> bool {
        match self.end {
            End::Ok => code == Some(0),
            End::Killed => matches!(code, Some(0 | KILLED)),
        }
    }
}

/// A started process of a plan. Dropping it kills the process.
struct Running<'a> {
    planned: &'a Planned,
    process: Started,
    outcome: Option<Outcome>,
}

enum Started {
    Python {
        forked: Forked,
        stdout: PathBuf,
        stderr: PathBuf,
    },
    Peer(Process),
}

/// How a process ended, and what it wrote.
#[derive(Default)]
struct Outcome {
    /// The exit code, or the negative number of a signal. None if it had to be stopped.
    code: Option<i64>,
    stdout: String,
    stderr: String,
}

impl Outcome {
    /// The last line, which is JSON.
    fn report(&self) -> Value {
        let last = self.stdout.lines().last();
        last.and_then(|line| serde_json::from_str(line).ok())
            .unwrap_or_default()
    }
}

impl<'a> Running<'a> {
    fn start(planned: &'a Planned, args: &[String], forks: &Forks, scratch: &Path) -> Result<Self> {
        let name = &planned.name;
        let process = match planned.kind {
            Kind::Python => {
                let stdout = scratch.join(format!("{name}.out"));
                let stderr = scratch.join(format!("{name}.err"));
                let forked = forks.fork(args, &stdout, &stderr)?;
                Started::Python {
                    forked,
                    stdout,
                    stderr,
                }
            }
            Kind::Peer => {
                let mut command = Command::new(std::env::current_exe()?);
                command.args(args).env("FARREF_PEER", "1");
                // All over the loopback interface, whatever the host is called.
                command
                    .env("TP_SOCKET_IFNAME", "lo")
                    .env("GLOO_SOCKET_IFNAME", "lo");
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                Started::Peer(Process::start(name, &mut command)?)
            }
        };
        Ok(Self {
            planned,
            process,
            outcome: None,
        })
    }

    /// Whether it ended as the plan says, once it has ended.
    fn poll(&mut self) -> Result<Option<bool>> {
        let outcome = match &mut self.process {
            Started::Python {
                forked,
                stdout,
                stderr,
            } => match forked.poll()? {
                Some(code) => Outcome {
                    code: Some(code),
                    ..written(stdout, stderr)
                },
                None => return Ok(None),
            },
            Started::Peer(process) => {
                if !process.has_ended()? {
                    return Ok(None);
                }
                let ended = process.ended_blocking()?;
                let signal = ended.status.signal().map(|signal| -signal);
                Outcome {
                    code: ended.status.code().or(signal).map(i64::from),
                    stdout: ended.stdout,
                    stderr: ended.stderr,
                }
            }
        };
        let is_right = self.planned.is_right(outcome.code);
        self.outcome = Some(outcome);
        Ok(Some(is_right))
    }

    /// How it ended. Kills it if it runs.
    fn finish(self) -> Result<(&'a Planned, Outcome)> {
        let outcome = match (self.outcome, self.process) {
            (Some(outcome), _) => outcome,
            (
                None,
                Started::Python {
                    forked,
                    stdout,
                    stderr,
                },
            ) => {
                drop(forked);
                written(&stdout, &stderr)
            }
            (None, Started::Peer(mut process)) => {
                process.kill()?;
                let ended = process.ended_blocking()?;
                Outcome {
                    code: None,
                    stdout: ended.stdout,
                    stderr: ended.stderr,
                }
            }
        };
        Ok((self.planned, outcome))
    }
}

/// What a forked process has written to its files.
fn written(stdout: &Path, stderr: &Path) -> Outcome {
    // A process that ended before it opened them has written nothing.
    let text =
        |path| String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned();
    Outcome {
        code: None,
        stdout: text(stdout),
        stderr: text(stderr),
    }
}

/// Whether the system lets processes of one user read each other's memory.
fn memory_can_be_read() -> bool {
    let restricted = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope")
        .is_ok_and(|scope| scope.trim() != "0");
    let (value, mut copy) = ([1_u8; 8], Vec::new());
    let own = farref_shm::ProcessMemory::open(std::process::id())
        .and_then(|memory| memory.read(value.as_ptr().addr() as u64, value.len(), &mut copy));
    own.is_ok() && !restricted
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(6000);
    let start = (start..text.len()).find(|&at| text.is_char_boundary(at));
    &text[start.unwrap_or(0)..]
}
