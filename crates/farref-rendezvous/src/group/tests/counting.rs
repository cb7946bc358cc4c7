//! A store that notes what it is asked.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Barrier;

use crate::{MemoryStore, Store, StoreFuture};

/// A store that notes how many keys each wait is for.
#[derive(Debug, Default)]
pub(super) struct Counting {
    pub(super) store: MemoryStore,
    pub(super) waits: Mutex<Vec<usize>>,
    /// Where those who take a life meet, so that nobody has taken one when the other has looked.
    pub(super) meeting: Option<Barrier>,
    pub(super) met: AtomicUsize,
    /// It answers nobody any more when somebody has waited in vain.
    pub(super) gets_stuck: bool,
    pub(super) is_stuck: AtomicBool,
}

impl Store for Counting {
    fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
        self.store.set(key, value)
    }

    fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
        Box::pin(async move {
            if self.is_stuck.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            self.store.try_get(key).await
        })
    }

    fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
        self.store.add(key, delta)
    }

    fn compare_set<'a>(
        &'a self,
        key: &'a str,
        expected: &'a [u8],
        desired: &'a [u8],
    ) -> StoreFuture<'a, Bytes> {
        Box::pin(async move {
            if let Some(meeting) = &self.meeting
                && key.contains("/incarnation/")
                && self.met.fetch_add(1, Ordering::Relaxed) < 2
            {
                meeting.wait().await;
            }
            self.store.compare_set(key, expected, desired).await
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
        self.store.delete(key)
    }

    fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
        self.waits.lock().unwrap().push(keys.len());
        Box::pin(async move {
            let waited = self.store.wait(keys, deadline).await;
            let is_stuck = self.gets_stuck && waited.is_err();
            self.is_stuck.fetch_or(is_stuck, Ordering::Relaxed);
            waited
        })
    }
}
