//! What every store can do: the few atomic operations that a rendezvous needs.
//!
//! The operations and their odd corners are those of PyTorch's TCPStore, because a store hosted by
//! PyTorch must serve as well as our own. Listing keys is left out: older PyTorch cannot do it.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

/// The longest key, in bytes. PyTorch's server has the same limit.
pub(crate) const MAX_KEY: usize = 8 << 10;
/// The longest value, in bytes. PyTorch's server has the same limit.
pub(crate) const MAX_VALUE: usize = 8 << 20;
/// The most keys in one request. PyTorch's server has the same limit.
pub(crate) const MAX_KEYS: usize = 128 << 10;

/// What an operation of a [`Store`] returns: boxed, so that stores can be used as trait objects.
///
/// ```
/// use farref_rendezvous::{MemoryStore, Store, StoreFuture};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// let store = MemoryStore::new();
/// // Nothing happens before it is awaited.
/// let count: StoreFuture<'_, i64> = store.add("count", 1);
/// assert_eq!(store.try_get("count").await?, None);
/// assert_eq!(count.await?, 1);
/// # Ok(())
/// # }
/// ```
pub type StoreFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// A key-value store that all workers of a group can reach.
///
/// Every operation is atomic. An operation whose future is dropped may still take effect.
///
/// ```
/// use farref_rendezvous::{MemoryStore, Store, StoreError};
///
/// /// The next number that nobody else has.
/// async fn draw(store: &dyn Store) -> Result<i64, StoreError> {
///     Ok(store.add("drawn", 1).await? - 1)
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// let store = MemoryStore::new();
/// assert_eq!(draw(&store).await?, 0);
/// assert_eq!(draw(&store).await?, 1);
/// # Ok(())
/// # }
/// ```
pub trait Store: Send + Sync + fmt::Debug {
    /// Sets `key` to `value`. When this returns, every other user of the store sees it.
    ///
    /// ```
    /// use farref_rendezvous::{MemoryStore, Store};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let store = MemoryStore::new();
    /// store.set("phase", b"one").await?;
    /// store.set("phase", b"two").await?;
    /// assert_eq!(store.try_get("phase").await?.as_deref(), Some(&b"two"[..]));
    /// # Ok(())
    /// # }
    /// ```
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()>;

    /// The value of `key`, waiting up to `deadline` for somebody to set it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{MemoryStore, Store, StoreError};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let store = MemoryStore::new();
    /// let patience = Duration::from_secs(60);
    /// let (got, set) = tokio::join!(store.get("later", patience), store.set("later", b"now"));
    /// set?;
    /// assert_eq!(&got?[..], b"now");
    ///
    /// let never = store.get("never", Duration::ZERO).await;
    /// assert!(matches!(never, Err(StoreError::Timeout { missing, .. }) if missing == ["never"]));
    /// # Ok(())
    /// # }
    /// ```
    fn get<'a>(&'a self, key: &'a str, deadline: Duration) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            let end = end_of(deadline);
            loop {
                // Again after the wait, because the key may have been deleted meanwhile.
                if let Some(value) = self.try_get(key).await? {
                    return Ok(value);
                }
                let left = end.saturating_duration_since(Instant::now());
                self.wait(&[key.to_owned()], left).await?;
            }
        })
    }

    /// The value of `key` if it has one now.
    ///
    /// ```
    /// use farref_rendezvous::{MemoryStore, Store};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let store = MemoryStore::new();
    /// assert_eq!(store.try_get("key").await?, None);
    /// store.set("key", b"").await?;
    /// assert!(store.try_get("key").await?.is_some()); // an empty value is one
    /// # Ok(())
    /// # }
    /// ```
    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>>;

    /// Waits until the store may have lost what was written into it, because its server went away: a
    /// running group then writes into the next one what it knows. Never returns for a store that has no
    /// server, or whose server is not watched, which is what happens unless it is overridden.
    fn lost(&self) -> StoreFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// Adds `delta` to the decimal number in `key` (0 if there is none) and returns the sum.
    ///
    /// ```
    /// use farref_rendezvous::{MemoryStore, Store, StoreError};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let store = MemoryStore::new();
    /// assert_eq!(store.add("count", 5).await?, 5);
    /// assert_eq!(store.add("count", -2).await?, 3);
    ///
    /// store.set("text", b"three").await?;
    /// assert!(matches!(store.add("text", 1).await, Err(StoreError::NotANumber { .. })));
    /// # Ok(())
    /// # }
    /// ```
    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64>;

    /// Sets `key` to `desired` if its value is `expected`, and returns its value after the call.
    ///
    /// A missing key counts as empty. If the key is missing and `expected` is not empty, nothing is
    /// set and `expected` comes back, which is TCPStore's answer too: to learn whether the key
    /// exists, ask [`Store::try_get`].
    ///
    /// ```
    /// use farref_rendezvous::{MemoryStore, Store};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let store = MemoryStore::new();
    /// // The first to come is the leader; whoever is late learns who is.
    /// assert_eq!(&store.compare_set("leader", b"", b"a").await?[..], b"a");
    /// assert_eq!(&store.compare_set("leader", b"", b"b").await?[..], b"a");
    /// # Ok(())
    /// # }
    /// ```
    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes>;

    /// Removes `key`; says whether it was there.
    ///
    /// ```
    /// use farref_rendezvous::{MemoryStore, Store};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let store = MemoryStore::new();
    /// store.set("key", b"value").await?;
    /// assert!(store.delete("key").await?);
    /// assert!(!store.delete("key").await?);
    /// # Ok(())
    /// # }
    /// ```
    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool>;

    /// Waits up to `deadline` until all `keys` have been set. The error lists those that were not.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{MemoryStore, Store, StoreError};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let store = MemoryStore::new();
    /// let keys = ["a".to_owned(), "b".to_owned()];
    /// store.set("a", b"here").await?;
    ///
    /// let waited = store.wait(&keys, Duration::ZERO).await;
    /// assert!(matches!(waited, Err(StoreError::Timeout { missing, .. }) if missing == ["b"]));
    ///
    /// store.set("b", b"here too").await?;
    /// store.wait(&keys, Duration::ZERO).await?;
    /// # Ok(())
    /// # }
    /// ```
    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()>;
}

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
}

/// When a deadline that begins now ends. Callers may mean "never" by a very long one.
pub(crate) fn end_of(deadline: Duration) -> Instant {
    const NEVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);
    Instant::now() + deadline.min(NEVER)
}

/// Refuses what no store would take, before anything is sent.
pub(crate) fn check_size(what: &'static str, size: usize, limit: usize) -> Result<(), StoreError> {
    if size > limit {
        return Err(StoreError::TooLarge { what, size, limit });
    }
    Ok(())
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
