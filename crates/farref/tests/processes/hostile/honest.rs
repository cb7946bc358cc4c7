//! Workers that go on with their work, and tell what they have counted and logged meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use farref::{RRef, Worker};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::functions::{Probe, ProbeRRef as _, add, hold, release};

static IS_OVER: AtomicBool = AtomicBool::new(false);
static ROUNDS: AtomicU64 = AtomicU64::new(0);

/// Calls another worker, makes values there, hands them on and drops them, and keeps one all the time: until it is told
/// that that is over. Whatever goes wrong is an error.
#[farref::remote(timeout = "600s")]
pub(crate) async fn work_with(other: String) -> anyhow::Result<u64> {
    let me = Worker::current().context("no worker")?;
    let (other, driver) = (me.peer(&other)?, me.peer("driver")?);
    let kept: RRef<Probe> = Probe::new_on(&other, 7).remote();
    let mut rounds = 0;
    while !IS_OVER.load(Ordering::SeqCst) {
        let number = i64::try_from(rounds)?;
        ensure!(add::on(&other, number, 1).await? == number + 1);
        let probe = Probe::new_on(&other, rounds).remote();
        // The driver tells the owner of it, perhaps before the owner has made it.
        // Tests that run at once have one process for their drivers.
        let key = format!("of process {}", std::process::id());
        let handing = hold::on(&driver, key.clone(), probe.clone()).start();
        ensure!(probe.add(1).await? == rounds + 1);
        handing.await?;
        ensure!(release::on(&driver, key).await?);
        ensure!(kept.value().await? == 7);
        rounds += 1;
        ROUNDS.store(rounds, Ordering::SeqCst);
        // The processor is for the attacks.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(rounds)
}

/// How often it went round.
#[farref::remote]
pub(crate) async fn rounds() -> u64 {
    ROUNDS.load(Ordering::SeqCst)
}

#[farref::remote]
pub(crate) async fn end_work() {
    IS_OVER.store(true, Ordering::SeqCst);
}

static VISITS: AtomicU64 = AtomicU64::new(0);

/// Runs as often as it is called.
#[farref::remote]
pub(crate) async fn visit() -> u64 {
    VISITS.fetch_add(1, Ordering::SeqCst) + 1
}

#[farref::remote]
pub(crate) async fn visits() -> u64 {
    VISITS.load(Ordering::SeqCst)
}

/// As deep as one likes.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) enum Nested {
    Leaf,
    Next(Box<Self>),
}

/// Takes values that can be made to look large.
#[farref::remote]
pub(crate) async fn measure(numbers: Vec<u64>, nothing: Vec<()>, nested: Nested) -> u64 {
    let deep = u64::from(matches!(nested, Nested::Next(_)));
    numbers.len() as u64 + nothing.len() as u64 + deep
}

static COUNTERS: OnceLock<Snapshotter> = OnceLock::new();
static COUNTED: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
static LOGGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on this process keeps what it counts and logs.
pub(crate) fn watch() -> anyhow::Result<()> {
    let recorder = DebuggingRecorder::new();
    COUNTERS.get_or_init(|| recorder.snapshotter());
    recorder.install()?;
    let registry = tracing_subscriber::registry();
    Ok(registry.with(Keeper).try_init()?)
}

/// Counters, each with its reason if it has one.
#[farref::remote]
pub(crate) async fn counted() -> BTreeMap<String, u64> {
    let mut counted = lock(&COUNTED);
    let Some(counters) = COUNTERS.get() else {
        return BTreeMap::new();
    };
    for (key, _, _, value) in counters.snapshot().into_vec() {
        let DebugValue::Counter(count) = value else {
            continue;
        };
        let reason = key.key().labels().find(|label| label.key() == "reason");
        let reason = reason.map(|label| format!(" {}", label.value()));
        let name = format!("{}{}", key.key().name(), reason.unwrap_or_default());
        *counted.entry(name).or_default() += count;
    }
    counted.clone()
}

/// All but what is for whoever looks for a fault of farref's.
#[farref::remote]
pub(crate) async fn logged() -> Vec<String> {
    lock(&LOGGED).clone()
}

/// Keeps what is logged.
struct Keeper;

impl<S: tracing::Subscriber> Layer<S> for Keeper {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        struct Words(String);

        impl Visit for Words {
            fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }

        if *event.metadata().level() <= tracing::Level::INFO {
            let mut words = Words(String::new());
            event.record(&mut words);
            lock(&LOGGED).push(words.0);
        }
    }
}
