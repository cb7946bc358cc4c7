//! What the other process of a measurement is to be, and starting it: this same program, told by an argument.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};

use super::transport::Transport;
use farref_cli::tools::GroupTls;
use farref_group::{GroupToken, TOKEN_VARIABLE, token_from_environment};

/// How long the two processes wait for each other.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

/// What to be.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Role {
    /// A worker that serves until its group ends.
    Worker(Seat),
    /// The same, but copies what it has on a GPU to whom it sends it: it shares nothing of that.
    #[cfg(feature = "cuda")]
    CopyingWorker(Seat),
    /// A worker that joins when told to, and tells when it has joined and when the group has ended.
    Member(Seat, Place),
    /// Sends everything back, with tokio.
    Echo(Place),
    /// Sends everything back, with blocking calls.
    BlockingEcho(Place),
    /// Sends small frames, with tokio, as many as it is given credit for.
    Frames(Place),
    /// Receives large messages, and sends them back or says with one byte that they came.
    Bulk(Place),
}

/// Which worker of which group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Seat {
    pub(super) transport: Transport,
    /// Where the group meets.
    pub(super) port: u16,
    pub(super) rank: u32,
    pub(super) workers: u32,
}

/// Where the one who started this process listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Place {
    Tcp(u16),
    Unix(PathBuf),
}

impl FromStr for Role {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(text).map_err(|_| "this argument is for `farref-bench` itself")
    }
}

impl Role {
    /// Starts a process that plays this role. It ends with the returned guard at the latest.
    pub(super) fn start(&self) -> anyhow::Result<Guard> {
        self.start_with(None)
    }

    /// The same, with a certificate.
    pub(super) fn start_with(&self, certificates: Option<&GroupTls>) -> anyhow::Result<Guard> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let child = Command::new(program)
            .args(["--peer", &serde_json::to_string(self)?])
            .env(TOKEN_VARIABLE, token())
            .envs(certificates.into_iter().flat_map(|made| made.variables(0)))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .context("cannot start the other process")?;
        Ok(Guard(child))
    }
}

/// The token of all groups that are measured, in this process and in those that it starts. Empty if there is none to be had:
/// workers say what to do then.
pub(super) fn token() -> &'static str {
    static TOKEN: OnceLock<String> = OnceLock::new();
    TOKEN.get_or_init(|| {
        let make = || Some(GroupToken::make().ok()?.secret().to_owned());
        let token = token_from_environment().or_else(make);
        token.unwrap_or_default()
    })
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
