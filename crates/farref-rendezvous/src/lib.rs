//! How the workers of a farref group find each other: a shared key-value store, and what is agreed on in it.
//!
//! Programs use [`farref`](https://docs.rs/farref), which hands the names in the root of this crate on. The
//! stores work without it:
//!
//! ```
//! use std::time::Duration;
//!
//! use farref_rendezvous::{Rendezvous, Store, StoreServer, open};
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // One process hosts a store in PyTorch's TCPStore protocol.
//! let server = StoreServer::bind("127.0.0.1:0").await?;
//! let place: Rendezvous = format!("tcp://{}", server.local_addr()).parse()?;
//!
//! // The others, PyTorch's among them, agree on things in it.
//! let opened = open(&place, false, Duration::from_secs(60)).await?;
//! assert_eq!(&opened.store.compare_set("leader", b"", b"me").await?[..], b"me");
//! # Ok(())
//! # }
//! ```
//!
//! | part | job |
//! | --- | --- |
//! | [`Store`] | what a store can do; [`TcpStoreClient`], [`FileStore`] and [`MemoryStore`] do it |
//! | [`StoreServer`] | hosts a store in PyTorch's TCPStore protocol |
//! | [`open`](fn@open) | from a [`Rendezvous`], a place to meet, to a store |
//! | [`environment`] | what the environment (farref's own, torchrun's, Slurm's, Kubernetes') says |
//! | [`group`] | takes a worker into a group, and finds the other workers afterwards |

#![forbid(unsafe_code)]

mod address;
mod bootstrap;
mod card;
mod directory;
mod error;
mod file_store;
mod launcher;
mod ledger;
mod location;
mod memory_store;
mod open;
mod presence;
mod runs;
mod settings;
mod store;
mod table;
mod tcp_store;
mod word;

#[cfg(test)]
mod bootstrap_tests;
#[cfg(test)]
mod settings_tests;
#[cfg(test)]
mod store_tests;

pub use error::RendezvousError;
pub use file_store::FileStore;
pub use location::{ParseRendezvousError, Rendezvous};
pub use memory_store::MemoryStore;
pub use open::{Opened, open, serve};
pub use store::{Store, StoreError, StoreFuture};
pub use tcp_store::{StoreDialect, StoreLimits, StoreServer, TcpStoreClient};

/// What a worker learns from where it runs. For farref's own use: programs set up a `farref::Worker`.
pub mod environment {
    pub use crate::address::{advertised_address, host_id};
    pub use crate::settings::Settings;
}

/// How a worker enters a group and finds the others in it. For farref's own use: programs join with
/// `farref::Worker`.
pub mod group {
    pub use crate::bootstrap::{Entry, Plan, check_rank, enter};
    pub use crate::card::{Address, Card, TokenTag};
    pub use crate::directory::Directory;
    pub use crate::presence::{Presence, Sign};
    pub use crate::runs::{announce, latest_group, prefix};
    pub use crate::settings::check_name;
}

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::tcp_store::fuzzing::{store_answer, store_request};
}
