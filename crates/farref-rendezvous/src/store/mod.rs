//! What every store can do: the few atomic operations that a rendezvous needs.
//!
//! The operations and their odd corners are those of PyTorch's TCPStore, because a store hosted by
//! PyTorch must serve as well as our own. Listing keys is left out: older PyTorch cannot do it.

mod error;
mod file;
mod limits;
mod memory;
mod table;
mod tcp;

#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub use self::error::StoreError;
pub use self::file::FileStore;
pub(crate) use self::limits::end_of;
pub use self::memory::MemoryStore;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use self::tcp::fuzzing;
pub use self::tcp::{StoreDialect, StoreLimits, StoreServer, TcpStoreClient};

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
    /// let timeout = Duration::from_secs(60);
    /// let (got, set) = tokio::join!(store.get("later", timeout), store.set("later", b"now"));
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
