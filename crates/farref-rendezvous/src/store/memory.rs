//! A store inside one process, for tests and for clusters that live in one process.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::error::StoreError;
use super::limits::{MAX_KEY, MAX_KEYS, MAX_VALUE, check_size, end_of};
use super::table::{Pending, Refusal, Table, WaiterId};
use super::{Store, StoreFuture};

/// How much a store in memory may hold.
const LIMIT: usize = 256 << 20;

/// A store in this process's memory. Clones share their contents.
///
/// ```
/// use farref_rendezvous::{MemoryStore, Store};
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
/// let store = MemoryStore::new();
/// let same = store.clone();
/// store.set("key", b"value").await?;
/// assert_eq!(same.try_get("key").await?.as_deref(), Some(&b"value"[..]));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    table: Arc<Mutex<Table>>,
}

impl MemoryStore {
    /// An empty store.
    ///
    /// ```
    /// use farref_rendezvous::{MemoryStore, Store};
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), farref_rendezvous::StoreError> {
    /// let store = MemoryStore::new();
    /// assert_eq!(store.try_get("anything").await?, None);
    /// # Ok(())
    /// # }
    /// ```
    pub fn new() -> Self {
        Self {
            table: Arc::new(Mutex::new(Table::new(LIMIT))),
        }
    }

    /// Every operation on the table leaves it whole, so a panic elsewhere does not spoil it.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn wait_until(&self, keys: &[String], end: Instant) -> Result<(), StoreError> {
        check_size("list of keys", keys.len(), MAX_KEYS)?;
        let wanted: Vec<Bytes> = keys
            .iter()
            .map(|key| Bytes::copy_from_slice(key.as_bytes()))
            .collect();
        let began = Instant::now();
        let Some(Pending { id, done }) = self.table().wait(&wanted) else {
            return Ok(());
        };
        let _guard = CancelOnDrop { store: self, id };
        if tokio::time::timeout_at(end, done).await.is_ok() {
            return Ok(());
        }
        let table = self.table();
        let missing = keys.iter().filter(|key| !table.has(key.as_bytes()));
        let missing: Vec<String> = missing.cloned().collect();
        if missing.is_empty() {
            // The last one came in the same moment.
            return Ok(());
        }
        let waited = began.elapsed();
        Err(StoreError::Timeout { missing, waited })
    }

    fn refused(&self, key: &str, refusal: Refusal) -> StoreError {
        match refusal {
            Refusal::Full => StoreError::Full {
                limit: self.table().limit(),
            },
            Refusal::NotANumber => StoreError::NotANumber { key: key.into() },
        }
    }

    /// Checks the sizes, runs `operation`, and translates its refusal.
    fn change<T>(
        &self,
        key: &str,
        value: &[u8],
        operation: impl FnOnce(&mut Table, Bytes, Bytes) -> Result<T, Refusal>,
    ) -> Result<T, StoreError> {
        check_size("key", key.len(), MAX_KEY)?;
        check_size("value", value.len(), MAX_VALUE)?;
        let key_bytes = Bytes::copy_from_slice(key.as_bytes());
        let value = Bytes::copy_from_slice(value);
        let result = operation(&mut self.table(), key_bytes, value);
        result.map_err(|refusal| self.refused(key, refusal))
    }
}

impl Store for MemoryStore {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(async move { self.change(key, value, Table::set) })
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        Box::pin(async move { Ok(self.table().value(key.as_bytes()).cloned()) })
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        Box::pin(async move { self.change(key, b"", |table, key, _| table.add(key, delta)) })
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            check_size("value", expected.len(), MAX_VALUE)?;
            self.change(key, desired, |table, key, desired| {
                table.compare_set(key, Bytes::copy_from_slice(expected), desired)
            })
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move { Ok(self.table().delete(key.as_bytes())) })
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        Box::pin(self.wait_until(keys, end_of(deadline)))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.table().len();
        f.debug_struct("MemoryStore").field("keys", &keys).finish()
    }
}

/// Takes a waiter off the lists when its future is dropped or has timed out.
struct CancelOnDrop<'a> {
    store: &'a MemoryStore,
    id: WaiterId,
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        self.store.table().cancel(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_wait_given_up_leaves_no_trace() {
        let store = MemoryStore::new();
        let keys = ["a".to_owned(), "b".to_owned(), "a".to_owned()];
        store.set("b", b"").await.unwrap();
        let error = store.wait(&keys, Duration::from_millis(5)).await;
        assert!(matches!(error, Err(StoreError::Timeout { missing, .. }) if missing == ["a", "a"]));
        drop(tokio::time::timeout(Duration::ZERO, store.get("c", Duration::from_secs(9))).await);
        assert!(store.table().is_idle());
    }

    #[tokio::test]
    async fn what_is_deleted_gives_its_room_back() {
        let store = MemoryStore::new();
        store.set("k", &[7; 1000]).await.unwrap();
        assert_eq!(store.add("n", 4).await.unwrap(), 4);
        store.set("k", b"short").await.unwrap();
        assert!(store.delete("k").await.unwrap());
        assert!(store.delete("n").await.unwrap());
        assert!(!store.delete("n").await.unwrap());
        assert_eq!(store.table().used(), 0);
    }
}
