//! The second process of a measurement: this same program, told by its arguments to serve.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};

use crate::transport::Transport;

/// A server that is gone when this is.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// Where it listens.
    pub place: String,
}

impl Server {
    pub fn start(system: &str, transport: Transport) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut child = Command::new(program)
            .args(["serve", system, "--transport", transport.name()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the server")?;
        let stdout = child.stdout.take().context("the server has no output")?;
        let mut server = Self {
            child,
            place: String::new(),
        };
        BufReader::new(stdout).read_line(&mut server.place)?;
        server.place.truncate(server.place.trim_end().len());
        ensure!(!server.place.is_empty(), "the server did not start");
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Ends this process when the one that started it ends: there is nothing to do for somebody who is gone.
pub fn end_with_parent() -> anyhow::Result<()> {
    #[cfg(target_os = "linux")]
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}
