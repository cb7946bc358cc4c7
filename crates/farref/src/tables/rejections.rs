//! Who does not take this worker's connections, and why.

use std::collections::BTreeMap;
use std::sync::Arc;

use farref_proto::{Incarnation, NodeId, WorkerId};
use tokio::sync::watch;

use crate::rendezvous::RendezvousError;

/// Of how many lives that is kept, so that errors can say it: of those with the highest numbers.
const REMEMBERED: usize = 1024;

/// The lives with which this worker cannot connect, for reasons that no later attempt can change; until one does.
#[derive(Debug, Default)]
pub(crate) struct Rejections {
    by: watch::Sender<BTreeMap<NodeId, Refusal>>,
}

#[derive(Clone, Debug)]
struct Refusal {
    why: Arc<RendezvousError>,
    /// Whether it was that life which refused, or would have been refused, and not another that is found in its place.
    is_its_own: bool,
}

impl Rejections {
    /// A life and this worker cannot connect.
    pub(crate) fn insert(&self, by: NodeId, why: RendezvousError, is_its_own: bool) {
        let why = Arc::new(why);
        self.by.send_modify(|all| {
            all.insert(by, Refusal { why, is_its_own });
            if all.len() > REMEMBERED {
                all.pop_first();
            }
        });
    }

    /// They have connected, after all: of the lives before it there is nothing more to say, either.
    pub(crate) fn remove(&self, by: NodeId) {
        self.by.send_if_modified(|all| {
            let before = all.len();
            all.retain(|node, _| node.worker != by.worker || *node > by);
            all.len() < before
        });
    }

    /// Why this life cannot be connected with, if so.
    pub(crate) fn of(&self, node: NodeId) -> Option<Arc<RendezvousError>> {
        let all = self.by.borrow();
        all.get(&node).map(|refusal| Arc::clone(&refusal.why))
    }

    /// The same, if it is there and it is with itself that no connection can be made.
    pub(crate) fn by_itself(&self, node: NodeId) -> Option<Arc<RendezvousError>> {
        let all = self.by.borrow();
        let refusal = all.get(&node).filter(|refusal| refusal.is_its_own);
        refusal.map(|refusal| Arc::clone(&refusal.why))
    }

    /// The same of the latest life of a worker of which there is something to say.
    pub(crate) fn of_worker(&self, worker: WorkerId) -> Option<Arc<RendezvousError>> {
        let life = |incarnation| NodeId {
            worker,
            incarnation: Incarnation(incarnation),
        };
        let all = self.by.borrow();
        let mut lives = all.range(life(0)..=life(u32::MAX));
        lives
            .next_back()
            .map(|(_, refusal)| Arc::clone(&refusal.why))
    }

    /// The first of them.
    pub(crate) fn first(&self) -> Option<Arc<RendezvousError>> {
        let all = self.by.borrow();
        all.first_key_value()
            .map(|(_, refusal)| Arc::clone(&refusal.why))
    }

    /// Waits until there is something to say of a life.
    pub(crate) async fn wait_for(&self, node: NodeId) {
        let mut all = self.by.subscribe();
        // The sender is here.
        let _ = all.wait_for(|all| all.contains_key(&node)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(by: &str) -> RendezvousError {
        RendezvousError::WrongToken {
            name: "me".to_owned(),
            by: by.to_owned(),
        }
    }

    fn said(why: Option<Arc<RendezvousError>>) -> Option<String> {
        match why.as_deref() {
            Some(RendezvousError::WrongToken { by, .. }) => Some(by.clone()),
            _ => None,
        }
    }

    #[test]
    fn what_is_said_of_a_worker_is_said_of_its_latest_life_until_it_connects() {
        let rejections = Rejections::default();
        for (worker, incarnation) in [(1, 1), (2, 1), (2, 9), (3, 0)] {
            let node = NodeId::new(worker, incarnation);
            rejections.insert(node, why(&node.to_string()), true);
        }
        let of = |worker| said(rejections.of_worker(WorkerId(worker)));
        assert_eq!(of(2), Some(NodeId::new(2, 9).to_string()));
        assert_eq!(of(3), Some(NodeId::new(3, 0).to_string()));
        assert_eq!(of(4), None);
        rejections.remove(NodeId::new(2, 1));
        assert_eq!(of(2), Some(NodeId::new(2, 9).to_string()));
        assert!(rejections.of(NodeId::new(2, 1)).is_none());
        rejections.remove(NodeId::new(1, 2));
        assert_eq!(of(1), None);
        assert_eq!(said(rejections.first()), of(2));
    }

    #[test]
    fn there_is_an_end_to_what_is_kept() {
        let rejections = Rejections::default();
        for worker in 0..2 * REMEMBERED as u32 {
            rejections.insert(NodeId::new(worker, 1), why("them"), true);
        }
        assert_eq!(rejections.by.borrow().len(), REMEMBERED);
    }
}
