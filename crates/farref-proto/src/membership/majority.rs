//! Whether a node still sees more than half of its group, where its program wants that
//! ([`NodeConfig::require_majority`](crate::NodeConfig::require_majority)).
//!
//! The protocol itself needs no majority: whoever cannot be reached is declared dead by those who are left, however few. This
//! is counted beside it whenever somebody has departed, and where too few are left the node gives its group up.
//!
//! # Invariants
//!
//! - **MJ-1** The group that is counted has the members, whoever is joining (somebody else may have let it in already), and
//!   whoever has died while not all who are left are known to know it: the others may take *that* for the group yet. Of
//!   those only the members are left, the node itself among them. Two lives of one worker count once. Who has left is no
//!   loss; but who leaves while a death is not settled may leave a node with too few.
//! - **MJ-2** Of two sides of a split at most one is more than half. Before anybody is left out of the count its
//!   departure is settled: then all who are counted know that it is gone, and take nothing from it any more (ME-2, ME-5), so they
//!   are on no side with it. And before anybody is a member all members have heard of it (ME-4), so that it counts for them.
//!   Half is not more than half: where a group is split into two equal sides, neither goes on.
//! - **MJ-3** What a node would have said in the step in which it gives up, or has not sent yet, stays unsaid: others may see
//!   whom it has lost.
//!   When all members want the shutdown nobody gives up, since nobody works any more, and who was done first may be gone.

use std::collections::BTreeSet;

use super::{Change, View};
use crate::ids::{NodeId, WorkerId};
use crate::mutation::{Mutant, mutated};
use crate::standing::{Departure, Status};

/// How many there are, and of how many, where that is too few.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TooFew {
    /// The members that are left, the worker itself among them.
    pub left: usize,
    /// The group that they are left of.
    pub of: usize,
}

/// Who is counted beside those in the view.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Majority {
    /// Who has died, and not all who are left are known to know it.
    lost: BTreeSet<NodeId>,
    pub(crate) mutant: Mutant,
}

impl Majority {
    /// Takes in what has changed, of which this is the view; answers whether too few are left.
    pub(crate) fn on_changes(&mut self, changes: &[Change], view: &View) -> Option<TooFew> {
        if mutated!(self.mutant, LossesForgotten) {
            self.lost.clear();
        }
        let mut somebody_went = false;
        for &change in changes {
            if let Change::Gone(node, departure) = change {
                let died = departure == Departure::Died;
                if died || mutated!(self.mutant, LeaversLost) {
                    self.lost.insert(node);
                }
                somebody_went |= died || !mutated!(self.mutant, LeavesUncounted);
            }
        }
        let too_few = (somebody_went && !self.lost.is_empty())
            .then(|| self.count(view))
            .flatten();
        // What all know now was not known to all before.
        for &change in changes {
            if let Change::Settled(node) = change
                && !mutated!(self.mutant, SettledLost)
            {
                self.lost.remove(&node);
            }
        }
        too_few
    }

    fn count(&self, view: &View) -> Option<TooFew> {
        let mut left = view.members().count();
        if mutated!(self.mutant, JoiningLeft) {
            left = view.live().count();
        }
        if mutated!(self.mutant, OneselfUncounted) {
            left = left.saturating_sub(1);
        }
        let counted = match mutated!(self.mutant, JoiningUncounted) {
            true => view.members().count(),
            false => view.live().count(),
        };
        let is_lost = |worker: &WorkerId| {
            let standing = view.standing(*worker);
            standing.is_none_or(|standing| match standing.status {
                Status::Dead => true,
                Status::Left => mutated!(self.mutant, LeaversLost),
                // Another life of it is there, and counted.
                Status::Joining | Status::Alive => false,
            })
        };
        let lost = self.lost.iter().map(|node| node.worker).filter(is_lost);
        let of = counted + lost.collect::<BTreeSet<_>>().len();
        let enough = 2 * left > of || mutated!(self.mutant, HalfIsEnough) && 2 * left == of;
        (!enough).then_some(TooFew { left, of })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::standing::Standing;

    fn node(worker: u32, incarnation: u32) -> NodeId {
        NodeId::new(worker, incarnation)
    }

    fn view(workers: &[u32]) -> View {
        View::of(workers.iter().map(|&worker| node(worker, 1)))
    }

    fn died(worker: u32) -> Change {
        Change::Gone(node(worker, 1), Departure::Died)
    }

    fn left(worker: u32) -> Change {
        Change::Gone(node(worker, 1), Departure::Left)
    }

    fn too_few(left: usize, of: usize) -> Option<TooFew> {
        Some(TooFew { left, of })
    }

    /// MJ-1, MJ-2
    #[test]
    fn of_five_three_go_on_and_two_do_not() {
        let mut three = Majority::default();
        assert_eq!(three.on_changes(&[died(3)], &view(&[0, 1, 2, 4])), None);
        assert_eq!(three.on_changes(&[died(4)], &view(&[0, 1, 2])), None);
        let mut two = Majority::default();
        assert_eq!(two.on_changes(&[died(0)], &view(&[1, 2, 3, 4])), None);
        assert_eq!(two.on_changes(&[died(1)], &view(&[2, 3, 4])), None);
        let last = two.on_changes(&[died(2)], &view(&[3, 4]));
        assert_eq!(last, too_few(2, 5));
        // Also where they are lost at once.
        let mut one = Majority::default();
        let at_once = one.on_changes(&[died(0), died(1)], &view(&[2]));
        assert_eq!(at_once, too_few(1, 3));
    }

    /// MJ-2: neither half goes on.
    #[test]
    fn a_half_is_no_majority() {
        for half in [1, 2, 3] {
            let here: Vec<u32> = (0..half).collect();
            let gone: Vec<Change> = (half..2 * half).map(died).collect();
            let counted = Majority::default().on_changes(&gone, &view(&here));
            assert_eq!(counted, too_few(here.len(), 2 * here.len()));
        }
    }

    /// MJ-1
    #[test]
    fn a_single_death_in_a_group_of_three_or_more_ends_nobody() {
        for group in 3..20 {
            let here: Vec<u32> = (0..group - 1).collect();
            let counted = Majority::default().on_changes(&[died(group - 1)], &view(&here));
            assert_eq!(counted, None);
        }
    }

    /// MJ-1
    #[test]
    fn what_all_know_is_the_group_from_then_on() {
        let mut left = Majority::default();
        for (gone, now) in [(4, &[0, 1, 2, 3][..]), (3, &[0, 1, 2]), (2, &[0, 1])] {
            assert_eq!(left.on_changes(&[died(gone)], &view(now)), None);
            let settled = Change::Settled(node(gone, 1));
            assert_eq!(left.on_changes(&[settled], &view(now)), None);
        }
        // Even if it settles at once, because nobody is left to be asked.
        let last = [died(1), Change::Settled(node(1, 1))];
        assert_eq!(left.on_changes(&last, &view(&[0])), too_few(1, 2));
    }

    /// MJ-1
    #[test]
    fn who_leaves_or_was_never_met_is_no_loss() {
        let mut here = Majority::default();
        assert_eq!(here.on_changes(&[left(1), left(2)], &view(&[0])), None);
        for gone in 3..9 {
            let never_met = Change::NeverMet(node(gone, 1));
            assert_eq!(here.on_changes(&[never_met], &view(&[0])), None);
        }
    }

    /// MJ-1: of four, each of two has lost the other, and the other two have left both. Either would be alone.
    #[test]
    fn who_leaves_while_a_death_is_not_settled_may_leave_too_few() {
        let mut here = Majority::default();
        let mut now = view(&[0, 2, 3]);
        now.raise(WorkerId(1), Standing::of(node(1, 1), Status::Dead));
        assert_eq!(here.on_changes(&[died(1)], &now), None);
        for (gone, left_now) in [(2, None), (3, too_few(1, 2))] {
            now.raise(WorkerId(gone), Standing::of(node(gone, 1), Status::Left));
            assert_eq!(here.on_changes(&[left(gone)], &now), left_now);
        }
    }

    /// MJ-1: they may be in on the other side, and are not known to be in on this one.
    #[test]
    fn who_is_joining_counts_and_is_not_left() {
        let joining = |count: u32| {
            let mut now = view(&[0, 1]);
            for worker in 3..3 + count {
                let standing = Standing::of(node(worker, 1), Status::Joining);
                now.raise(WorkerId(worker), standing);
            }
            Majority::default().on_changes(&[died(2)], &now)
        };
        assert_eq!(joining(0), None);
        assert_eq!(joining(1), too_few(2, 4));
        assert_eq!(joining(2), too_few(2, 5));
    }

    /// MJ-1
    #[test]
    fn a_worker_that_comes_back_counts_once() {
        let mut seen = Majority::default();
        let back = View::of([node(0, 1), node(1, 1), node(2, 2)]);
        assert_eq!(seen.on_changes(&[died(2)], &back), None);
        let again = Change::Gone(node(2, 2), Departure::Died);
        assert_eq!(seen.on_changes(&[again], &view(&[0, 1])), None);
    }
}
