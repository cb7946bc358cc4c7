//! Through what two workers of a host talk.

use clap::ValueEnum;
use farref::WorkerBuilder;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    Tcp,
    /// TCP with TLS
    Tls,
    Unix,
    /// A Unix socket, and large values straight from one process's memory into the other's
    Shm,
}

impl Transport {
    pub(super) const ALL: [Self; 4] = [Self::Tcp, Self::Tls, Self::Unix, Self::Shm];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Unix => "unix",
            Self::Shm => "shm",
        }
    }

    /// The socket below.
    pub(super) fn socket(self) -> Socket {
        match self {
            Self::Tcp | Self::Tls => Socket::Tcp,
            Self::Unix | Self::Shm => Socket::Unix,
        }
    }

    /// A worker that talks so, but for its certificate.
    pub(super) fn choose(self, worker: WorkerBuilder) -> WorkerBuilder {
        worker
            .unix_sockets(self.socket() == Socket::Unix)
            .shared_memory(self == Self::Shm)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Socket {
    Tcp,
    Unix,
}
