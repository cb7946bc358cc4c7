//! What the other process of a measurement is to be, and starting it: this same program, told by an argument.

use std::fmt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;

use super::transport::Transport;

/// How long the two processes wait for each other.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);
/// What a bare socket sends to and fro: about as much as an empty call.
pub(super) const PING: usize = 64;

/// What to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Role {
    /// A farref worker whose group meets at this port.
    Worker(Transport, u16),
    /// Sends everything back.
    TcpEcho(u16),
    UnixEcho(PathBuf),
    /// Swallows large messages, and says so with one byte.
    TcpSink(u16),
    UnixSink(PathBuf),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Worker(transport, port) => write!(f, "worker-{}:{port}", transport.name()),
            Self::TcpEcho(port) => write!(f, "echo-tcp:{port}"),
            Self::UnixEcho(path) => write!(f, "echo-unix:{}", path.display()),
            Self::TcpSink(port) => write!(f, "sink-tcp:{port}"),
            Self::UnixSink(path) => write!(f, "sink-unix:{}", path.display()),
        }
    }
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "this argument is for `farref bench` itself";
        let (role, place) = text.split_once(':').ok_or(WRONG)?;
        let port = || place.parse().map_err(|_| WRONG);
        Ok(match role {
            "worker-tcp" => Self::Worker(Transport::Tcp, port()?),
            "worker-unix" => Self::Worker(Transport::Unix, port()?),
            "echo-tcp" => Self::TcpEcho(port()?),
            "echo-unix" => Self::UnixEcho(place.into()),
            "sink-tcp" => Self::TcpSink(port()?),
            "sink-unix" => Self::UnixSink(place.into()),
            _ => return Err(WRONG),
        })
    }
}

impl Role {
    /// Starts a process that plays this role. It ends with the returned guard at the latest.
    pub(super) fn start(&self) -> anyhow::Result<Guard> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let child = Command::new(program)
            .args(["bench", "--peer", &self.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the other process")?;
        Ok(Guard(child))
    }
}

/// A process that is gone when this is.
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
