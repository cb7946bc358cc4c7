//! The limits of a server: memory, the size of a message, connections. Those of single keys and values are in
//! `store/limits`.

/// What a [`StoreServer`](crate::StoreServer) may use.
///
/// ```
/// use farref_rendezvous::{StoreLimits, StoreServer};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// // A store for a few workers, which need a few kilobytes each.
/// let limits = StoreLimits {
///     memory: 16 << 20,
///     clients: 64,
///     ..StoreLimits::default()
/// };
/// let server = StoreServer::bind_with("127.0.0.1:0", limits).await?;
/// # server.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct StoreLimits {
    /// Bytes for keys and values, and as many again for requests and answers on their way.
    pub memory: usize,
    /// Bytes of one request or answer. At least a key and two values must fit for full use.
    pub message: usize,
    /// Connections at a time. A PyTorch client takes one, an old one two, a farref worker up to three.
    pub clients: usize,
}

impl Default for StoreLimits {
    fn default() -> Self {
        Self {
            memory: 256 << 20,
            message: 64 << 20,
            clients: 48 << 10,
        }
    }
}
