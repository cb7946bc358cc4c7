//! The systems written in Rust: how each one serves and how each one calls.

mod capnp;
mod farref;
mod tarpc;
mod tonic;

use std::future::Future;
use std::time::Duration;

use anyhow::Context as _;

use crate::process::Server;
use crate::results::Results;
use crate::transport::Transport;

/// More calls than are ever in flight: where a system has a limit, it is this.
const MAX_IN_FLIGHT: usize = 8192;
/// More than a message ever has: where a system has a limit, it is this.
const MAX_MESSAGE: usize = 256 << 20;

#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum System {
    Farref,
    Tarpc,
    Tonic,
    Capnp,
}

impl System {
    pub fn name(self) -> &'static str {
        match self {
            Self::Farref => "farref",
            Self::Tarpc => "tarpc",
            Self::Tonic => "tonic",
            Self::Capnp => "capnp",
        }
    }

    /// Serves until the process that started this one ends it.
    pub fn serve(self, transport: Transport) -> anyhow::Result<()> {
        match self {
            Self::Farref => on_two_threads(self::farref::serve(transport)),
            Self::Tarpc => on_two_threads(self::tarpc::serve(transport)),
            Self::Tonic => on_two_threads(self::tonic::serve(transport)),
            Self::Capnp => on_one_thread(self::capnp::serve(transport)),
        }
    }

    /// Starts a server and measures, each thing for a `time`.
    pub fn measure(self, transport: Transport, time: Duration) -> anyhow::Result<Results> {
        let server = Server::start(self.name(), transport)?;
        let place = server.place.clone();
        match self {
            Self::Farref => on_two_threads(self::farref::measure(transport, place, time)),
            Self::Tarpc => on_two_threads(self::tarpc::measure(transport, place, time)),
            Self::Tonic => on_two_threads(self::tonic::measure(transport, place, time)),
            Self::Capnp => on_one_thread(self::capnp::measure(transport, place, time)),
        }
    }
}

/// On a task, as a program's calls are.
fn on_two_threads<T: Send + 'static>(
    work: impl Future<Output = anyhow::Result<T>> + Send + 'static,
) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async { tokio::spawn(work).await? })
}

/// For what cannot move between threads.
fn on_one_thread<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    tokio::task::LocalSet::new().block_on(&runtime, work)
}
