//! PyTorch's TCPStore: its protocol, a server for it and a client.
//!
//! An unmodified PyTorch process can use the server, and the client can use a store that PyTorch
//! hosts. Neither side authenticates the other: the protocol has no means for it, so a store
//! belongs into a trusted network and holds no secrets.

mod budget;
mod client;
mod connection;
mod protocol;
mod server;

#[cfg(test)]
mod protocol_tests;
#[cfg(test)]
mod server_tests;

pub use client::TcpStoreClient;
pub use server::{StoreLimits, StoreServer};

/// For `crate::fuzzing`: bytes that a client sends to the store.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_store_request(data: &[u8]) {
    use bytes::BytesMut;
    use protocol::{Dialect, Request};

    let mut buffer = BytesMut::from(data);
    while let Ok(Some(_)) = Request::parse(Dialect::Old, &mut buffer, 1 << 20) {}
    let mut buffer = BytesMut::from(data);
    while let Ok(Some(request)) = Request::parse(Dialect::Greeted, &mut buffer, 1 << 20) {
        // What was understood means the same when it is said again.
        let mut again = BytesMut::new();
        request.encode(&mut again);
        let parsed = Request::parse(Dialect::Greeted, &mut again, usize::MAX);
        assert_eq!(parsed, Ok(Some(request)));
    }
}
