//! How workers find each other: a shared key-value store, and what is agreed on in it.
//!
//! | part | job |
//! | --- | --- |
//! | [`Store`] | what a store can do; [`TcpStoreClient`], [`FileStore`] and [`MemoryStore`] do it |
//! | [`StoreServer`] | hosts a store in PyTorch's TCPStore protocol |
//! | `Settings` | what the environment (farref's own, torchrun's, Slurm's, Kubernetes') says |
//! | `enter` | takes a worker into a group: its id, its life, its founders |
//! | `Directory` | finds the other workers afterwards |

mod address;
mod bootstrap;
mod card;
mod directory;
mod environment;
mod error;
mod file_store;
mod launcher;
mod ledger;
mod location;
mod memory_store;
mod open;
mod presence;
mod runs;
mod store;
mod table;
mod tcp_store;
mod word;

#[cfg(test)]
mod bootstrap_tests;
#[cfg(test)]
mod environment_tests;
#[cfg(test)]
mod store_tests;

pub use error::RendezvousError;
pub use file_store::FileStore;
pub use location::{ParseRendezvousError, Rendezvous};
pub use memory_store::MemoryStore;
pub use store::{Store, StoreError, StoreFuture};
pub use tcp_store::{StoreDialect, StoreLimits, StoreServer, TcpStoreClient};
#[cfg(any(test, feature = "fuzzing"))]
pub use tcp_store::{fuzz_store_answer, fuzz_store_request};

pub(crate) use address::{advertised_address, host_id};
pub(crate) use bootstrap::{Entry, FAREWELL, Plan, check_rank, enter};
pub(crate) use card::{Address, Card, TokenTag};
pub(crate) use directory::Directory;
pub(crate) use environment::{Settings, check_name};
pub(crate) use open::{Opened, open, serve};
pub(crate) use presence::{Presence, Sign};
pub(crate) use runs::{announce, latest_group, prefix};
