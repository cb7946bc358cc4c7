//! PyTorch's TCPStore: its protocol, a server for it and a client.
//!
//! An unmodified PyTorch process can use the server, and the client can use a store that PyTorch
//! hosts. Neither side authenticates the other: the protocol has no means for it, so a store
//! belongs into a trusted network and holds no secrets.

mod budget;
mod client;
mod connection;
mod dialect;
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

/// For `crate::testing::fuzzing`: bytes that a client sends to the store.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_store_request(data: &[u8]) {
    use bytes::BytesMut;
    use protocol::Request;

    for dialect in [StoreDialect::Old, StoreDialect::Greeted] {
        let mut buffer = BytesMut::from(data);
        while let Ok(Some(request)) = Request::parse(dialect, &mut buffer, 1 << 20) {
            // What was understood means the same when it is said again.
            let mut again = BytesMut::new();
            assert_eq!(request.encode(dialect, &mut again), Ok(()));
            let parsed = Request::parse(dialect, &mut again, usize::MAX);
            assert_eq!(parsed, Ok(Some(request)));
        }
    }
}

/// For `crate::testing::fuzzing`: bytes that a store answers.
#[cfg(any(test, feature = "fuzzing"))]
pub fn fuzz_store_answer(data: &[u8]) {
    use bytes::{Buf, BytesMut};
    use protocol::{take_bytes, take_flag, take_i64};

    // The first byte of each round says what was asked.
    let mut buffer = BytesMut::from(data);
    while buffer.has_remaining() {
        let before = buffer.len();
        let taken = match buffer.get_u8() % 3 {
            0 => take_flag(&mut buffer).map(|flag| flag.map(|_| 1)),
            1 => take_i64(&mut buffer).map(|number| number.map(|_| 8)),
            _ => take_bytes(&mut buffer).map(|bytes| bytes.map(|bytes| 8 + bytes.len())),
        };
        match taken {
            // Exactly the bytes of the answer are gone.
            Ok(Some(size)) => assert_eq!(before - 1 - size, buffer.len()),
            // Nothing is gone that more bytes could complete.
            Ok(None) => return assert_eq!(before - 1, buffer.len()),
            Err(_) => return,
        }
    }
}
