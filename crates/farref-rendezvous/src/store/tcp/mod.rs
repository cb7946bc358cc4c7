//! PyTorch's TCPStore: its protocol, a server for it and a client.
//!
//! An unmodified PyTorch process can use the server, and the client can use a store that PyTorch
//! hosts. Neither side authenticates the other: the protocol has no means for it, so a store
//! belongs into a trusted network and holds no secrets.

mod client;
mod dialect;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod protocol;
mod server;
mod socket;

#[cfg(test)]
mod dialect_tests;
#[cfg(test)]
mod protocol_tests;

pub use client::TcpStoreClient;
pub use dialect::StoreDialect;
pub use server::{StoreLimits, StoreServer};
