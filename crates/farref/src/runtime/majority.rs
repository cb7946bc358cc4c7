//! Whether a worker still sees more than half of its group ([`require_majority`](crate::WorkerBuilder::require_majority)).
//!
//! The protocol needs no majority: whoever cannot be reached is declared dead by those who are left, however few. This is
//! counted beside it, and where too few are left the worker gives its group up instead.
//!
//! - **MJ-1** The group that is counted has the members, whoever is joining (somebody else may have let it in already), and
//!   whoever has died while not all who are left are known to know it: the others may take *that* for the group yet. Two lives of
//!   one worker count once. Who has left is no loss.
//! - **MJ-2** Of two sides of a split at most one is more than half. Before anybody is left out of the count its
//!   departure is settled: then all who are counted know that it is gone, and take nothing from it any more (ME-2, ME-5), so they
//!   are on no side with it. And before anybody is a member all members have heard of it (ME-4), so that it counts for them.

use std::collections::BTreeSet;

use farref_proto::{Departure, NodeId, Status, View, WorkerId};

/// Who is counted.
#[derive(Debug)]
pub(super) struct Majority {
    /// Who was a member or joining when this worker last looked. Of lives that it never met it is told that they are over, too.
    met: BTreeSet<NodeId>,
    /// Who has died, and not all who are left are known to know it.
    lost: BTreeSet<NodeId>,
}

/// How many there are, and of how many, where that is too few.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct TooFew {
    /// The members that are left, the worker itself among them.
    pub(crate) left: usize,
    /// The group that they are left of.
    pub(crate) of: usize,
}

impl Majority {
    pub(super) fn new(view: &View) -> Self {
        Self {
            met: view.live().collect(),
            lost: BTreeSet::new(),
        }
    }

    /// The view has changed, and whoever is gone in it has been counted.
    pub(super) fn look(&mut self, view: &View) {
        self.met = view.live().collect();
    }

    /// A life is over in this view.
    pub(super) fn gone(
        &mut self,
        node: NodeId,
        departure: Departure,
        view: &View,
    ) -> Option<TooFew> {
        if !self.met.remove(&node) || departure == Departure::Left {
            return None;
        }
        self.lost.insert(node);
        let left = view.members().count();
        // Several may be gone at once, and be told of one after the other.
        let others = self.met.union(&self.lost).copied();
        let workers = view.live().chain(others).map(|node| node.worker);
        let stays = |worker: &WorkerId| {
            let standing = view.standing(*worker);
            standing.is_none_or(|standing| standing.status != Status::Left)
        };
        let of = workers.filter(stays).collect::<BTreeSet<_>>().len();
        (2 * left <= of).then_some(TooFew { left, of })
    }

    /// All who are left know that it is over.
    pub(super) fn settled(&mut self, node: NodeId) {
        self.lost.remove(&node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(worker: u32, incarnation: u32) -> NodeId {
        NodeId::new(worker, incarnation)
    }

    fn view(workers: &[u32]) -> View {
        View::of(workers.iter().map(|&worker| node(worker, 1)))
    }

    fn too_few(left: usize, of: usize) -> Option<TooFew> {
        Some(TooFew { left, of })
    }

    /// MJ-1, MJ-2
    #[test]
    fn of_five_three_go_on_and_two_do_not() {
        let died = Departure::Died;
        let mut three = Majority::new(&view(&[0, 1, 2, 3, 4]));
        assert_eq!(three.gone(node(3, 1), died, &view(&[0, 1, 2, 4])), None);
        assert_eq!(three.gone(node(4, 1), died, &view(&[0, 1, 2])), None);
        let mut two = Majority::new(&view(&[0, 1, 2, 3, 4]));
        assert_eq!(two.gone(node(0, 1), died, &view(&[1, 2, 3, 4])), None);
        assert_eq!(two.gone(node(1, 1), died, &view(&[2, 3, 4])), None);
        assert_eq!(two.gone(node(2, 1), died, &view(&[3, 4])), too_few(2, 5));
        // Also where they are lost at once.
        let mut one = Majority::new(&view(&[0, 1, 2]));
        assert_eq!(one.gone(node(0, 1), died, &view(&[2])), too_few(1, 3));
    }

    /// MJ-2: neither half goes on.
    #[test]
    fn a_half_is_no_majority() {
        let mut half = Majority::new(&view(&[0, 1]));
        let gone = half.gone(node(1, 1), Departure::Died, &view(&[0]));
        assert_eq!(gone, too_few(1, 2));
    }

    /// MJ-1
    #[test]
    fn what_all_know_is_the_group_from_then_on() {
        let died = Departure::Died;
        let mut left = Majority::new(&view(&[0, 1, 2, 3, 4]));
        for (gone, now) in [(4, &[0, 1, 2, 3][..]), (3, &[0, 1, 2]), (2, &[0, 1])] {
            assert_eq!(left.gone(node(gone, 1), died, &view(now)), None);
            left.look(&view(now));
            left.settled(node(gone, 1));
        }
        assert_eq!(left.gone(node(1, 1), died, &view(&[0])), too_few(1, 2));
    }

    /// MJ-1
    #[test]
    fn who_leaves_or_was_never_met_is_no_loss() {
        let mut left = Majority::new(&view(&[0, 1, 2]));
        for gone in [1, 2] {
            let gone = left.gone(node(gone, 1), Departure::Left, &view(&[0]));
            assert_eq!(gone, None);
        }
        for gone in 3..9 {
            assert_eq!(left.gone(node(gone, 1), Departure::Died, &view(&[0])), None);
        }
    }

    /// MJ-1
    #[test]
    fn a_worker_that_comes_back_counts_once() {
        let mut seen = Majority::new(&view(&[0, 1, 2]));
        let back = View::of([node(0, 1), node(1, 1), node(2, 2)]);
        assert_eq!(seen.gone(node(2, 1), Departure::Died, &back), None);
        seen.look(&back);
        let again = view(&[0, 1]);
        assert_eq!(seen.gone(node(2, 2), Departure::Died, &again), None);
    }
}
