//! Launches with `farref launch`, in a folder of their own.
//!
//! Every launcher carries a mark in its environment, which all its descendants inherit. A test is
//! over when no process with its mark is left.

use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

use anyhow::{Context as _, ensure};
use farref_testkit::Scratch;
use rustix::process::{Pid, Signal, kill_process};

const MARK: &str = "FARREF_LAUNCH_TEST";

/// The variables with a worker's certificate, its key, and the authority's certificate.
pub(crate) const TLS_VARIABLES: [&str; 3] = ["FARREF_TLS_CERT", "FARREF_TLS_KEY", "FARREF_TLS_CA"];

/// One or more launches, with the folder where the launcher also keeps what it makes.
pub(crate) struct Launch {
    mark: String,
    pub(crate) scratch: Scratch,
}

impl Launch {
    pub(crate) fn new() -> anyhow::Result<Self> {
        let scratch = Scratch::new()?;
        let mark = scratch.path().display().to_string();
        Ok(Self { mark, scratch })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Makes a file for which a rank waits.
    pub(crate) fn touch(&self, name: &str) -> anyhow::Result<()> {
        Ok(std::fs::write(self.path(name), "")?)
    }

    pub(crate) fn command(&self, options: &[&str], program: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
        command.arg("launch").args(options).arg("--").args(program);
        for variable in TLS_VARIABLES {
            command.env_remove(variable);
        }
        command
            .env_remove("FARREF_TOKEN")
            .env_remove("NO_COLOR")
            .env("XDG_RUNTIME_DIR", self.scratch.path())
            // As if the user had chosen: otherwise the launcher says that it has.
            .env("OMP_NUM_THREADS", "1")
            .env("RAYON_NUM_THREADS", "1");
        self.set_up(&mut command);
        command
    }

    /// Has a command run in the folder, with the mark and with piped output.
    pub(crate) fn set_up(&self, command: &mut Command) {
        command
            .current_dir(self.scratch.path())
            .env(MARK, &self.mark)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
    }

    /// Runs a script in every rank until the launcher ends.
    pub(crate) fn sh(&self, options: &[&str], script: &str) -> anyhow::Result<Output> {
        Ok(self.command(options, &["sh", "-c", script]).output()?)
    }

    pub(crate) fn start(&self, options: &[&str], script: &str) -> anyhow::Result<Running> {
        Running::start(&mut self.command(options, &["sh", "-c", script]))
    }

    /// Asserts that no process is left.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let left = self.marked()?;
        ensure!(left.is_empty(), "processes are left: {left:?}");
        Ok(())
    }

    /// The ids of all living processes that carry the mark.
    pub(crate) fn marked(&self) -> anyhow::Result<Vec<String>> {
        let mark = format!("{MARK}={}", self.mark).into_bytes();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let entry = entry?;
            // A process that ends meanwhile has nothing to read, and neither has a zombie.
            if let Ok(environment) = std::fs::read(entry.path().join("environ"))
                && environment.split(|byte| *byte == 0).any(|one| one == mark)
            {
                found.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        Ok(found)
    }
}

impl Drop for Launch {
    fn drop(&mut self) {
        for id in self.marked().unwrap_or_default() {
            if let Some(pid) = id.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// A launcher at work.
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) lines: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> anyhow::Result<Self> {
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().context("no stdout")?);
        Ok(Self { child, lines })
    }

    pub(crate) fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        Ok(line)
    }

    /// Reads until `count` lines contain `text`; returns those.
    pub(crate) fn await_lines(&mut self, text: &str, count: usize) -> anyhow::Result<Vec<String>> {
        let mut seen = Vec::new();
        while seen.len() < count {
            let line = self.line()?;
            ensure!(!line.is_empty(), "the output ended before {text:?} came");
            if line.contains(text) {
                seen.push(line.trim_end().to_owned());
            }
        }
        Ok(seen)
    }

    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id())?;
        kill_process(Pid::from_raw(pid).context("no process id")?, signal)?;
        Ok(())
    }

    /// The exit code, the rest of stdout, and stderr.
    pub(crate) fn end(mut self) -> anyhow::Result<(Option<i32>, String, String)> {
        let mut stdout = String::new();
        self.lines.read_to_string(&mut stdout)?;
        let mut stderr = String::new();
        if let Some(mut stream) = self.child.stderr.take() {
            stream.read_to_string(&mut stderr)?;
        }
        Ok((self.child.wait()?.code(), stdout, stderr))
    }
}

pub(crate) fn sorted(output: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(output);
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// This test program, as text for a command line.
pub(crate) fn myself() -> anyhow::Result<String> {
    let myself = std::env::current_exe()?;
    Ok(myself.to_str().context("a path of text")?.to_owned())
}

/// A launcher's meeting place, `127.0.0.1` with a free port.
pub(crate) fn free_place() -> anyhow::Result<String> {
    Ok(format!("127.0.0.1:{}", farref_testkit::free_port()?))
}
