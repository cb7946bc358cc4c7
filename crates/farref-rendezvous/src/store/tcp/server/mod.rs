//! Hosts a store for any number of TCPStore clients.
//!
//! One task for each connection, one table behind a lock that is held for single operations only. A
//! client that waits holds nothing but its place in the table's lists, and loses it when it cancels
//! or disconnects. The protocol has no error answers: a client that asks for what it may not have
//! is disconnected, and nobody else notices.
//!
//! | part | job |
//! | --- | --- |
//! | `session` | one client's connection, from its greeting to its end |
//! | `state` | what all sessions share, and what each request does to it |
//! | `budget` | how much memory the connections may take together |
//! | `limits` | what the server may use, as whoever hosts it sets it |

mod budget;
mod limits;
mod session;
mod state;

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::net::{TcpListener, ToSocketAddrs};
use tokio::task::{JoinHandle, JoinSet};

pub use self::limits::StoreLimits;
use self::session::ClientSession;
use self::state::ServerState;
use super::dialect::StoreDialect;
use crate::store::error::StoreError;

/// After an error of `accept`, which mostly means that no descriptors are left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// A store that PyTorch's TCPStore clients and farref workers can use. Dropping it closes it.
///
/// ```
/// use std::time::Duration;
///
/// use farref_rendezvous::{Store, StoreServer, TcpStoreClient};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// // A launcher hosts it; the workers are told where.
/// let server = StoreServer::bind("127.0.0.1:0").await?;
/// let port = server.local_addr().port();
///
/// // What each of them does then.
/// let client = TcpStoreClient::connect("127.0.0.1", port, Duration::from_secs(60)).await?;
/// assert_eq!(client.add("workers", 1).await?, 1);
/// server.close().await;
/// # Ok(())
/// # }
/// ```
pub struct StoreServer {
    local_addr: SocketAddr,
    state: Arc<ServerState>,
    task: JoinHandle<()>,
}

impl StoreServer {
    /// Hosts a store at `address`; port 0 takes any free one. Must be called inside a tokio runtime.
    ///
    /// ```
    /// use farref_rendezvous::{StoreError, StoreServer};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// // Two cannot have one port.
    /// let second = StoreServer::bind(server.local_addr()).await;
    /// assert!(matches!(second, Err(StoreError::Bind { .. })));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn bind(address: impl ToSocketAddrs + fmt::Debug) -> Result<Self, StoreError> {
        Self::bind_with(address, StoreLimits::default()).await
    }

    /// Like [`StoreServer::bind`], with limits of the caller's choice.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{Store, StoreLimits, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let limits = StoreLimits { memory: 100_000, ..StoreLimits::default() };
    /// let server = StoreServer::bind_with("127.0.0.1:0", limits).await?;
    /// let port = server.local_addr().port();
    /// let client = TcpStoreClient::connect("127.0.0.1", port, Duration::from_secs(60)).await?;
    /// client.set("small", &[0; 100]).await?;
    /// assert!(client.set("large", &[0; 1_000_000]).await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn bind_with(
        address: impl ToSocketAddrs + fmt::Debug,
        limits: StoreLimits,
    ) -> Result<Self, StoreError> {
        let text = format!("{address:?}");
        let bind = |source| StoreError::Bind {
            address: text.clone(),
            source,
        };
        let listener = TcpListener::bind(address).await.map_err(bind)?;
        let local_addr = listener.local_addr().map_err(bind)?;
        let state = Arc::new(ServerState::new(limits));
        let task = tokio::spawn(accept(listener, state.clone()));
        Ok(Self {
            local_addr,
            state,
            task,
        })
    }

    /// Where it listens.
    ///
    /// ```
    /// use farref_rendezvous::StoreServer;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// assert_ne!(server.local_addr().port(), 0); // which one the system chose
    /// # Ok(())
    /// # }
    /// ```
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// How its clients speak: [`StoreDialect::Old`] as soon as one of them does.
    ///
    /// Whoever hosts a store for PyTorch learns here, once all workers have come, which generation of
    /// PyTorch it has to do with.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{Store, StoreDialect, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// assert_eq!(server.clients_dialect(), StoreDialect::Greeted);
    ///
    /// // Speaks as PyTorch 1.13 does.
    /// let (port, timeout) = (server.local_addr().port(), Duration::from_secs(60));
    /// let dialect = StoreDialect::Old;
    /// let client = TcpStoreClient::connect_as(dialect, "127.0.0.1", port, timeout).await?;
    /// client.set("key", b"value").await?;
    /// assert_eq!(server.clients_dialect(), StoreDialect::Old);
    /// # Ok(())
    /// # }
    /// ```
    pub fn clients_dialect(&self) -> StoreDialect {
        match self.state.had_old_clients.load(Ordering::Acquire) {
            true => StoreDialect::Old,
            false => StoreDialect::Greeted,
        }
    }

    /// How many connections of clients there are. Whoever is about to close the store may want to wait until
    /// the others have gone.
    ///
    /// ```
    /// use farref_rendezvous::StoreServer;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// assert_eq!(server.connections(), 0);
    /// # Ok(())
    /// # }
    /// ```
    pub fn connections(&self) -> usize {
        self.state.connections.load(Ordering::Acquire)
    }

    /// Closes the store and waits until its port is free. Dropping the server does the same, but
    /// the port becomes free a moment later.
    ///
    /// ```
    /// use farref_rendezvous::StoreServer;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let address = server.local_addr();
    /// server.close().await;
    /// let next = StoreServer::bind(address).await?; // at once
    /// assert_eq!(next.local_addr(), address);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(mut self) {
        self.task.abort();
        let _ = (&mut self.task).await;
    }

    /// Whether no client waits for anything and no buffer is in use.
    #[cfg(test)]
    pub(super) fn is_idle(&self) -> bool {
        self.state.table().is_idle() && self.state.budget.used() == 0
    }

    /// How many clients wait for keys.
    #[cfg(test)]
    pub(super) fn waiters(&self) -> usize {
        self.state.table().waiters()
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        // The task owns the connections' tasks, so they end with it.
        self.task.abort();
    }
}

impl fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreServer")
            .field("local_addr", &self.local_addr)
            .field("keys", &self.state.table().len())
            .finish()
    }
}

async fn accept(listener: TcpListener, state: Arc<ServerState>) {
    let mut clients = JoinSet::new();
    loop {
        state.connections.store(clients.len(), Ordering::Release);
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = clients.join_next() => continue,
        };
        match accepted {
            Ok((_, peer)) if clients.len() >= state.limits.clients => {
                tracing::warn!(%peer, "the store has as many clients as it may; refused another");
            }
            Ok((stream, peer)) => {
                let state = state.clone();
                clients.spawn(async move {
                    if let Err(reason) = ClientSession::serve(stream, state).await {
                        tracing::debug!(%peer, %reason, "disconnected a client of the store");
                    }
                });
            }
            Err(error) => {
                tracing::warn!(%error, "the store cannot accept a client");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
