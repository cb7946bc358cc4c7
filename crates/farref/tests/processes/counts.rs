//! What a worker counts about the calls that it carries out, and values and guards that count.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use farref::{Peer, RRef};

use crate::functions::Probe;

/// How often something happened in this process.
static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());

fn counts() -> MutexGuard<'static, BTreeMap<String, u64>> {
    COUNTS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Something happened once more. How often by now.
pub(crate) fn count(what: &str) -> u64 {
    let mut counts = counts();
    let count = counts.entry(what.to_owned()).or_default();
    *count += 1;
    *count
}

/// How often something happened on that worker.
#[farref::remote]
pub(crate) async fn counted(what: String) -> u64 {
    counts().get(&what).copied().unwrap_or_default()
}

/// Whether something happened so often on that worker, by now.
pub(crate) async fn has_counted(peer: &Peer, what: &str, times: u64) -> anyhow::Result<bool> {
    Ok(counted::on(peer, what.to_owned()).await? == times)
}

/// Counts when it is dropped.
pub(crate) struct CountDrop(pub(crate) String);

impl Drop for CountDrop {
    fn drop(&mut self) {
        count(&self.0);
    }
}

/// Begins, as `{key} began`, and never ends. When it is dropped, that counts as `{key} dropped`.
#[farref::remote]
pub(crate) async fn never_end(key: String) {
    count(&format!("{key} began"));
    let _dropped = CountDrop(format!("{key} dropped"));
    std::future::pending().await
}

/// The same with a reference.
#[farref::remote]
pub(crate) async fn never_end_with(key: String, probe: RRef<Probe>) {
    count(&format!("{key} began"));
    let _dropped = CountDrop(format!("{key} dropped"));
    let _probe = probe;
    std::future::pending().await
}

/// How many run at once, and how many at most.
static CROWD: Mutex<(u64, u64)> = Mutex::new((0, 0));

fn crowd() -> MutexGuard<'static, (u64, u64)> {
    CROWD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of those who run at once.
pub(crate) struct InCrowd;

impl InCrowd {
    pub(crate) fn enter() -> Self {
        let mut crowd = crowd();
        crowd.0 += 1;
        crowd.1 = crowd.1.max(crowd.0);
        Self
    }
}

impl Drop for InCrowd {
    fn drop(&mut self) {
        crowd().0 -= 1;
    }
}

/// The most that ran at once on that worker.
#[farref::remote]
pub(crate) async fn largest_crowd() -> u64 {
    crowd().1
}
