//! Why a worker cannot listen.

use std::io;
use std::net::SocketAddr;

/// Why nothing listens at a place.
///
/// ```
/// use farref::{BindError, Error, StoreServer, Worker};
///
/// # #[tokio::main]
/// # async fn main() -> farref::Result<()> {
/// # let store = StoreServer::bind("127.0.0.1:0").await.expect("a free port");
/// # let place = format!("tcp://{}", store.local_addr());
/// // Another program has the port already.
/// let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
/// let port = taken.local_addr().expect("an address").port();
///
/// let refused = Worker::builder("late")
///     .rendezvous(&place)
///     .store_is_hosted_elsewhere()
///     .port(port)
///     .token("only we know")
///     .join()
///     .await;
/// let Err(Error::Bind(error)) = refused else {
///     panic!("two listeners on one port");
/// };
/// assert!(matches!(&*error, BindError::Tcp { address, .. } if address.port() == port));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The address is taken, or not this host's.
    #[error("cannot listen at {address}: {source}")]
    Tcp {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        source: io::Error,
    },
    /// The system does not let us have a Unix socket.
    #[error("cannot listen at the Unix socket {name}: {source}")]
    Unix {
        /// The socket.
        name: String,
        /// What the system says.
        source: io::Error,
    },
    /// The name is taken.
    #[error("cannot listen as {name} in the network within this process: {source}")]
    Memory {
        /// The name.
        name: String,
        /// Why.
        source: io::Error,
    },
    /// There is no place at all to listen at.
    #[error("an agent needs at least one place to listen at")]
    Nowhere,
}
