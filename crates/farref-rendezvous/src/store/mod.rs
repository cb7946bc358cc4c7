//! What every store can do: the few atomic operations that a rendezvous needs.
//!
//! The operations and their odd corners are those of PyTorch's TCPStore, because a store hosted by
//! PyTorch must serve as well as our own. Listing keys is left out: older PyTorch cannot do it.

mod conformance;
mod error;
#[cfg(feature = "etcd")]
mod etcd;
mod file;
mod limits;
mod memory;
mod presence;
mod table;
mod tcp;

#[cfg(test)]
mod file_tests;
#[cfg(test)]
mod tests;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub use self::conformance::{BrokenGuarantee, check_store};
pub use self::error::StoreError;
#[cfg(feature = "etcd")]
pub use self::etcd::EtcdStore;
#[cfg(all(feature = "etcd", any(test, feature = "fuzzing")))]
pub use self::etcd::fuzzing::etcd_answers;
pub use self::file::FileStore;
#[cfg(any(test, feature = "fuzzing"))]
pub use self::file::store_file;
pub(crate) use self::limits::end_of;
pub use self::memory::MemoryStore;
pub use self::presence::StorePresence;
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

/// A key-value store that all workers of a group can reach. Programs can bring their own, of whatever their
/// machines have already: a database, a directory service.
///
/// # Guarantees
///
/// What farref relies on, whichever store it is given; [`check_store`] finds out whether a store keeps it.
///
/// 1. **Visible.** When [`set`](Self::set) has returned, every user of the store sees the value, byte by byte,
///    until it is replaced or deleted. An empty value is a value.
/// 2. **Atomic.** Every operation happens at once or not at all. Of those who [compare and
///    set](Self::compare_set) the same key at the same time one succeeds, and all hear of its value.
/// 3. **Counted.** No [addition](Self::add) is lost, no two get the same sum, and what is not a number stays as
///    it is.
/// 4. **Deleted once.** Of those who [delete](Self::delete) a key at the same time one is told that it was there.
/// 5. **Woken.** A [wait](Self::wait) ends when the last of its keys comes, whichever operation brings it, and
///    no earlier. Whoever waits keeps nobody else from anything, through the same store neither.
/// 6. **Bounded.** A wait in vain ends when its time is up, with [`StoreError::Timeout`], which names exactly
///    the keys that are missing. Waiting for nothing ends at once.
/// 7. **Roomy.** Keys of 1 KiB and values of 256 KiB are taken. A key of more than 8 KiB or a value of more
///    than 8 MiB is [too large](StoreError::TooLarge), which changes nothing; a store may refuse less.
/// 8. **Droppable.** An operation whose future is dropped may still take effect; the store goes on all the same.
///
/// A store need not outlive its users, and may lose what is in it when its server ends, if [`lost`](Self::lost)
/// says so: a running group writes itself into it again.
///
/// # A store of one's own
///
/// [`WorkerBuilder::store`](https://docs.rs/farref/latest/farref/struct.WorkerBuilder.html#method.store) takes
/// it. The smallest one, in memory:
///
/// ```
/// use std::collections::BTreeMap;
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use bytes::Bytes;
/// use farref_rendezvous::{Store, StoreError, StoreFuture, check_store};
/// use tokio::sync::watch;
/// use tokio::time::timeout;
///
/// /// All keys and values. Who changes them wakes those who wait.
/// #[derive(Debug, Default)]
/// struct Shelf(watch::Sender<BTreeMap<String, Bytes>>);
///
/// impl Shelf {
///     /// Replaces the value of a key by what `next` makes of it, and returns what is there then. What is too large
///     /// changes nothing.
///     fn change<'a>(
///         &'a self,
///         key: &'a str,
///         next: impl FnOnce(Option<&Bytes>) -> Result<Option<Bytes>, StoreError> + Send + 'a,
///     ) -> StoreFuture<'a, Option<Bytes>> {
///         Box::pin(async move {
///             if key.len() > 8 << 10 {
///                 let (what, size, limit) = ("key", key.len(), 8 << 10);
///                 return Err(StoreError::TooLarge { what, size, limit });
///             }
///             let mut after = Ok(None);
///             self.0.send_modify(|shelf| {
///                 after = next(shelf.get(key)).and_then(|value| match value.as_ref().map_or(0, Bytes::len) {
///                     size if size <= 8 << 20 => Ok(value),
///                     size => Err(StoreError::TooLarge { what: "value", size, limit: 8 << 20 }),
///                 });
///                 match &after {
///                     Ok(Some(value)) => drop(shelf.insert(key.to_owned(), value.clone())),
///                     Ok(None) => drop(shelf.remove(key)),
///                     Err(_) => {}
///                 }
///             });
///             after
///         })
///     }
/// }
///
/// impl Store for Shelf {
///     fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
///         Box::pin(async move {
///             self.change(key, |_| Ok(Some(Bytes::copy_from_slice(value)))).await.map(drop)
///         })
///     }
///
///     fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
///         Box::pin(async move { Ok(self.0.borrow().get(key).cloned()) })
///     }
///
///     fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
///         Box::pin(async move {
///             let mut sum = Some(delta);
///             let added = self.change(key, |old| {
///                 if let Some(old) = old {
///                     let number: Option<i64> = str::from_utf8(old).ok().and_then(|old| old.parse().ok());
///                     sum = number.and_then(|number| number.checked_add(delta));
///                 }
///                 let sum = sum.ok_or_else(|| StoreError::NotANumber { key: key.to_owned() })?;
///                 Ok(Some(sum.to_string().into()))
///             });
///             added.await?;
///             Ok(sum.unwrap_or(delta))
///         })
///     }
///
///     fn compare_set<'a>(
///         &'a self,
///         key: &'a str,
///         expected: &'a [u8],
///         desired: &'a [u8],
///     ) -> StoreFuture<'a, Bytes> {
///         Box::pin(async move {
///             let after = self.change(key, |old| {
///                 let is_expected = old.is_none_or(|old| old == expected);
///                 match old {
///                     None if !expected.is_empty() => Ok(None),
///                     _ if is_expected => Ok(Some(Bytes::copy_from_slice(desired))),
///                     old => Ok(old.cloned()),
///                 }
///             });
///             Ok(after.await?.unwrap_or_else(|| Bytes::copy_from_slice(expected)))
///         })
///     }
///
///     fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
///         Box::pin(async move {
///             let mut was_there = false;
///             self.change(key, |old| Ok({ was_there = old.is_some(); None })).await?;
///             Ok(was_there)
///         })
///     }
///
///     fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
///         Box::pin(async move {
///             let mut changes = self.0.subscribe();
///             let mut missing = keys.to_vec();
///             let all_came = changes.wait_for(|shelf| {
///                 missing.retain(|key| !shelf.contains_key(key));
///                 missing.is_empty()
///             });
///             let came = timeout(deadline, all_came).await.is_ok();
///             match came {
///                 true => Ok(()),
///                 false => Err(StoreError::Timeout { missing, waited: deadline }),
///             }
///         })
///     }
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::BrokenGuarantee> {
/// let shelf = Arc::new(Shelf::default());
/// check_store(shelf.clone(), shelf).await
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

    /// The same store by a handle that never goes over to another server: once the server of now is gone, every
    /// operation of the handle fails. So what is written through it in some order is in one store in that order, as
    /// far as it is there. `None` if there is no server that could be another one, which is what happens unless
    /// it is overridden.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref_rendezvous::{MemoryStore, Store, StoreServer, TcpStoreClient};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// assert!(MemoryStore::new().pinned().await?.is_none());
    ///
    /// let server = StoreServer::bind("127.0.0.1:0").await?;
    /// let at = server.local_addr();
    /// let client = TcpStoreClient::connect("127.0.0.1", at.port(), Duration::from_secs(60)).await?;
    /// let pinned = client.pinned().await?.expect("it has a server");
    /// pinned.set("key", b"value").await?;
    /// server.close().await;
    ///
    /// let successor = StoreServer::bind(at).await?;
    /// assert!(pinned.try_get("key").await.is_err());
    /// # drop(successor);
    /// # Ok(())
    /// # }
    /// ```
    fn pinned(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        Box::pin(async { Ok(None) })
    }

    /// What the store can do beyond storing if it notices when its users go; nothing, unless it is overridden.
    ///
    /// ```
    /// use farref_rendezvous::{MemoryStore, Store};
    ///
    /// assert!(MemoryStore::new().presence().is_none());
    /// ```
    fn presence(&self) -> Option<&dyn StorePresence> {
        None
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
