//! Every store keeps the guarantees of [`Store`], and the check of them finds a store that does not.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use farref_testkit::{Scratch, TEST_TIMEOUT};

use super::{
    FileStore, MemoryStore, Store, StoreDialect, StoreError, StoreFuture, StoreServer,
    TcpStoreClient, check_store,
};

/// The check waits longer than this only for what has to come.
const IN_VAIN: Duration = Duration::from_secs(10);

#[tokio::test]
async fn a_store_in_memory_keeps_every_guarantee() {
    let store = MemoryStore::new();
    let other = Arc::new(store.clone());
    check_store(Arc::new(store), other).await.unwrap();
}

#[tokio::test]
async fn a_store_in_a_file_keeps_every_guarantee() {
    let scratch = Scratch::new().unwrap();
    let file = || Arc::new(FileStore::new(scratch.path().join("store")));
    check_store(file(), file()).await.unwrap();
}

#[tokio::test]
async fn a_tcp_store_keeps_every_guarantee_in_both_dialects() {
    // The old one as PyTorch 1.13 speaks.
    for dialect in [StoreDialect::Greeted, StoreDialect::Old] {
        let server = StoreServer::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().port();
        let client = || TcpStoreClient::connect_as(dialect, "127.0.0.1", port, TEST_TIMEOUT);
        let (one, other) = (client().await.unwrap(), client().await.unwrap());
        check_store(Arc::new(one), Arc::new(other)).await.unwrap();
    }
}

/// What of a store is wrong.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fault {
    /// A value comes back without its last byte, if that is a 7.
    Trims,
    /// Whatever there is, it is replaced.
    ReplacesAll,
    /// Sets what it has read before, and 1.
    LosesAdditions,
    /// Everything that is deleted was there.
    AlwaysDeletes,
    /// Ends a wait with the first key.
    WaitsForOne,
    /// Says of all keys that they were missing.
    BlamesAll,
    /// Takes whatever there is, as much of it as it can.
    TakesTooMuch,
    /// The same, of what is compared.
    ComparesTooMuch,
    /// Takes no key of 1 KiB.
    TakesTooLittle,
    /// Keeps a lock while it waits, and for good if it is given up.
    Jams,
}

#[derive(Debug)]
struct Faulty {
    memory: MemoryStore,
    fault: Fault,
    jam: tokio::sync::Mutex<bool>,
}

impl Faulty {
    /// Ends after a moment if somebody who was given up has left the store locked.
    async fn enter(&self) -> Result<(), StoreError> {
        match *self.jam.lock().await {
            true => Err(StoreError::Other("jammed".into())),
            false => Ok(()),
        }
    }
}

impl Store for Faulty {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            self.enter().await?;
            if self.fault == Fault::TakesTooLittle && key.len() >= 1 << 10 {
                let (what, size, limit) = ("key", key.len(), 1_000);
                return Err(StoreError::TooLarge { what, size, limit });
            }
            match self.memory.set(key, value).await {
                Err(StoreError::TooLarge { .. }) if self.fault == Fault::TakesTooMuch => Ok(()),
                set => set,
            }
        })
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            self.enter().await?;
            let value = self.memory.try_get(key).await?;
            Ok(value.map(|value| match self.fault {
                Fault::Trims => Bytes::copy_from_slice(value.strip_suffix(&[7]).unwrap_or(&value)),
                _ => value,
            }))
        })
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        Box::pin(async move {
            if self.fault != Fault::LosesAdditions || delta != 1 {
                return self.memory.add(key, delta).await;
            }
            let before = self.memory.add(key, 0).await?;
            tokio::task::yield_now().await;
            let sum = before + delta;
            self.memory.set(key, sum.to_string().as_bytes()).await?;
            Ok(sum)
        })
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            if self.fault != Fault::ReplacesAll {
                return match self.memory.compare_set(key, expected, desired).await {
                    Err(StoreError::TooLarge { .. }) if self.fault == Fault::ComparesTooMuch => {
                        Ok(Bytes::copy_from_slice(desired))
                    }
                    compared => compared,
                };
            }
            self.memory.set(key, desired).await?;
            Ok(Bytes::copy_from_slice(desired))
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let was_there = self.memory.delete(key).await?;
            Ok(was_there || self.fault == Fault::AlwaysDeletes)
        })
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let keys = match self.fault {
                Fault::WaitsForOne => keys.get(..1).unwrap_or_default(),
                _ => keys,
            };
            if self.fault == Fault::Jams && deadline > IN_VAIN && keys.len() == 1 {
                let before = std::mem::replace(&mut *self.jam.lock().await, true);
                let waited = self.memory.wait(keys, deadline).await;
                *self.jam.lock().await = before;
                return waited;
            }
            match self.memory.wait(keys, deadline).await {
                Err(StoreError::Timeout { waited, .. }) if self.fault == Fault::BlamesAll => {
                    let missing = keys.to_vec();
                    Err(StoreError::Timeout { missing, waited })
                }
                waited => waited,
            }
        })
    }
}

#[tokio::test]
async fn the_check_names_the_guarantee_that_a_store_breaks() {
    for (fault, guarantee) in [
        (Fault::Trims, 1),
        (Fault::ReplacesAll, 2),
        (Fault::LosesAdditions, 3),
        (Fault::AlwaysDeletes, 4),
        (Fault::WaitsForOne, 5),
        (Fault::BlamesAll, 6),
        (Fault::TakesTooMuch, 7),
        (Fault::ComparesTooMuch, 7),
        (Fault::TakesTooLittle, 7),
    ] {
        let store = Arc::new(Faulty {
            memory: MemoryStore::new(),
            fault,
            jam: tokio::sync::Mutex::default(),
        });
        let broken = check_store(store.clone(), store).await.unwrap_err();
        assert_eq!(broken.guarantee, guarantee, "{fault:?}: {broken}");
    }
}

#[tokio::test]
async fn a_store_that_a_dropped_operation_spoils_is_found_out() {
    let store = Arc::new(Faulty {
        memory: MemoryStore::new(),
        fault: Fault::Jams,
        jam: tokio::sync::Mutex::default(),
    });
    let broken = check_store(store.clone(), store).await.unwrap_err();
    // While others wait it is of no use either.
    assert!([5, 8].contains(&broken.guarantee), "{broken}");
}
