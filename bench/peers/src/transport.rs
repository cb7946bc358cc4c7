//! The sockets between the two processes of a measurement.
//!
//! The server listens, says where in one line on standard output, and takes one connection.

use std::fmt;
use std::path::PathBuf;

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    Tcp,
    Unix,
    /// A Unix socket, and large values out of one process's memory into the other's.
    Shm,
}

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
            Self::Shm => "shm",
        }
    }
}

/// A connection to the other process; nothing waits in it for more bytes.
#[derive(Debug)]
pub enum Connection {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Connection {
    /// Listens, announces the place, and waits for the other process.
    pub async fn accept(transport: Transport) -> anyhow::Result<Self> {
        match transport {
            Transport::Tcp => {
                let listener = TcpListener::bind("127.0.0.1:0").await?;
                announce(listener.local_addr()?);
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Self::Tcp(stream))
            }
            Transport::Unix | Transport::Shm => {
                let path =
                    std::env::temp_dir().join(format!("farref-peers-{}", std::process::id()));
                // Whoever had this number before may have left it behind.
                let _ = std::fs::remove_file(&path);
                let listener = UnixListener::bind(&path)?;
                announce(path.display());
                let (stream, _) = listener.accept().await?;
                std::fs::remove_file(&path)?;
                Ok(Self::Unix(stream))
            }
        }
    }

    /// Connects to the place that the server announced.
    pub async fn open(transport: Transport, place: &str) -> anyhow::Result<Self> {
        let connected = match transport {
            Transport::Tcp => {
                let stream = TcpStream::connect(place).await;
                stream.and_then(|stream| stream.set_nodelay(true).map(|()| Self::Tcp(stream)))
            }
            Transport::Unix | Transport::Shm => UnixStream::connect(PathBuf::from(place))
                .await
                .map(Self::Unix),
        };
        connected.with_context(|| format!("cannot connect to {place}"))
    }
}

/// Says where the server listens.
pub fn announce(place: impl fmt::Display) {
    println!("{place}");
}
