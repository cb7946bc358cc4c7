//! What the processes are asked to do.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use farref::{Blob, RRef, Worker};
use tokio::sync::watch;

/// A value whose number is known.
pub(crate) struct Thing(u64);

static THINGS: AtomicI64 = AtomicI64::new(0);

impl Drop for Thing {
    fn drop(&mut self) {
        THINGS.fetch_sub(1, Ordering::Relaxed);
    }
}

#[farref::remote]
impl Thing {
    pub(crate) async fn new(number: u64) -> Self {
        THINGS.fetch_add(1, Ordering::Relaxed);
        Self(number)
    }

    pub(crate) async fn number(&self) -> u64 {
        self.0
    }
}

/// How many of them live here.
#[farref::remote]
pub(crate) async fn things() -> i64 {
    THINGS.load(Ordering::Relaxed)
}

#[farref::remote]
pub(crate) async fn add(a: u64, b: u64) -> u64 {
    a + b
}

#[farref::remote]
pub(crate) async fn blob(size: usize) -> Blob {
    vec![7; size].into()
}

/// Whether the gate is open.
static GATE: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));
static WAITING: AtomicU64 = AtomicU64::new(0);

/// Answers when the gate is open.
#[farref::remote(timeout = "3600s")]
pub(crate) async fn wait_at_gate(number: u64) -> u64 {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let _ = GATE.subscribe().wait_for(|open| *open).await;
    number
}

/// How many have come to the gate since it was set.
#[farref::remote]
pub(crate) async fn waiting() -> u64 {
    WAITING.load(Ordering::Relaxed)
}

#[farref::remote]
pub(crate) async fn set_gate(open: bool) {
    WAITING.store(0, Ordering::Relaxed);
    GATE.send_replace(open);
}

/// Calls everybody for so long, one after the other and values that are left with them in between; says how many calls were
/// made. Whatever fails is an error.
#[farref::remote(timeout = "36000s")]
pub(crate) async fn call_around(duration: Duration) -> anyhow::Result<u64> {
    let me = Worker::current().context("no worker")?;
    let others: Vec<_> = me
        .peers()
        .into_iter()
        .filter(|peer| !peer.is_me())
        .collect();
    let began = Instant::now();
    let mut calls = 0;
    let mut kept: Vec<RRef<Thing>> = Vec::new();
    while began.elapsed() < duration {
        for peer in &others {
            ensure!(add::on(peer, calls, 1).await? == calls + 1);
            let thing = Thing::new_on(peer, calls).remote();
            ensure!(thing.number().await? == calls);
            calls += 3;
            // Some are kept for a while.
            kept.push(thing);
            if kept.len() > 100 {
                kept.drain(..50);
            }
        }
    }
    Ok(calls)
}
