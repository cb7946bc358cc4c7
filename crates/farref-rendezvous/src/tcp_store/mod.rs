//! PyTorch's TCPStore: its protocol, a server for it and a client.
//!
//! An unmodified PyTorch process can use the server, and the client can use a store that PyTorch
//! hosts. Neither side authenticates the other: the protocol has no means for it, so a store
//! belongs into a trusted network and holds no secrets.

mod budget;
mod client;
mod connection;
mod dialect;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod protocol;
mod server;

#[cfg(test)]
mod dialect_tests;
#[cfg(test)]
mod protocol_tests;
#[cfg(test)]
mod server_tests;

pub use client::TcpStoreClient;
pub use dialect::StoreDialect;
pub use server::{StoreLimits, StoreServer};
