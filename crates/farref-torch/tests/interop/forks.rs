//! The server of `../python/forks.py`, which has imported torch and forks Python workers.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use farref_testkit::Scratch;
use serde_json::{Value, json};

/// The server. Dropping it kills its children.
pub(crate) struct Forks {
    process: Child,
    socket: PathBuf,
    _scratch: Scratch,
}

impl Forks {
    /// Starts the server. The inner error tells what is missing for it.
    pub(crate) fn start() -> Result<Result<Self, String>> {
        let scratch = Scratch::new()?;
        let socket = scratch.path().join("forks");
        let mut command = python();
        command.arg("forks.py").arg(&socket);
        // All over the loopback interface, whatever the host is called.
        command
            .env("TP_SOCKET_IFNAME", "lo")
            .env("GLOO_SOCKET_IFNAME", "lo");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = match command.spawn() {
            Ok(process) => process,
            Err(error) => return Ok(Err(format!("{command:?}: {error}"))),
        };
        let mut line = String::new();
        if let Some(stdout) = process.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let forks = Self {
            process,
            socket,
            _scratch: scratch,
        };
        Ok(match serde_json::from_str::<Value>(&line) {
            Ok(line) if line["missing"].is_null() => Ok(forks),
            Ok(line) => Err(line["missing"].to_string()),
            Err(_) => Err("forks.py failed".to_owned()),
        })
    }

    /// Forks a process that runs `worker.py` with these arguments and appends to these files.
    pub(crate) fn fork(&self, args: &[String], stdout: &Path, stderr: &Path) -> Result<Forked> {
        let mut connection = UnixStream::connect(&self.socket).context("connecting to forks.py")?;
        let request = json!({"args": args, "out": stdout, "err": stderr});
        writeln!(connection, "{request}")?;
        connection.set_nonblocking(true)?;
        Ok(Forked { connection })
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        // The end of its input tells the server to end.
        drop(self.process.stdin.take());
        drop(self.process.wait());
    }
}

/// A forked process. Dropping it kills the process.
pub(crate) struct Forked {
    connection: UnixStream,
}

impl Forked {
    /// The exit code, or the negative number of a signal, once the process has ended. There is no
    /// second answer.
    pub(crate) fn poll(&mut self) -> Result<Option<i64>> {
        let mut answer = [0; 64];
        let length = match self.connection.read(&mut answer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error).context("reading from forks.py"),
        };
        ensure!(length > 0, "forks.py has ended");
        let answer: Value = serde_json::from_slice(&answer[..length])?;
        Ok(Some(
            answer["ended"]
                .as_i64()
                .context("forks.py answers without a code")?,
        ))
    }
}

/// The Python that has torch, in the folder of the scripts.
pub(crate) fn python() -> Command {
    let python = std::env::var_os("FARREF_TORCH_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/python"));
    command
}
