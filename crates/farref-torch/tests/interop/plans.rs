//! Runs the processes of a plan and looks at how they end.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;

/// No process lives longer, in seconds, unless the plan says so: the scripts end themselves before.
const PATIENCE: u64 = 170;

/// In these, workers with all of PyTorch's channels read large tensors out of each other's memory, if the system lets them.
const THROUGH_MEMORY: [&str; 1] = ["tensors"];

/// Lines of a process that begin so are shown while it runs.
const PROGRESS: &str = "progress: ";

/// One group of processes.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Plan {
    pub(crate) name: String,
    processes: Vec<Process>,
    patience: Option<u64>,
}

#[derive(Clone, Debug, Deserialize)]
struct Process {
    name: String,
    kind: String,
    main: bool,
    args: Vec<String>,
    end: String,
}

/// Where the scripts are.
fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python")
}

/// The Python that has torch.
fn python() -> Command {
    let python = std::env::var_os("FARREF_TORCH_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    command.current_dir(scripts());
    command
}

/// What is missing to run any plan.
pub(crate) fn missing() -> Option<String> {
    let needs = "these tests need a Python with torch and numpy: install python3-torch and python3-numpy, or let \
                 FARREF_TORCH_PYTHON name one";
    match python()
        .args(["-c", "import numpy, torch.distributed.rpc"])
        .output()
    {
        Ok(asked) if asked.status.success() => None,
        Ok(asked) => Some(format!(
            "{needs}\n{}",
            String::from_utf8_lossy(&asked.stderr)
        )),
        Err(error) => Some(format!("{needs}: {error}")),
    }
}

/// The plans.
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

/// A process of the plan and what it writes.
struct Running {
    name: String,
    kind: String,
    main: bool,
    end: String,
    child: Child,
    stdout: std::thread::JoinHandle<String>,
    stderr: std::thread::JoinHandle<String>,
}

/// Kills what is left if the test fails.
struct Group(Vec<Running>);

impl Drop for Group {
    fn drop(&mut self) {
        for process in &mut self.0 {
            drop(process.child.kill());
            drop(process.child.wait());
        }
    }
}

/// A folder that goes with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Result<Self> {
        let folder = format!("farref-interop-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Runs one plan.
pub(crate) fn run(plan: &Plan) -> Result<()> {
    let scratch = Scratch::new(&plan.name)?;
    let (master, second) = (free_address()?, free_address()?);
    let mut group = Group(Vec::new());
    for process in &plan.processes {
        group.0.push(start(process, &master, &second, &scratch.0)?);
    }
    let began = Instant::now();
    let patience = Duration::from_secs(plan.patience.unwrap_or(PATIENCE));
    let mut ended: Vec<Option<ExitStatus>> = vec![None; group.0.len()];
    while ended.iter().any(Option::is_none) && began.elapsed() < patience {
        for (process, ended) in group.0.iter_mut().zip(&mut ended) {
            if ended.is_none() {
                *ended = process.child.try_wait()?;
            }
        }
        // A failure of one makes the others wait for nothing.
        let failed = group
            .0
            .iter()
            .zip(&ended)
            .any(|(process, ended)| ended.is_some_and(|status| !is_right(process, status)));
        if failed {
            std::thread::sleep(Duration::from_secs(2));
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    for (process, ended) in group.0.iter_mut().zip(&mut ended) {
        if ended.is_none() {
            *ended = process.child.try_wait()?;
        }
        drop(process.child.kill());
    }
    let mut problems = Vec::new();
    let mut checks = 0;
    for (process, ended) in group.0.drain(..).zip(ended) {
        let right = ended.is_some_and(|status| is_right(&process, status));
        let Running {
            name,
            kind,
            main,
            end,
            mut child,
            stdout,
            stderr,
        } = process;
        drop(child.wait());
        let stdout = stdout.join().unwrap_or_default();
        let stderr = stderr.join().unwrap_or_default();
        let report: Value = stdout
            .lines()
            .last()
            .and_then(|line| serde_json::from_str(line).ok())
            .unwrap_or_default();
        if end != "killed" && (!right || report["ok"] != Value::Bool(true)) {
            problems.push(format!(
                "--- {name} ({kind}) ended with {ended:?}\n{stdout}\n{}",
                tail(&stderr)
            ));
        }
        let debug = &report["debug"];
        if kind == "peer" && THROUGH_MEMORY.contains(&&plan.name[..]) && memory_can_be_read() {
            let read = debug["bytes_from_memory"].as_u64();
            if read.is_none_or(|bytes| bytes == 0) {
                problems.push(format!(
                    "--- {name}: no tensor was read out of memory: {debug}"
                ));
            }
        }
        if kind == "python" && main {
            checks = report["checks"].as_u64().unwrap_or(0);
        }
    }
    if !problems.is_empty() {
        bail!("{}", problems.join("\n"));
    }
    // A scenario that checked nothing says nothing.
    ensure!(
        checks > 0,
        "the main worker of {} checked nothing",
        plan.name
    );
    Ok(())
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

fn is_right(process: &Running, status: ExitStatus) -> bool {
    match &process.end[..] {
        "killed" => status.signal() == Some(9) || status.success(),
        _ => status.success(),
    }
}

fn tail(text: &str) -> &str {
    let start = text.len().saturating_sub(6000);
    let start = (start..text.len()).find(|&at| text.is_char_boundary(at));
    &text[start.unwrap_or(0)..]
}

fn start(process: &Process, master: &str, second: &str, scratch: &Path) -> Result<Running> {
    let mut command = match &process.kind[..] {
        "peer" => {
            let mut command = Command::new(std::env::current_exe()?);
            command.env("FARREF_PEER", "1");
            command
        }
        _ => {
            let mut command = python();
            command.arg("worker.py");
            command
        }
    };
    let scratch = scratch.to_string_lossy();
    for argument in &process.args {
        let argument = argument
            .replace("{master}", master)
            .replace("{master6}", &master.replace("127.0.0.1", "[::1]"))
            .replace("{second_master}", second)
            .replace("{scratch}", &scratch);
        command.arg(argument);
    }
    // All over the loopback interface, whatever the host is called.
    command
        .env("TP_SOCKET_IFNAME", "lo")
        .env("GLOO_SOCKET_IFNAME", "lo");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .spawn()
        .with_context(|| format!("starting {command:?}"))?;
    let stdout = read_all(child.stdout.take());
    let stderr = read_all(child.stderr.take());
    Ok(Running {
        name: process.name.clone(),
        kind: process.kind.clone(),
        main: process.main,
        end: process.end.clone(),
        child,
        stdout,
        stderr,
    })
}

fn read_all(from: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut text = String::new();
        let mut from = from.map(BufReader::new);
        let mut line = Vec::new();
        while let Some(from) = &mut from {
            line.clear();
            match from.read_until(b'\n', &mut line) {
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
            let line = String::from_utf8_lossy(&line);
            if line.starts_with(PROGRESS) {
                eprint!("{line}");
            }
            text.push_str(&line);
        }
        text
    })
}

/// An address that nobody has at the moment, with a port that the system gives nobody who asks for any: a worker takes its time to
/// listen there.
fn free_address() -> Result<String> {
    let is_free = |port: &u16| TcpListener::bind(("0.0.0.0", *port)).is_ok();
    let ports = std::iter::repeat_with(|| fastrand::u16(20_000..30_000));
    let port = ports.take(1_000).find(is_free);
    Ok(format!("127.0.0.1:{}", port.context("no port is free")?))
}
