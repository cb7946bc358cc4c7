//! What can go wrong with a store.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a store did not do what it was asked.
///
/// ```
/// use farref_rendezvous::{MemoryStore, Store, StoreError};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// let store = MemoryStore::new();
/// let long = "k".repeat(10_000);
/// match store.set(&long, b"").await {
///     Err(StoreError::TooLarge { what, limit, .. }) => assert_eq!((what, limit), ("key", 8192)),
///     other => panic!("{other:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nobody set these keys in time.
    #[error("nobody set {} within {waited:.1?}", Listed(.missing))]
    Timeout {
        /// The keys that are still missing.
        missing: Vec<String>,
        /// How long was waited.
        waited: Duration,
    },
    /// No store could be reached at the address.
    #[error(
        "no store answers at {address} after {waited:.1?} ({source}); is the process that hosts it \
         (rank 0, or the launcher) running, and is the port open between the hosts?"
    )]
    Unreachable {
        /// Host and port.
        address: String,
        /// How long was tried.
        waited: Duration,
        /// What the last attempt ran into.
        source: io::Error,
    },
    /// The connection to the store broke during a request; whether it took effect is not known.
    #[error("the store at {address} went away ({source}); has the process that hosts it ended?")]
    Lost {
        /// Host and port.
        address: String,
        /// What the connection ran into.
        source: io::Error,
    },
    /// The store is connected but does not answer.
    #[error("the store at {address} has not answered for {waited:.1?}; is its host overloaded?")]
    NoAnswer {
        /// Host and port.
        address: String,
        /// How long was waited.
        waited: Duration,
    },
    /// What answers is not a store, or a broken one.
    #[error("what answers at {address} does not speak the TCPStore protocol: {reason}")]
    Misbehaved {
        /// Host and port.
        address: String,
        /// What was wrong with the answer.
        reason: String,
    },
    /// The server could not listen at the address.
    #[error("cannot host a store at {address}: {source}; does another process use that port?")]
    Bind {
        /// Where it was to listen.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// The caller's key, value or list of keys is longer than any store takes.
    #[error("a {what} of {size} is too large for the store: at most {limit} are allowed")]
    TooLarge {
        /// "key", "value" or "list of keys".
        what: &'static str,
        /// How large it is.
        size: usize,
        /// How large it may be.
        limit: usize,
    },
    /// The store holds as much as it may.
    #[error("the store is full: it may hold {limit} bytes; raise its limit or store less")]
    Full {
        /// How many bytes it may hold.
        limit: usize,
    },
    /// The value to be added to is not a number, or the sum would not fit.
    #[error("`{key}` does not hold a number that can be added to")]
    NotANumber {
        /// The key.
        key: String,
    },
    /// A file of the store could not be read or written.
    #[error("cannot {doing} {}: {source}; every worker needs write access to it", path.display())]
    File {
        /// What was being done.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another process has kept the file's lock.
    #[error("{} has been locked by another process for {waited:.1?}; is it stopped?", path.display())]
    Locked {
        /// The lock file.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// The file is not a store.
    #[error("{} is not a farref store ({reason}); name another file or remove it", path.display())]
    BadFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// No member of an etcd cluster could be reached.
    #[error(
        "no etcd answers at {place} after {waited:.1?} ({source}); does it run there, and is its port for clients open \
         between the hosts?"
    )]
    NoEtcd {
        /// The rendezvous.
        place: String,
        /// How long was tried.
        waited: Duration,
        /// What the last attempt ran into.
        source: io::Error,
    },
    /// What answers is not an etcd, or one that is not trusted, or it does not do what it is asked.
    #[error(
        "what answers at {place} is no etcd that this worker can use: {reason}; name etcd's port for clients, of version 3.4 \
         or later, with etcds:// where it wants TLS, and the `ca` that signed its certificate"
    )]
    NotEtcd {
        /// The rendezvous.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// etcd does not let this worker in, or not at these keys.
    #[error("etcd at {place} refuses this worker: {reason}; {hint}")]
    Denied {
        /// The rendezvous.
        place: String,
        /// What etcd says.
        reason: String,
        /// What to do.
        hint: &'static str,
    },
    /// The lease of this worker has run out: etcd has not heard of it for too long.
    #[error(
        "etcd at {place} has not heard of this worker for longer than its lease; is the network, or this host, \
         overloaded? A longer one is `?ttl=` seconds"
    )]
    LeaseLost {
        /// The rendezvous.
        place: String,
    },
    /// The group that met in the store is over, and with it what was stored.
    #[error(
        "the group that met at {place} is over: its members have gone, or were not heard of for longer than their \
         leases; join again, with a store that is opened anew if it is one of the program's own"
    )]
    Ended {
        /// The rendezvous.
        place: String,
    },
    /// A file or a setting that the store needs cannot be used.
    #[error("cannot use {what}: {reason}")]
    Setup {
        /// Which.
        what: String,
        /// Why.
        reason: String,
    },
    /// This program was built without the store that the rendezvous names.
    #[error("{place} cannot be used: this program was built without farref's feature `{feature}`")]
    NotBuilt {
        /// The rendezvous.
        place: String,
        /// The feature it needs.
        feature: &'static str,
    },
    /// A store that is none of farref's own failed for a reason of its own.
    #[error("the store failed: {0}")]
    Other(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl StoreError {
    /// Whether the same may go well a moment later.
    #[cfg(feature = "etcd")]
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::NoEtcd { .. }
                | Self::Lost { .. }
                | Self::NoAnswer { .. }
                | Self::LeaseLost { .. }
        )
    }
}

/// Names a few keys of a list that may be long.
struct Listed<'a>(&'a [String]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        for (index, key) in self.0.iter().take(SHOWN).enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}`{key}`")?;
        }
        match self.0.len().checked_sub(SHOWN) {
            Some(more) if more > 0 => write!(f, " and {more} more"),
            _ => Ok(()),
        }
    }
}
