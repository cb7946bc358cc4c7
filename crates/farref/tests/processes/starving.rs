//! Programs that compute where they should await, and so keep their runtimes from running.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{bail, ensure};
use farref::{Error, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually_async};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Tests;
use crate::functions::{Probe, ProbeRRef, add, add_plainly, hold, release};
use crate::group::{Options, SILENT_MS, run};
use crate::launch::Launch;

pub(crate) fn tests() -> Tests {
    vec![
        (
            "f1_async_functions_that_compute_are_no_silence_and_hold_up_nobody_else",
            || computing(2),
        ),
        (
            "f1_computing_on_the_only_thread_is_no_silence_and_holds_up_nobody_else",
            || computing(1),
        ),
    ]
}

/// How many threads are kept busy here, and whether that is over.
static BUSY: Mutex<(usize, bool)> = Mutex::new((0, false));
static OVER: Condvar = Condvar::new();

fn compute() {
    let mut busy = BUSY.lock().unwrap_or_else(PoisonError::into_inner);
    busy.0 += 1;
    // A test that fails is not to hang.
    drop(OVER.wait_timeout_while(busy, TEST_TIMEOUT, |(_, over)| !*over));
}

/// Keeps a thread of the runtime busy, as no async function should.
#[farref::remote]
async fn compute_in_a_task() {
    compute();
}

/// Takes as long to be read.
struct Slow;

/// How it is written.
const SLOW: u64 = 0x510e;

impl Serialize for Slow {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        SLOW.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Slow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Signatures are found out by reading other values.
        if u64::deserialize(deserializer)? == SLOW {
            compute();
        }
        Ok(Self)
    }
}

#[farref::remote]
async fn take(_slow: Slow) {}

/// Not async: these run on threads that a busy runtime does not keep from running.
#[farref::remote]
fn busy() -> usize {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner).0
}

#[farref::remote]
fn stop_computing() {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
    OVER.notify_all();
}

#[farref::remote]
fn probes_plainly() -> u64 {
    crate::functions::living_probes()
}

#[farref::remote]
async fn add_plainly_on(to: String) -> farref::Result<i64> {
    let me = Worker::current().expect("inside of a remote function");
    // A worker that has just joined learns the names of the others one after the other.
    let peer = me.wait_for_peer(&to, TEST_TIMEOUT).await?;
    add_plainly::on(&peer, 1, 2).await
}

/// F1: as many computations as the runtime has threads and more, for longer than a worker may be silent.
fn computing(runtime_threads: usize) -> anyhow::Result<()> {
    let options = Options {
        peer_timeout_ms: SILENT_MS,
        runtime_threads,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let probe = Probe::new_on(&a, 1).remote();
        ensure!(probe.value().await? == 1);
        hold::on(&b, "k".into(), probe.clone()).await?;
        let computing = [
            compute_in_a_task::on(&a).timeout(None).start(),
            take::on(&a, Slow).timeout(None).start(),
            compute_in_a_task::on(&a).timeout(None).start(),
        ];
        eventually_async("its runtime is busy", async || {
            Ok(busy::on(&a).await? == runtime_threads)
        })
        .await?;
        // This is what the test is about, not a means to wait for something.
        tokio::time::sleep(Duration::from_millis(SILENT_MS * 3 / 2)).await;
        ensure!(a.is_alive(), "it is not silent");

        // References are released there, and values dropped.
        drop(probe);
        ensure!(release::on(&b, "k".into()).await?);
        eventually_async("its value is dropped", async || {
            Ok(probes_plainly::on(&a).await? == 0)
        })
        .await?;
        // Plain functions run; an async one cannot, and its time limit holds.
        ensure!(add_plainly_on::on(&b, "a".into()).await? == 3);
        match add::on(&a, 1, 2).timeout(Duration::from_millis(300)).await {
            Err(Error::Timeout { .. }) => {}
            other => bail!("where did it run? {other:?}"),
        }
        // Others join.
        let extra = Launch::addition(group, "extra")?.start("extra")?;
        let peer = group.me.wait_for_peer("extra", TEST_TIMEOUT).await?;
        ensure!(add_plainly_on::on(&peer, "a".into()).await? == 3);
        ensure!(busy::on(&a).await? == runtime_threads, "it is still at it");

        stop_computing::on(&a).await?;
        for call in computing {
            call.await?;
        }
        ensure!(add::on(&a, 1, 2).await? == 3);
        group.me.shutdown().await?;
        extra.ended_well().await
    })
}
