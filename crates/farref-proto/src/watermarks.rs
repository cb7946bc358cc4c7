//! The highest incarnation of each worker for which something is true.
//!
//! A node's tables have several shards, and each has to know who has departed. Departed workers are remembered for good, so
//! the shards share one memory of them ([`Watermarks::raise_all`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{Incarnation, NodeId, WorkerId};
use crate::mutation::{Mutant, mutated};

/// Lives of which something is true, such as that they are over: with one, it is true of all earlier
/// lives of the same worker. Takes one entry for each worker, however often it came back.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Watermarks {
    highest: Arc<BTreeMap<WorkerId, Incarnation>>,
    pub(crate) mutant: Mutant,
}

impl Watermarks {
    /// Whether it is true of this life.
    pub(crate) fn covers(&self, node: NodeId) -> bool {
        self.highest.get(&node.worker).is_some_and(|&highest| {
            let exact = mutated!(self.mutant, WatermarkExact);
            node.incarnation == highest || (node.incarnation < highest && !exact)
        })
    }

    /// The last life of a worker of which it is true.
    pub(crate) fn last(&self, worker: WorkerId) -> Option<NodeId> {
        let &incarnation = self.highest.get(&worker)?;
        Some(NodeId {
            worker,
            incarnation,
        })
    }

    /// It is true of this life and those before it.
    pub(crate) fn raise(&mut self, node: NodeId) {
        let known = self.highest.get(&node.worker);
        if known.is_none_or(|&known| known < node.incarnation) {
            Arc::make_mut(&mut self.highest).insert(node.worker, node.incarnation);
        }
    }

    /// It is true of this life and those before it, for several who know the same. They share the memory of it.
    pub(crate) fn raise_all<'a>(all: impl IntoIterator<Item = &'a mut Self>, node: NodeId) {
        let mut all = all.into_iter();
        let Some(first) = all.next() else {
            return;
        };
        // So that nothing has to be copied, the others give up their share first.
        let mut others: Vec<&mut Self> = all.collect();
        for other in &mut others {
            debug_assert_eq!(other.highest, first.highest);
            other.highest = Arc::default();
        }
        first.raise(node);
        for other in others {
            other.highest = Arc::clone(&first.highest);
        }
    }

    /// Whether two share their memory.
    #[cfg(test)]
    pub(crate) fn shares_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.highest, &other.highest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D5
    #[test]
    fn those_who_know_the_same_have_it_once_and_copy_nothing() {
        let mut marks = vec![Watermarks::default(); 3];
        Watermarks::raise_all(&mut marks, NodeId::new(3, 5));
        let kept = Arc::as_ptr(&marks[0].highest);
        for worker in 4..20 {
            Watermarks::raise_all(&mut marks, NodeId::new(worker, 1));
            // What each does by itself changes nothing any more.
            marks
                .iter_mut()
                .for_each(|one| one.raise(NodeId::new(worker, 1)));
            assert!(marks.iter().all(|one| one.covers(NodeId::new(worker, 1))));
            assert!(marks.iter().all(|one| one.shares_with(&marks[0])));
        }
        assert_eq!(Arc::as_ptr(&marks[0].highest), kept);
    }

    #[test]
    fn a_watermark_covers_the_lives_before_it_and_never_falls() {
        let mut marks = Watermarks::default();
        marks.raise(NodeId::new(3, 5));
        marks.raise(NodeId::new(3, 2));
        let covered = [0, 1, 5, 6].map(|life| marks.covers(NodeId::new(3, life)));
        assert_eq!(covered, [true, true, true, false]);
        assert!(!marks.covers(NodeId::new(2, 1)));
    }
}
