//! Through what two workers of a host talk.

use clap::ValueEnum;
use farref::WorkerBuilder;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Transport {
    Tcp,
    Unix,
}

impl Transport {
    pub(super) const ALL: [Self; 2] = [Self::Tcp, Self::Unix];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Unix => "unix",
        }
    }

    /// The socket below.
    pub(super) fn socket(self) -> Socket {
        match self {
            Self::Tcp => Socket::Tcp,
            Self::Unix => Socket::Unix,
        }
    }

    /// A worker that talks so.
    pub(super) fn choose(self, worker: WorkerBuilder) -> WorkerBuilder {
        worker.unix_sockets(self.socket() == Socket::Unix)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Socket {
    Tcp,
    Unix,
}
