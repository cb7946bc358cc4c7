//! What the workers of these tests can be asked to do.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use farref::{RRef, Worker};

/// References that a worker was told to keep.
static HELD: Mutex<BTreeMap<String, RRef<Probe>>> = Mutex::new(BTreeMap::new());

fn held() -> std::sync::MutexGuard<'static, BTreeMap<String, RRef<Probe>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn held_count() -> usize {
    held().len()
}

/// A value whose life can be watched.
pub(crate) struct Probe {
    pub(crate) value: u64,
}

/// How many probes live in this process.
static PROBES: Mutex<u64> = Mutex::new(0);

impl Drop for Probe {
    fn drop(&mut self) {
        *PROBES.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
    }
}

#[farref::remote]
impl Probe {
    pub fn new(value: u64) -> Self {
        *PROBES.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self { value }
    }

    pub async fn value(&self) -> u64 {
        self.value
    }

    pub async fn add(&mut self, n: u64) -> u64 {
        self.value += n;
        self.value
    }
}

/// How many probes live on that worker.
#[farref::remote]
pub(crate) async fn probes() -> u64 {
    *PROBES.lock().unwrap_or_else(PoisonError::into_inner)
}

#[farref::remote]
pub(crate) async fn pid() -> u32 {
    std::process::id()
}

#[farref::remote]
pub(crate) async fn add(a: i64, b: i64) -> i64 {
    a + b
}

#[farref::remote]
pub(crate) async fn sleep_ms(ms: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(ms)).await;
    ms
}

/// Keeps a reference until [`release`].
#[farref::remote]
pub(crate) async fn hold(key: String, probe: RRef<Probe>) {
    held().insert(key, probe);
}

#[farref::remote]
pub(crate) async fn release(key: String) -> bool {
    let dropped = held().remove(&key);
    dropped.is_some()
}

/// Uses a kept reference.
#[farref::remote]
pub(crate) async fn use_held(key: String) -> farref::Result<u64> {
    let probe = held().get(&key).cloned();
    match probe {
        Some(probe) => probe.value().await,
        None => Ok(u64::MAX),
    }
}

/// Hands a reference on to a third worker, which keeps it.
#[farref::remote]
pub(crate) async fn hand_on(to: String, key: String, probe: RRef<Probe>) -> farref::Result<()> {
    let Some(me) = Worker::current() else {
        return Ok(());
    };
    hold::on(&me.peer(&to)?, key, probe).await
}
