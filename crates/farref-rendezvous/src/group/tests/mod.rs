//! Entering a group: who gets which id and life, who founds it, and what goes wrong in which words.

mod conflicts;
mod counting;
mod founding;
mod scale;
mod stores;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use farref_proto::NodeId;
use farref_testkit::TEST_TIMEOUT;
use tokio::time::sleep;

use super::{Address, Card, Entry, Liveness, LivenessProbe, Plan, enter};
use crate::{MemoryStore, RendezvousError, Store};

pub(super) const SHORT: Duration = Duration::from_millis(300);
/// The timeout of plans that wait in vain: long enough for the others to enter on a busy machine.
pub(super) const IN_VAIN: Duration = Duration::from_secs(2);

pub(super) fn plan(name: &str, rank: Option<u32>, world_size: Option<u32>) -> Plan {
    Plan {
        name: name.into(),
        rank,
        world_size,
        addresses: vec![Address::Memory(format!("address of {name}"))],
        host: "host".into(),
        timeout: TEST_TIMEOUT,
        grace: Duration::ZERO,
        prefix: "group".into(),
        wire: 4,
        token: None,
        certificate: None,
        probe: Arc::new(Finds(Liveness::Gone)),
    }
}

/// Finds every earlier life so.
#[derive(Debug)]
pub(super) struct Finds(Liveness);

impl LivenessProbe for Finds {
    fn probe<'a>(
        &'a self,
        _: &'a Card,
        _: Duration,
    ) -> Pin<Box<dyn Future<Output = Result<Liveness, RendezvousError>> + Send + 'a>> {
        Box::pin(async { Ok(self.0) })
    }
}

/// A worker whose earlier life is found so.
pub(super) fn after(mut plan: Plan, earlier: Liveness) -> Plan {
    plan.probe = Arc::new(Finds(earlier));
    plan
}

pub(super) fn ranked(rank: u32, world_size: u32) -> Plan {
    plan(&format!("worker{rank}"), Some(rank), Some(world_size))
}

pub(super) fn hurried(mut plan: Plan) -> Plan {
    plan.timeout = IN_VAIN;
    plan
}

pub(super) type Entered = Result<Entry, RendezvousError>;

pub(super) async fn enter_all(store: &Arc<dyn Store>, plans: Vec<Plan>) -> Vec<Entered> {
    let tasks: Vec<_> = plans
        .into_iter()
        .map(|plan| tokio::spawn(enter(store.clone(), plan)))
        .collect();
    let mut entered = Vec::new();
    for task in tasks {
        entered.push(task.await.unwrap());
    }
    entered
}

pub(super) async fn static_group(store: &Arc<dyn Store>, size: u32) -> Vec<Entry> {
    let plans = (0..size).map(|rank| ranked(rank, size)).collect();
    let entered = enter_all(store, plans).await;
    entered.into_iter().map(Result::unwrap).collect()
}

pub(super) fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

pub(super) fn nodes(cards: &[Card]) -> Vec<NodeId> {
    cards.iter().map(|card| card.node).collect()
}

pub(super) fn assert_one_founding(entries: &[Entry]) {
    let first = &entries[0];
    let founders = first.founders.as_ref().expect("a founder");
    assert_eq!(founders.len(), entries.len());
    for (rank, entry) in entries.iter().enumerate() {
        assert_eq!(entry.group, first.group);
        assert_eq!(entry.founders.as_ref(), Some(founders));
        assert_eq!(entry.me.node.worker.0, rank as u32);
        assert_eq!(founders[rank], entry.me);
    }
}

/// A worker that has published its card and waits for the others.
pub(super) async fn waiting(
    store: &Arc<dyn Store>,
    plan: Plan,
) -> tokio::task::JoinHandle<Entered> {
    let card = format!("group/latest/{}", plan.rank.unwrap());
    let before = store.try_get(&card).await.unwrap();
    let task = tokio::spawn(enter(store.clone(), plan));
    while !task.is_finished() && store.try_get(&card).await.unwrap() == before {
        sleep(Duration::from_millis(1)).await;
    }
    task
}
