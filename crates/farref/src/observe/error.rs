//! Why a worker or a group cannot be looked into, and what to do about it.

use std::io;
use std::time::Duration;

use crate::native::ObserverConnectionError;
use crate::rendezvous::RendezvousError;

/// Why a worker or a group cannot be looked into.
///
/// ```
/// use farref::observe::{ObserveError, Observer};
///
/// # #[tokio::main]
/// # async fn main() {
/// // Something listens there, but no worker and no store.
/// let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
/// let place = listener.local_addr().expect("an address").to_string();
/// tokio::spawn(async move { while listener.accept().await.is_ok() {} }); // hangs up at once
/// let error = Observer::new().group(&place).await.unwrap_err();
/// assert!(matches!(error, ObserveError::Stranger { .. }));
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObserveError {
    /// The text is no address.
    #[error(
        "`{text}` is no address: write host:port of a worker or of the rendezvous, unix:name, file:///path or \
         etcd://host:port/prefix"
    )]
    Address {
        /// The text.
        text: String,
    },
    /// Nobody can be reached at the address.
    #[error("nobody can be reached at {address} ({source}): is it running, and is the port right?")]
    Unreachable {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody answers at the address.
    #[error(
        "{address} does not answer for {waited:?}: it may be stopped, overloaded, or behind a firewall"
    )]
    Silent {
        /// The address.
        address: String,
        /// How long was waited.
        waited: Duration,
    },
    /// Something else listens at the address.
    #[error(
        "what listens at {address} is neither a farref worker nor the store of a group: is the port \
         right?"
    )]
    Stranger {
        /// The address.
        address: String,
    },
    /// The worker was built with another version of farref.
    #[error(
        "{address} speaks another version of the wire ({theirs}): use the `farref` that the worker \
         was built with"
    )]
    Version {
        /// The address.
        address: String,
        /// What it speaks.
        theirs: u16,
    },
    /// The worker has another token.
    #[error("{address} has another token: set FARREF_TOKEN to that of its group")]
    Token {
        /// The address.
        address: String,
    },
    /// The worker is another user's, and takes nobody else's connections over its Unix socket.
    #[error(
        "{address} is another user's: look as that user, or by its TCP address with its group's \
         token (FARREF_TOKEN)"
    )]
    User {
        /// The address.
        address: String,
    },
    /// One of the two has a certificate that the other does not take, or none.
    #[error(
        "{address}: {reason}; workers with TLS are looked into with a certificate of their group's authority \
         (FARREF_TLS_CERT, FARREF_TLS_KEY and FARREF_TLS_CA)"
    )]
    Certificate {
        /// The address.
        address: String,
        /// What is wrong.
        reason: String,
    },
    /// The worker has enough observers.
    #[error("enough others look into {address} already: close one of them")]
    Crowded {
        /// The address.
        address: String,
    },
    /// The worker refuses for another reason.
    #[error("{address} refuses: {reason}")]
    Refused {
        /// The address.
        address: String,
        /// What it says.
        reason: String,
    },
    /// The connection has ended: the worker has.
    #[error("{address} has closed the connection: it has ended or been killed")]
    Closed {
        /// The address.
        address: String,
    },
    /// The worker sent what cannot be read.
    #[error("{address} sent what cannot be read; please report this")]
    Malformed {
        /// The address.
        address: String,
    },
    /// No group has met at the store.
    #[error("no farref group has met at {address} yet")]
    NoGroup {
        /// The address.
        address: String,
    },
    /// The group's store fails.
    #[error(transparent)]
    Store(#[from] RendezvousError),
    /// Nothing is known of where the worker listens.
    #[error("nobody says where it listens")]
    Unknown,
}

impl ObserveError {
    pub(super) fn of(address: String, error: ObserverConnectionError) -> Self {
        match error {
            ObserverConnectionError::Unreachable(source) => Self::Unreachable { address, source },
            ObserverConnectionError::Stranger => Self::Stranger { address },
            ObserverConnectionError::Certificate(reason) => Self::Certificate { address, reason },
            ObserverConnectionError::Version { theirs } => Self::Version { address, theirs },
            ObserverConnectionError::Token => Self::Token { address },
            ObserverConnectionError::User => Self::User { address },
            ObserverConnectionError::Crowded => Self::Crowded { address },
            ObserverConnectionError::Refused(reason) => Self::Refused { address, reason },
            ObserverConnectionError::Closed => Self::Closed { address },
            ObserverConnectionError::Malformed => Self::Malformed { address },
        }
    }
}
