//! The group of a run, and what goes wrong with it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farref::testing::Cluster;
use farref::{Worker, WorkerBuilder};
use fastrand::Rng;
use tokio::time::sleep;

use crate::config::Faults;
use crate::ledger;
use crate::program;

/// How long workers wait for each other.
const PEER_TIMEOUT: Duration = Duration::from_secs(4);
/// So many milliseconds at most nothing passes where nobody is to be lost.
const SHORT: u64 = 1500;
/// And where somebody is.
const LONG: (u64, u64) = (5_000, 15_000);
/// The most bytes that a call carries.
const MOST_DATA: usize = 300_000;
/// And how often it may fill a connection: one that is slow, and shared by all programs, carries it within a call's time.
const MOST_FILLINGS: usize = 50;

/// Some workers, and who of them may be missed.
pub(crate) struct Group {
    pub(crate) faults: Faults,
    cluster: Cluster,
    names: Vec<String>,
    /// The most bytes that a call carries.
    pub(crate) most_data: usize,
    /// The present life of each.
    workers: Mutex<Vec<Option<Worker>>>,
    /// Those that died, or were out of somebody's reach for long.
    lost: Mutex<BTreeSet<String>>,
}

impl Group {
    /// Starts so many workers.
    pub(crate) async fn start(
        size: u32,
        faults: Faults,
        rng: &mut Rng,
    ) -> anyhow::Result<Arc<Self>> {
        let mut group = Self {
            faults,
            cluster: Cluster::start(0).await?,
            names: (0..size).map(|rank| format!("w{rank}")).collect(),
            most_data: MOST_DATA,
            workers: Mutex::default(),
            lost: Mutex::default(),
        };
        let network = group.cluster.network();
        if rng.u8(..4) == 0 {
            let capacity = rng.usize(200..5_000);
            network.set_capacity(capacity);
            group.most_data = MOST_DATA.min(MOST_FILLINGS * capacity);
        }
        for (a, b) in pairs(size as usize) {
            let latency = Duration::from_millis(rng.u64(0..4));
            network.set_latency(&group.names[a], &group.names[b], latency);
        }
        let joining: Vec<_> = (0..size)
            .map(|rank| farref::simulation::spawn(group.builder(rank as usize).join()))
            .collect();
        for worker in joining {
            let worker = worker.await??;
            group.workers().push(Some(worker));
        }
        Ok(Arc::new(group))
    }

    fn builder(&self, index: usize) -> WorkerBuilder {
        self.cluster
            .builder(&self.names[index])
            .rank(index as u32)
            .world_size(self.names.len() as u32)
            .peer_timeout(PEER_TIMEOUT)
            .shutdown_timeout(Duration::from_secs(60))
    }

    fn workers(&self) -> MutexGuard<'_, Vec<Option<Worker>>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// The present life of a worker, if it is a member.
    pub(crate) fn worker(&self, index: usize) -> Option<Worker> {
        let worker = self.workers().get(index).cloned().flatten();
        worker.filter(Worker::is_member)
    }

    /// Whether a worker has died or was out of reach for long.
    pub(crate) fn is_lost(&self, name: &str) -> bool {
        self.lost().contains(name)
    }

    /// Whether a text names a worker that is lost.
    pub(crate) fn names_lost(&self, text: &str) -> bool {
        self.lost().iter().any(|name| text.contains(name.as_str()))
    }

    /// Injects faults, until enough have been.
    pub(crate) async fn trouble(self: Arc<Self>, mut rng: Rng) {
        if self.faults == Faults::None {
            return;
        }
        let mut deaths = 0;
        for _ in 0..rng.u32(2..14) {
            sleep(Duration::from_millis(rng.u64(0..250))).await;
            let pairs = pairs(self.names.len());
            let (a, b) = pairs[rng.usize(..pairs.len())];
            let (one, other) = (&self.names[a], &self.names[b]);
            let network = self.cluster.network();
            match rng.u8(..10) {
                0..3 => {
                    ledger::fault(|| format!("cuts {one} {other}"));
                    network.cut(one, other);
                }
                3..6 => {
                    let bytes = rng.u64(0..2_000);
                    ledger::fault(|| format!("cuts {one} {other} after {bytes}"));
                    match rng.bool() {
                        true => network.cut_after(one, other, bytes),
                        false => network.cut_after(other, one, bytes),
                    };
                }
                6..8 => self.split(one, other, rng.u64(1..SHORT)).await,
                _ if self.faults == Faults::Links => {
                    let latency = Duration::from_millis(rng.u64(0..40));
                    ledger::fault(|| format!("{one} {other} are {latency:?} apart"));
                    network.set_latency(one, other, latency);
                }
                8 if self.faults == Faults::Partitions => {
                    self.lost().extend([one.clone(), other.clone()]);
                    self.split(one, other, rng.u64(LONG.0..LONG.1)).await;
                }
                _ if deaths < self.names.len() - 1 => {
                    deaths += 1;
                    self.crash(a, &mut rng).await;
                }
                _ => {}
            }
        }
    }

    async fn split(&self, one: &str, other: &str, millis: u64) {
        ledger::fault(|| format!("parts {one} {other} for {millis} ms"));
        self.cluster.network().partition(one, other);
        sleep(Duration::from_millis(millis)).await;
        self.cluster.network().heal(one, other);
        ledger::note(|| format!("joins {one} {other}"));
    }

    async fn crash(&self, index: usize, rng: &mut Rng) {
        let Some(worker) = self.worker(index) else {
            return;
        };
        let name = &self.names[index];
        ledger::fault(|| format!("kills {name}"));
        self.lost().insert(name.clone());
        self.workers()[index] = None;
        self.cluster.network().crash(name);
        worker.crash().await;
        program::clear_shelves(Some(name));
        drop(worker);
        if rng.bool() {
            return;
        }
        sleep(Duration::from_millis(rng.u64(0..300))).await;
        ledger::note(|| format!("starts {name} again"));
        match self.builder(index).join().await {
            Ok(worker) => self.workers()[index] = Some(worker),
            Err(error) if self.faults == Faults::Partitions => {
                ledger::note(|| format!("{name} cannot join: {error}"));
            }
            Err(error) => ledger::violated("RR-4", &format!("{name} cannot join again: {error}")),
        }
    }

    /// Mends everything and ends all workers (RR-4).
    pub(crate) async fn end(self: Arc<Self>) {
        for (a, b) in pairs(self.names.len()) {
            let network = self.cluster.network();
            network.heal(&self.names[a], &self.names[b]);
            network.set_latency(&self.names[a], &self.names[b], Duration::ZERO);
        }
        program::clear_shelves(None);
        let workers: Vec<_> = self.workers().drain(..).flatten().collect();
        let ending: Vec<_> = workers
            .into_iter()
            .map(|worker| {
                farref::simulation::spawn(async move {
                    match worker.is_member() {
                        true => (worker.name().to_owned(), worker.shutdown().await),
                        false => {
                            worker.crash().await;
                            (worker.name().to_owned(), Ok(()))
                        }
                    }
                })
            })
            .collect();
        for worker in ending {
            match worker.await {
                Ok((name, Ok(()))) => ledger::note(|| format!("{name} has ended")),
                // It may have been evicted meanwhile.
                Ok((name, Err(error)))
                    if self.is_lost(&name) && self.faults == Faults::Partitions =>
                {
                    ledger::note(|| format!("{name} ends with {error}"));
                }
                Ok((name, Err(error))) => {
                    ledger::violated("RR-4", &format!("{name} cannot shut down: {error}"));
                }
                Err(error) => ledger::violated("RR-5", &error.to_string()),
            }
        }
    }
}

/// All pairs of workers.
fn pairs(size: usize) -> Vec<(usize, usize)> {
    let each = |a| (0..size).map(move |b| (a, b));
    (0..size).flat_map(each).filter(|(a, b)| a != b).collect()
}
