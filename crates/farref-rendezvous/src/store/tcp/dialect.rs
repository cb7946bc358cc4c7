//! How the two sides of a store number their requests: PyTorch has changed it once.

use super::error::ProtocolError;
use crate::store::limits::MAX_KEY;

/// What a client sends first, unless it is an old one.
pub(super) const MAGIC: u32 = 0x3C85_F7CE;

/// Which numbers the requests to a TCPStore have, and whether a client greets first.
///
/// A [`StoreServer`](super::StoreServer) understands every client, and a
/// [`TcpStoreClient`](super::TcpStoreClient) finds out what its server understands. PyTorch itself
/// does neither: all processes that meet in its store have versions that speak alike.
///
/// ```
/// use std::time::Duration;
///
/// use farref_rendezvous::{StoreDialect, StoreServer, TcpStoreClient};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// let server = StoreServer::bind("127.0.0.1:0").await?;
/// let port = server.local_addr().port();
/// let client = TcpStoreClient::connect("127.0.0.1", port, Duration::from_secs(60)).await?;
/// assert_eq!(client.dialect(), StoreDialect::Greeted);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreDialect {
    /// The client greets first: farref, and PyTorch of today.
    Greeted,
    /// There was no greeting yet, as in PyTorch 1.13. Its number was that of the first request, and so
    /// on; one request has gone since.
    Old,
}

// Or a greeting could be the beginning of an old client's `Set`: where the one has the magic number, the
// other has the length of a key.
const _: () = assert!(MAGIC as usize > MAX_KEY);

impl StoreDialect {
    /// How a client speaks, by what it says first. `None` if that is too little to tell.
    pub(super) fn of(first: &[u8]) -> Result<Option<Self>, ProtocolError> {
        match first {
            [] => Ok(None),
            [0, rest @ ..] => match rest.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)) {
                None => Ok(None),
                Some(MAGIC) => Ok(Some(Self::Greeted)),
                Some(size) if size as usize <= MAX_KEY => Ok(Some(Self::Old)),
                Some(_) => Err(ProtocolError::NoGreeting),
            },
            _ => Ok(Some(Self::Old)),
        }
    }

    /// The number that a request has today.
    pub(super) fn today(self, code: u8) -> Option<u8> {
        match (self, code) {
            (Self::Greeted, code) => Some(code),
            (Self::Old, 0..=6) => Some(code + 1),
            // 7 was to watch a key, which PyTorch 1.13 does not offer to programs any more.
            (Self::Old, 8) => Some(8),
            (Self::Old, _) => None,
        }
    }

    /// The number that a request of today has in this dialect.
    pub(super) fn number(self, code: u8) -> Option<u8> {
        match (self, code) {
            (Self::Greeted, code) => Some(code),
            (Self::Old, 1..=7) => Some(code - 1),
            (Self::Old, 8) => Some(8),
            (Self::Old, _) => None,
        }
    }
}
