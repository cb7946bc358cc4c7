//! The highest incarnation of each worker for which something is true.

use std::collections::BTreeMap;

use crate::ids::{Incarnation, NodeId, WorkerId};
use crate::mutation::{Mutant, mutated};

/// Lives of which something is true, such as that they are over: with one, it is true of all earlier
/// lives of the same worker. Takes one entry for each worker, however often it came back.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Watermarks {
    highest: BTreeMap<WorkerId, Incarnation>,
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

    /// It is true of this life and those before it.
    pub(crate) fn raise(&mut self, node: NodeId) {
        let highest = self.highest.entry(node.worker).or_insert(node.incarnation);
        *highest = (*highest).max(node.incarnation);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
