//! The other end of every measurement.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::calls;
use super::role::{PING, Role};
use super::samples::BULK;

impl Role {
    pub(super) async fn play(self) -> anyhow::Result<()> {
        // Nothing to do for somebody who is gone.
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
        match self {
            Self::Worker(transport, port) => calls::serve(transport, port).await,
            Self::TcpEcho(port) => {
                let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
                stream.set_nodelay(true)?;
                let mut buffer = [0; PING];
                while stream.read_exact(&mut buffer).await.is_ok() {
                    stream.write_all(&buffer).await?;
                }
                Ok(())
            }
            Self::UnixEcho(path) => {
                let mut stream = UnixStream::connect(path)?;
                let mut buffer = [0; PING];
                while stream.read_exact(&mut buffer).is_ok() {
                    stream.write_all(&buffer)?;
                }
                Ok(())
            }
            Self::TcpSink(port) => swallow(std::net::TcpStream::connect(("127.0.0.1", port))?),
            Self::UnixSink(path) => swallow(UnixStream::connect(path)?),
        }
    }
}

fn swallow(mut stream: impl Read + Write) -> anyhow::Result<()> {
    let mut buffer = vec![0; BULK];
    while stream.read_exact(&mut buffer).is_ok() {
        stream.write_all(&[1])?;
    }
    Ok(())
}
