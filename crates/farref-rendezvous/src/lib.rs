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
//! | [`Store`] | what a store can do; [`TcpStoreClient`], [`FileStore`], [`MemoryStore`] and, with the feature `etcd`, `EtcdStore` do it |
//! | [`check_store`] | finds out whether a store keeps what [`Store`] promises |
//! | [`StoreServer`] | hosts a store in PyTorch's TCPStore protocol |
//! | [`open`](fn@open) | from a [`Rendezvous`], a place to meet, to a store |
//! | [`environment`] | what the environment (farref's own, torchrun's, Open MPI's, Slurm's, Kubernetes') says |
//! | [`group`] | takes a worker into a group, and finds the other workers afterwards |
//!
//! Imports point from `group` and `environment` down to the errors, places and names, and from there to the
//! stores, which know nothing of groups.

#![forbid(unsafe_code)]

pub mod environment;
mod error;
mod etcd_place;
pub mod group;
mod identity;
mod location;
mod open;
mod place_text;
#[doc(hidden)]
pub mod random;
mod store;

#[cfg(all(test, feature = "etcd"))]
mod fuzzing_tests;

pub use error::RendezvousError;
pub use etcd_place::EtcdPlace;
pub use location::Rendezvous;
pub use open::{Opened, host_store, look, open};
pub use place_text::ParseRendezvousError;
#[cfg(feature = "etcd")]
pub use store::EtcdStore;
pub use store::{
    BrokenGuarantee, FileStore, MemoryStore, Store, StoreDialect, StoreError, StoreFuture,
    StoreLimits, StorePresence, StoreServer, TcpStoreClient, check_store,
};

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::environment::fuzzing::environment;
    pub use crate::group::fuzzing::store_records;
    #[cfg(feature = "etcd")]
    pub use crate::store::etcd_answers;
    pub use crate::store::fuzzing::{store_answer, store_request};
    pub use crate::store::store_file;
}
