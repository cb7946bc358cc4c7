//! What the oracle has to say where workers need a majority of their group: no two sides of a split both go on, and nobody
//! gives up whose side is more than half. It counts for itself, from what workers report and know.

use std::collections::BTreeSet;
use std::time::Duration;

use farref_proto::{Departure, NodeId, Phase, Status, TooFew, WorkerId};

use crate::happening::{Fault, Happening};
use crate::process::Process;
use crate::world::{World, trace};

/// Whether a worker counts: it is a member, and somebody still works.
fn counts(process: &Process) -> bool {
    process.node.membership().phase() == Phase::Member && !process.node.quiescence().all_willing()
}

/// The members that are left in a worker's view, and the group that they are left of if it has lost these.
fn count(process: &Process, lost: impl Iterator<Item = WorkerId>) -> (usize, BTreeSet<WorkerId>) {
    let view = process.node.membership().view();
    let has_left = |worker: &WorkerId| {
        let standing = view.standing(*worker);
        standing.is_some_and(|standing| standing.status == Status::Left)
    };
    let mut group: BTreeSet<WorkerId> = view.live().map(|node| node.worker).collect();
    group.extend(lost.filter(|worker| !has_left(worker)));
    (view.members().count(), group)
}

impl World {
    /// F7, MJ-1: a worker has lost another, or seen it leave. It goes on, so more than half of its group are left.
    pub(crate) fn check_loss(&mut self, node: NodeId, peer: NodeId, departure: Departure) {
        if !self.config.require_majority {
            return;
        }
        let lost = self.oracle.lost.entry(node).or_default();
        if departure == Departure::Died {
            lost.insert(peer);
        }
        // It is told of lives that it never met, and does not count those.
        let met = self.oracle.met.entry(node).or_default();
        let was_met = met.contains(&peer);
        let lost: Vec<WorkerId> = lost.intersection(met).map(|node| node.worker).collect();
        let Some(process) = self.process(node) else {
            return;
        };
        let (left, group) = count(process, lost.iter().copied());
        if was_met && counts(process) && !lost.is_empty() && 2 * left <= group.len() {
            let what = format!("{node} goes on with {left} of {group:?}");
            self.oracle.violated("F7", self.now, what);
        }
    }

    /// F7, MJ-2: of two workers at most one gets to where all on its side know that the other is dead. After that nobody on
    /// its side waits any more.
    pub(crate) fn check_sides(&mut self, node: NodeId, departed: NodeId) {
        let lost = self.oracle.lost.get_mut(&node);
        let died = lost.is_some_and(|lost| lost.remove(&departed));
        if !died || !self.process(node).is_some_and(|process| counts(process)) {
            return;
        }
        self.oracle.buried.insert((node, departed));
        if self.oracle.buried.contains(&(departed, node)) {
            let what = format!("{node} and {departed} have gone on, each without the other");
            self.oracle.violated("F7", self.now, what);
        }
    }

    /// F7, MJ-1: whoever gives its group up has lost half of it. It is started again.
    pub(crate) fn check_minority(&mut self, node: NodeId, too_few: TooFew) {
        trace!(self, "{node} gives up: {too_few:?}");
        self.stats.faults.minorities += 1;
        let lost = self.oracle.lost.get(&node).cloned().unwrap_or_default();
        let Some(process) = self.process(node) else {
            return;
        };
        // Of those whom it has lost in this very step nothing was said. Some it may never have met, and does not count.
        let view = process.node.membership().view();
        let unsaid = view.standings().filter_map(|(worker, standing)| {
            let incarnation = standing.incarnation;
            let node = NodeId {
                worker,
                incarnation,
            };
            let known = process.node.tables_know_departure_of(node);
            (view.is_gone(node) && !known).then_some(worker)
        });
        let lost = lost.iter().map(|node| node.worker).chain(unsaid);
        let (left, group) = count(process, lost);
        if too_few.left != left || too_few.of > group.len() || 2 * left > group.len() {
            let what = format!("{node} gives up with {left} of {group:?}, and counts {too_few:?}");
            self.oracle.violated("F7", self.now, what);
        }
        let worker = node.worker.0;
        let at = self.now + Duration::from_micros(self.rng.u64(1_000..300_000));
        self.schedule(at, Happening::Fault(Fault::Restart { worker }));
    }
}
