//! Who told of values whose creation has not arrived, so that each peer has a quota of its own.
//!
//! # Invariants
//!
//! - **PO-1** Whoever tells of more such values than its quota is declined, and nobody else is for that.
//!
//! A value counts for whoever told of it first. Whoever keeps what it was handed tells of what others have made up: who hands
//! 65,536 such references to a worker that drops none of them has that worker declined, which is told why. That harms nobody to
//! whom it did not hand them; to count by the creator that an id names would, since ids can be made up for anybody. What is kept here says nothing else about the table: two tables that
//! differ only in it are equal (see their `Hash`), since quotas are far from what groups need.

use std::collections::BTreeMap;

use crate::hash::{IdMap, id_map};
use crate::ids::{NodeId, RRefId};

/// The values that are waited for, by whom they were told of.
#[derive(Clone, Debug)]
pub(super) struct PendingOwners {
    tellers: IdMap<RRefId, NodeId>,
    told: BTreeMap<NodeId, usize>,
    quota: usize,
}

impl PendingOwners {
    pub(super) fn new(seed: u64, quota: usize) -> Self {
        Self {
            tellers: id_map(seed),
            told: BTreeMap::new(),
            quota,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.tellers.len()
    }

    /// How many the one told of that told of most.
    pub(super) fn most_of_one(&self) -> usize {
        self.told.values().copied().max().unwrap_or(0)
    }

    /// Whether a peer may tell of one more (PO-1).
    pub(super) fn has_room_for(&self, teller: NodeId) -> bool {
        self.told.get(&teller).copied().unwrap_or(0) < self.quota
    }

    pub(super) fn insert(&mut self, rref: RRefId, teller: NodeId) {
        if let Some(former) = self.tellers.insert(rref, teller) {
            self.forget_one_of(former);
        }
        *self.told.entry(teller).or_default() += 1;
    }

    /// It is created, or never will be.
    pub(super) fn remove(&mut self, rref: RRefId) {
        if let Some(teller) = self.tellers.remove(&rref) {
            self.forget_one_of(teller);
        }
    }

    pub(super) fn clear(&mut self) {
        self.tellers.clear();
        self.told.clear();
    }

    fn forget_one_of(&mut self, teller: NodeId) {
        if let Some(count) = self.told.get_mut(&teller) {
            *count -= 1;
            if *count == 0 {
                self.told.remove(&teller);
            }
        }
    }
}
