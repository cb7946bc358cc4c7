//! A store that the program brought, kept where the program's code may run.
//!
//! Workers use their store from the thread that no program can keep from running: there a store that blocks
//! would hold up signs of life. So whatever the program's store does, it does in a task of the program's runtime.
//!
//! # Invariants
//!
//! - **FS-1** No code of the store, its destructor included, runs on a thread of farref's own while the program's
//!   runtime runs.
//! - **FS-2** An operation that is given up is given up in the store as well.
//! - **FS-3** A store that panics fails the operation, and nothing else.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::rendezvous::{Store, StoreError, StoreFuture, StorePresence};

/// The program's store, and the runtime it belongs to.
pub(super) struct ForeignStore {
    /// Taken out only to be dropped.
    store: Option<Arc<dyn Store>>,
    has_presence: bool,
    runtime: Handle,
}

impl ForeignStore {
    /// Uses `store` in the runtime that calls this.
    pub(super) fn new(store: Arc<dyn Store>) -> Self {
        Self {
            has_presence: store.presence().is_some(),
            store: Some(store),
            runtime: Handle::current(),
        }
    }

    /// Has the store do something.
    fn run<'a, T, F>(&'a self, operation: impl FnOnce(Arc<dyn Store>) -> F) -> StoreFuture<'a, T>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, StoreError>> + Send + 'static,
    {
        let Some(store) = self.store.clone() else {
            return Box::pin(std::future::pending());
        };
        let operation = operation(store);
        Box::pin(async move {
            let mut task = AbortOnDrop(self.runtime.spawn(operation));
            match (&mut task.0).await {
                Ok(done) => done,
                // FS-3
                Err(error) if error.is_panic() => {
                    Err(StoreError::Other("the program's store panicked".into()))
                }
                Err(_) => Err(StoreError::Other("the program's runtime has ended".into())),
            }
        })
    }
}

/// FS-2
struct AbortOnDrop<T>(JoinHandle<T>);

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Store for ForeignStore {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        let (key, value) = (key.to_owned(), Bytes::copy_from_slice(value));
        self.run(|store| async move { store.set(&key, &value).await })
    }

    fn get<'a>(&'a self, key: &'a str, deadline: Duration) -> StoreFuture<'a, Bytes> {
        let key = key.to_owned();
        self.run(move |store| async move { store.get(&key, deadline).await })
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        let key = key.to_owned();
        self.run(|store| async move { store.try_get(&key).await })
    }

    fn lost(&self) -> StoreFuture<'_, ()> {
        self.run(|store| async move { store.lost().await })
    }

    fn pinned(&self) -> StoreFuture<'_, Option<Arc<dyn Store>>> {
        let runtime = self.runtime.clone();
        self.run(|store| async move {
            let pinned = store.pinned().await?;
            let foreign = |store: Arc<dyn Store>| -> Arc<dyn Store> {
                Arc::new(Self {
                    has_presence: store.presence().is_some(),
                    store: Some(store),
                    runtime,
                })
            };
            Ok(pinned.map(foreign))
        })
    }

    fn presence(&self) -> Option<&dyn StorePresence> {
        self.has_presence.then_some(self)
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        let key = key.to_owned();
        self.run(move |store| async move { store.add(&key, delta).await })
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        let key = key.to_owned();
        let (expected, desired) = (expected.to_owned(), desired.to_owned());
        self.run(|store| async move { store.compare_set(&key, &expected, &desired).await })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        let key = key.to_owned();
        self.run(|store| async move { store.delete(&key).await })
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        let keys = keys.to_owned();
        self.run(move |store| async move { store.wait(&keys, deadline).await })
    }
}

impl StorePresence for ForeignStore {
    fn compare_set_while_here<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        let key = key.to_owned();
        let (expected, desired) = (expected.to_owned(), desired.to_owned());
        self.run(|store| async move {
            match store.presence() {
                Some(here) => here.compare_set_while_here(&key, &expected, &desired).await,
                None => store.compare_set(&key, &expected, &desired).await,
            }
        })
    }

    fn settle(&self) -> StoreFuture<'_, ()> {
        self.run(|store| async move {
            match store.presence() {
                Some(presence) => presence.settle().await,
                None => Ok(()),
            }
        })
    }

    fn over(&self) -> StoreFuture<'_, ()> {
        self.run(|store| async move {
            match store.presence() {
                Some(presence) => presence.over().await,
                None => std::future::pending().await,
            }
        })
    }

    fn leave(&self) -> StoreFuture<'_, ()> {
        self.run(|store| async move {
            match store.presence() {
                Some(presence) => presence.leave().await,
                None => Ok(()),
            }
        })
    }
}

impl Drop for ForeignStore {
    fn drop(&mut self) {
        // FS-1
        if let Some(store) = self.store.take() {
            drop(self.runtime.spawn(async move { drop(store) }));
        }
    }
}

impl fmt::Debug for ForeignStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Its own words for itself would be code of the program.
        f.write_str("the program's store")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::{MemoryStore, check_store};
    use crate::support::io_thread::IoThread;
    use crate::support::user_code::is_barred;

    /// Says where it is used and dropped; panics if a key asks for it.
    #[derive(Debug, Default)]
    struct Picky {
        memory: MemoryStore,
    }

    impl Picky {
        fn look(&self, key: &str) {
            assert!(!is_barred(), "on a thread of farref's own");
            assert!(key != "panic", "as was asked");
        }
    }

    impl Drop for Picky {
        fn drop(&mut self) {
            self.look("");
        }
    }

    impl Store for Picky {
        fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
            self.look(key);
            self.memory.set(key, value)
        }

        fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
            self.look(key);
            self.memory.try_get(key)
        }

        fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
            self.look(key);
            self.memory.add(key, delta)
        }

        fn compare_set<'a>(
            &'a self,
            key: &'a str,
            expected: &'a [u8],
            desired: &'a [u8],
        ) -> StoreFuture<'a, Bytes> {
            self.look(key);
            self.memory.compare_set(key, expected, desired)
        }

        fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
            self.look(key);
            self.memory.delete(key)
        }

        fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
            self.look("");
            self.memory.wait(keys, deadline)
        }
    }

    #[tokio::test]
    async fn a_programs_store_keeps_its_guarantees_and_off_farrefs_threads() {
        let picky = Arc::new(Picky::default());
        let store = || Arc::new(ForeignStore::new(Arc::clone(&picky) as Arc<dyn Store>));
        let (one, other) = (store(), store());
        let io = IoThread::get().expect("a thread");
        let checking = io.handle().spawn(check_store(one, other));
        checking
            .await
            .expect("no panic")
            .expect("every guarantee is kept");
        let last = Arc::downgrade(&picky);
        let store = ForeignStore::new(picky);
        let dropping = io.handle().spawn(async move { drop(store) });
        dropping.await.expect("no panic");
        while last.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn a_store_that_panics_fails_what_was_asked_of_it() {
        let store = ForeignStore::new(Arc::new(Picky::default()));
        let failed = store.set("panic", b"").await;
        assert!(matches!(failed, Err(StoreError::Other(_))), "{failed:?}");
        store.set("k", b"v").await.expect("it goes on");
    }

    #[tokio::test]
    async fn an_operation_that_is_given_up_is_given_up_in_the_store() {
        let memory = Arc::new(MemoryStore::new());
        let store = ForeignStore::new(Arc::clone(&memory) as Arc<dyn Store>);
        let waiting = store.get("never", Duration::from_secs(60));
        drop(tokio::time::timeout(Duration::from_millis(5), waiting).await);
        drop(store);
        // Who waits holds the store.
        while Arc::strong_count(&memory) > 1 {
            tokio::task::yield_now().await;
        }
    }
}
