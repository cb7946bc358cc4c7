//! How much each peer has told of the group that is not settled yet.
//!
//! A peer can tell of lives that do not exist. Nobody can know that they do not, and whoever refused to know what its leader
//! knows would settle nothing. So what is told is believed, and *who* tells more than a group changes before it comes to
//! rest is cut off (ME-10).
//!
//! What was told before the settling before last is forgotten. Exactly what is settled could be known, but this is a limit and
//! not an account.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use crate::ids::NodeId;
use crate::mutation::{Mutant, mutated};

/// How much a node takes in of what others say of its group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Limits {
    /// How many lives a group has before it lets nobody in any more.
    pub(crate) members: usize,
    /// How many lives anybody may tell of: more than are let in, since several may let in the last ones at one time,
    /// and groups may meet.
    pub(crate) lives: usize,
    /// How many changes one peer may tell of before they are settled.
    pub(crate) unsettled: usize,
    /// How many standings are told to a life that was never heard.
    pub(crate) unheard: usize,
}

impl Limits {
    /// How many changes a peer may tell of. Whoever leads is told by others what they were told, and tells everybody.
    pub(super) fn unsettled_of(self, teller: NodeId, leader: NodeId, me: NodeId) -> usize {
        let times = if teller == leader {
            8
        } else if leader == me {
            2
        } else {
            1
        };
        self.unsettled.saturating_mul(times)
    }
}

/// Who has told of how many changes that are not settled.
///
/// All of them are equal to a comparison, as nodes that differ only here behave alike until somebody has told too much: a model
/// checker would walk the same states many times.
#[derive(Clone, Debug, Default)]
pub(super) struct Tellers {
    told: BTreeMap<NodeId, Told>,
    pub(super) mutant: Mutant,
}

#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Since something was last settled.
    since: usize,
    /// Before that, and since the settling before.
    before: usize,
}

impl Tellers {
    /// How much a peer has told of that is not settled.
    pub(super) fn told_by(&self, teller: NodeId) -> usize {
        self.told
            .get(&teller)
            .map_or(0, |told| told.since.saturating_add(told.before))
    }

    /// A peer has told of so many changes more.
    pub(super) fn add(&mut self, teller: NodeId, changes: usize) {
        if changes > 0 {
            let told = self.told.entry(teller).or_default();
            told.since = told.since.saturating_add(changes);
        }
    }

    /// Something is settled, by the word of this one. Nobody but the leader settles what it has told itself.
    pub(super) fn settled(&mut self, by: NodeId, leader: NodeId) {
        if mutated!(self.mutant, TellersUnforgiven) {
            return;
        }
        self.told.retain(|&teller, told| {
            if teller != by || by == leader {
                told.before = std::mem::take(&mut told.since);
            }
            told.before + told.since > 0
        });
    }

    /// It is gone, and tells nothing any more.
    pub(super) fn forget(&mut self, teller: NodeId) {
        self.told.remove(&teller);
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.told.len()
    }
}

impl PartialEq for Tellers {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Tellers {}

impl Hash for Tellers {
    fn hash<S: Hasher>(&self, _: &mut S) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(worker: u32) -> NodeId {
        NodeId::new(worker, 1)
    }

    /// ME-10
    #[test]
    fn what_was_told_is_forgotten_when_it_is_settled_and_not_before() {
        let [leader, teller] = [node(0), node(1)];
        let mut tellers = Tellers::default();
        tellers.add(teller, 3);
        tellers.settled(leader, leader);
        tellers.add(teller, 2);
        assert_eq!(tellers.told_by(teller), 5);
        tellers.settled(leader, leader);
        assert_eq!(tellers.told_by(teller), 2);
        tellers.settled(leader, leader);
        assert_eq!((tellers.told_by(teller), tellers.len()), (0, 0));
    }

    /// ME-10: whoever says that what it has told is settled has still told it.
    #[test]
    fn nobody_but_the_leader_settles_what_it_has_told() {
        let [leader, liar] = [node(0), node(1)];
        let mut tellers = Tellers::default();
        for teller in [leader, liar] {
            tellers.add(teller, 3);
            (0..3).for_each(|_| tellers.settled(teller, leader));
        }
        assert_eq!(tellers.told_by(leader), 0);
        assert_eq!(tellers.told_by(liar), 3);
        tellers.forget(liar);
        assert_eq!(tellers.len(), 0);
    }

    /// ME-10: whoever passes on what one peer has told it tells no more than it may.
    #[test]
    fn whoever_leads_takes_more_and_is_believed_more() {
        let limits = Limits {
            members: 4,
            lives: 16,
            unsettled: 10,
            unheard: 1,
        };
        let of = |teller, leader, me| limits.unsettled_of(node(teller), node(leader), node(me));
        assert_eq!([of(1, 0, 2), of(1, 0, 0), of(0, 0, 2)], [10, 20, 80]);
    }
}
