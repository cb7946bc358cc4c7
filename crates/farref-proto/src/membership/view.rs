//! The view that a node has of its group: the greatest standing of each worker.
//!
//! Standings only ever grow, so two views merge by taking the greater one of each worker, in any order, any number of
//! times, with the same result.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::{NodeId, WorkerId};
use crate::standing::{Digest, Standing, Status};

/// The latest standing of every worker that was ever a member.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct View {
    /// Shared with copies until either changes: a simulator has a view for each worker of a large group.
    standings: Arc<BTreeMap<WorkerId, Standing>>,
    /// How many of them are members or joining.
    live: usize,
    number: u64,
    digest: Digest,
}

impl View {
    /// The view in which exactly these nodes are alive.
    pub fn of(members: impl IntoIterator<Item = NodeId>) -> Self {
        let mut view = Self::default();
        for node in members {
            view.raise(node.worker, Standing::of(node, Status::Alive));
        }
        view
    }

    /// A number that grows with every change; equal views have equal numbers.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Stands for all standings.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The standing of a worker, if it was ever a member.
    pub fn standing(&self, worker: WorkerId) -> Option<Standing> {
        self.standings.get(&worker).copied()
    }

    /// How many workers were ever members.
    pub(super) fn len(&self) -> usize {
        self.standings.len()
    }

    /// How many are members or joining.
    pub fn live_count(&self) -> usize {
        self.live
    }

    /// All standings, by worker.
    pub fn standings(&self) -> impl Iterator<Item = (WorkerId, Standing)> + '_ {
        self.standings
            .iter()
            .map(|(&worker, &standing)| (worker, standing))
    }

    /// The members, by worker.
    pub fn members(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.lives(|standing| standing.status == Status::Alive)
    }

    /// The members and those who are joining, by worker.
    pub fn live(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.lives(Standing::is_live)
    }

    fn lives(&self, wanted: impl Fn(Standing) -> bool) -> impl Iterator<Item = NodeId> {
        self.standings().filter_map(move |(worker, standing)| {
            let incarnation = standing.incarnation;
            wanted(standing).then_some(NodeId {
                worker,
                incarnation,
            })
        })
    }

    /// Whether exactly this life of the worker is a member.
    pub fn is_member(&self, node: NodeId) -> bool {
        self.standing(node.worker) == Some(Standing::of(node, Status::Alive))
    }

    /// Whether exactly this life of the worker is a member or joining.
    pub fn is_live(&self, node: NodeId) -> bool {
        let now = self.standing(node.worker);
        now.is_some_and(|now| now.incarnation == node.incarnation && now.is_live())
    }

    /// Whether this life of the worker is over: it left, died, or was followed by another.
    pub fn is_gone(&self, node: NodeId) -> bool {
        let now = self.standing(node.worker);
        now.is_some_and(|now| now > Standing::of(node, Status::Alive))
    }

    /// Takes in a standing; answers the one before if it was news.
    pub(super) fn raise(&mut self, worker: WorkerId, to: Standing) -> Option<Option<Standing>> {
        let before = self.standing(worker);
        if before.is_some_and(|before| before >= to) {
            return None;
        }
        let height =
            |standing: Standing| 1 + 4 * u64::from(standing.incarnation.0) + standing.status as u64;
        self.number = self.number - before.map_or(0, height) + height(to);
        let rest = before.map_or(self.digest, |before| self.digest.without(worker, before));
        self.digest = rest.with(worker, to);
        self.live += usize::from(to.is_live());
        self.live -= usize::from(before.is_some_and(Standing::is_live));
        Arc::make_mut(&mut self.standings).insert(worker, to);
        Some(before)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ids::Incarnation;

    fn standing() -> impl Strategy<Value = (WorkerId, Standing)> {
        (0u32..4, 0u32..3, 0usize..4).prop_map(|(worker, incarnation, status)| {
            let all = [Status::Joining, Status::Alive, Status::Left, Status::Dead];
            let status = all[status];
            let incarnation = Incarnation(incarnation);
            (
                WorkerId(worker),
                Standing {
                    incarnation,
                    status,
                },
            )
        })
    }

    proptest! {
        #[test]
        fn views_merge_alike_in_any_order(mut entries in prop::collection::vec(standing(), 0..20), seed in any::<u64>()) {
            let mut forward = View::default();
            for &(worker, standing) in &entries {
                forward.raise(worker, standing);
            }
            let len = entries.len().max(1);
            entries.rotate_left(seed as usize % len);
            entries.reverse();
            let mut backward = View::default();
            for &(worker, standing) in entries.iter().chain(&entries) {
                backward.raise(worker, standing);
            }
            prop_assert_eq!(&forward, &backward);
        }

        #[test]
        fn the_number_grows_with_every_change(entries in prop::collection::vec(standing(), 0..20)) {
            let mut view = View::default();
            for (worker, standing) in entries {
                let before = view.number();
                let news = view.raise(worker, standing).is_some();
                prop_assert_eq!(view.number() > before, news);
                prop_assert_eq!(view.live_count(), view.live().count());
            }
        }
    }
}
