//! What the workers of these tests can be asked to do.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use farref::{RRef, Worker};
use farref_testkit::TEST_TIMEOUT;
use tokio::sync::watch;
use tokio::task::JoinHandle;

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
    pub(crate) fn new(value: u64) -> Self {
        *PROBES.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self { value }
    }

    pub(crate) async fn value(&self) -> u64 {
        self.value
    }

    pub(crate) async fn add(&mut self, n: u64) -> u64 {
        self.value += n;
        self.value
    }
}

/// How many probes live in this process.
pub(crate) fn living_probes() -> u64 {
    *PROBES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many probes live on that worker.
#[farref::remote]
pub(crate) async fn probes() -> u64 {
    living_probes()
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

/// Where calls of these tests wait for each other, by name.
static GATES: Mutex<BTreeMap<String, watch::Sender<Gate>>> = Mutex::new(BTreeMap::new());

#[derive(Clone, Copy, Default)]
struct Gate {
    waiting: u32,
    open: bool,
}

fn gate(name: String) -> watch::Sender<Gate> {
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    gates.entry(name).or_default().clone()
}

/// Waits until somebody opens the gate.
#[farref::remote]
pub(crate) async fn wait_at(name: String) {
    /// Counts this call out again, also if it is dropped where it waits.
    struct Waiting(watch::Sender<Gate>);

    impl Drop for Waiting {
        fn drop(&mut self) {
            self.0.send_modify(|gate| gate.waiting -= 1);
        }
    }

    let gate = gate(name);
    gate.send_modify(|gate| gate.waiting += 1);
    let waiting = Waiting(gate);
    let mut opened = waiting.0.subscribe();
    let _ = opened.wait_for(|gate| gate.open).await;
}

/// Waits until so many calls wait at the gate.
#[farref::remote]
pub(crate) async fn until_waiting(name: String, calls: u32) {
    let mut gate = gate(name).subscribe();
    let _ = gate.wait_for(|gate| gate.waiting == calls).await;
}

#[farref::remote]
pub(crate) async fn open(name: String) {
    gate(name).send_modify(|gate| gate.open = true);
}

/// Waits at a gate of a third worker.
#[farref::remote]
pub(crate) async fn wait_at_other(to: String, name: String) -> farref::Result<()> {
    let me = Worker::current().ok_or_else(no_worker)?;
    wait_at::on(&me.peer(&to)?, name).timeout(None).await
}

/// What a worker's program does beside serving calls.
static BACKGROUND: Mutex<Vec<JoinHandle<()>>> = Mutex::new(Vec::new());

pub(crate) fn in_background(task: impl Future<Output = ()> + Send + 'static) {
    let mut tasks = BACKGROUND.lock().unwrap_or_else(PoisonError::into_inner);
    tasks.push(tokio::spawn(task));
}

/// Waits for all that [`write_what_comes`] and its like have begun on this worker.
pub(crate) async fn finish_background() {
    let tasks = std::mem::take(&mut *BACKGROUND.lock().unwrap_or_else(PoisonError::into_inner));
    for task in tasks {
        // One that panicked has said so.
        let _ = task.await;
    }
}

/// Begins to wait at a gate of a third worker and returns. What comes of it, and only then, is written
/// to a file.
#[farref::remote]
pub(crate) async fn write_what_comes(to: String, gate: String, path: String) -> anyhow::Result<()> {
    let peer = Worker::current().context("no worker")?.peer(&to)?;
    let pending = wait_at::on(&peer, gate).timeout(None).start();
    in_background(async move {
        let outcome = pending.await;
        // In one step: whoever sees the file sees all of it.
        let part = format!("{path}.part");
        let _ = std::fs::write(&part, format!("{outcome:?}"));
        let _ = std::fs::rename(part, path);
    });
    Ok(())
}

/// Watches the members until this worker ends, and writes what it was told last to a file.
#[farref::remote]
pub(crate) async fn watch_until_end(path: String) -> anyhow::Result<()> {
    let mut members = Worker::current().context("no worker")?.watch_members();
    in_background(async move {
        let mut last = None;
        while let Some(event) = members.next().await {
            last = Some(event);
        }
        let _ = std::fs::write(path, format!("{last:?}"));
    });
    Ok(())
}

/// Publishes a probe of this worker's own.
#[farref::remote]
pub(crate) async fn publish(name: String, value: u64) -> anyhow::Result<()> {
    let me = Worker::current().context("no worker")?;
    me.publish(&name, &me.rref_to_object(Probe::new(value))?)?;
    Ok(())
}

#[farref::remote]
pub(crate) async fn unpublish(name: String) -> anyhow::Result<bool> {
    Ok(Worker::current().context("no worker")?.unpublish(&name))
}

/// Leaves the group when this is answered.
#[farref::remote]
pub(crate) async fn leave_soon() -> anyhow::Result<()> {
    let me = Worker::current().context("no worker")?;
    in_background(async move {
        // `serve` comes back then, and says how it went.
        let _ = me.leave().await;
    });
    Ok(())
}

/// Keeps what it held for so long, and says in a file that it has let it go.
#[farref::remote]
pub(crate) async fn release_later(key: String, ms: u64, path: String) {
    in_background(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        let _ = std::fs::write(path, "released");
        drop(held().remove(&key));
    });
}

/// Fails, for two reasons.
#[farref::remote]
pub(crate) async fn fail() -> anyhow::Result<u32> {
    Err(anyhow::anyhow!("the disk is full").context("cannot save"))
}

/// An error that is sent as what it is.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
#[error("closed until {until}")]
pub(crate) struct Closed {
    pub(crate) until: String,
    pub(crate) hours: Vec<u32>,
}

/// Fails before noon; late at night it takes its time.
#[farref::remote]
pub(crate) async fn enter(hour: u32) -> Result<u32, Closed> {
    match hour {
        0..12 => Err(Closed {
            until: "noon".to_owned(),
            hours: vec![12, 13],
        }),
        12..24 => Ok(hour),
        _ => std::future::pending().await,
    }
}

#[farref::remote]
pub(crate) async fn enter_through(to: String, hour: u32) -> farref::Result<u32> {
    let me = Worker::current().ok_or_else(no_worker)?;
    enter::on(&me.peer(&to)?, hour).await
}

#[farref::remote]
pub(crate) async fn panic_with(text: String) -> u32 {
    panic!("{text}")
}

/// Calls a third worker.
#[farref::remote]
pub(crate) async fn add_on(to: String, a: i64, b: i64) -> farref::Result<i64> {
    let me = Worker::current().ok_or_else(no_worker)?;
    add::on(&me.peer(&to)?, a, b).await
}

/// Returns when this worker knows another by its name.
#[farref::remote]
pub(crate) async fn until_known(name: String) -> farref::Result<()> {
    let me = Worker::current().ok_or_else(no_worker)?;
    me.wait_for_peer(&name, TEST_TIMEOUT).await.map(drop)
}

/// Calls every member of the group at once, and says how many answered rightly.
#[farref::remote]
pub(crate) async fn call_everyone() -> farref::Result<u32> {
    let me = Worker::current().ok_or_else(no_worker)?;
    let calls: Vec<_> = me
        .peers()
        .iter()
        .map(|peer| (peer.rank(), add::on(peer, peer.rank().into(), 1).start()))
        .collect();
    let mut right = 0;
    for (rank, call) in calls {
        right += u32::from(call.await? == i64::from(rank) + 1);
    }
    Ok(right)
}

/// Makes a value, hands a reference to it to a neighbour, lets the neighbour use it and drop it.
#[farref::remote]
pub(crate) async fn share_with(to: String, value: u64) -> farref::Result<u64> {
    let me = Worker::current().ok_or_else(no_worker)?;
    let neighbour = me.peer(&to)?;
    // Tests that run at once have one process for their drivers.
    let key = format!("of process {}, {}", std::process::id(), me.name());
    hold::on(
        &neighbour,
        key.clone(),
        me.rref_to_object(Probe::new(value))?,
    )
    .await?;
    let used = use_held::on(&neighbour, key.clone()).await?;
    release::on(&neighbour, key).await?;
    Ok(used)
}

fn no_worker() -> farref::Error {
    farref::Error::Misuse(farref::Misuse::NoWorker)
}

/// Opens a gate after a while.
#[farref::remote]
pub(crate) async fn open_later(name: String, ms: u64) {
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(ms)).await;
        gate(name).send_modify(|gate| gate.open = true);
    });
}

/// Runs on a thread of the blocking pool.
#[farref::remote]
pub(crate) fn add_plainly(a: i64, b: i64) -> i64 {
    a + b
}

/// Lets go of what a worker held that has crashed in this very process.
pub(crate) fn forget(key: &str) {
    drop(held().remove(key));
}
