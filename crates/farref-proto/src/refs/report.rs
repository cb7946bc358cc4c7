//! Looking at the table, and closing it: counters, leaks, the forced release at shutdown.

use super::*;
use crate::hash::{least_keys, sorted_keys};
use crate::message::Share;

/// How much is in a table. All zero means that nothing is left.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct RefCounters {
    /// Values owned here, created or pending (PyTorch's `num_owner_rrefs`).
    pub owners: usize,
    /// Of those, the ones whose creation has not arrived.
    pub pending_owners: usize,
    /// Forks that others hold of them (PyTorch's `num_forks`).
    pub forks: usize,
    /// Fetches that wait for a value.
    pub waiting: usize,
    /// References to values elsewhere.
    pub users: usize,
    /// Of those, the ones that the owner has not confirmed (PyTorch's `num_pending_users`).
    pub pending_users: usize,
    /// Forks handed on and not yet accepted.
    pub pending_children: usize,
}

impl RefCounters {
    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl std::ops::AddAssign for RefCounters {
    fn add_assign(&mut self, other: Self) {
        self.owners += other.owners;
        self.pending_owners += other.pending_owners;
        self.forks += other.forks;
        self.waiting += other.waiting;
        self.users += other.users;
        self.pending_users += other.pending_users;
        self.pending_children += other.pending_children;
    }
}

/// Something that is still referred to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Leak {
    /// The reference.
    pub rref: RRefId,
    /// Where the value is.
    pub owner: NodeId,
    /// Its type.
    pub fingerprint: Fingerprint,
    /// Handles that the program on this node has not dropped.
    pub handles: u32,
    /// On the owner: who else holds it, by which fork.
    pub holders: Vec<(ForkId, NodeId)>,
}

impl<V, H> RefTable<V, H> {
    /// Counts what is in the table. Cost: one pass over it.
    pub fn counters(&self) -> RefCounters {
        let pending = |user: &&User<H>| user.state == UserState::Pending;
        RefCounters {
            owners: self.owners.len(),
            pending_owners: self.pending_owners.len(),
            forks: self
                .owners
                .values()
                .map(|owner| owner.forks.as_slice().len())
                .sum(),
            waiting: self.waiting.values().map(Vec::len).sum(),
            users: self.users.len(),
            pending_users: self.users.values().filter(pending).count(),
            pending_children: self.children.len(),
        }
    }

    /// How many values not yet created the table waits for because of the peer that told of most of them (PO-1).
    pub fn most_pending_of_one_peer(&self) -> usize {
        self.pending_owners.most_of_one()
    }

    /// Whether the table holds nothing at all.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
            && self.users.is_empty()
            && self.children.is_empty()
            && self.waiting.is_empty()
            && self.dues.is_empty()
            && self.declined.is_empty()
    }

    /// What in the table contradicts itself, if anything does. For tests and simulators, which look
    /// while everything goes on; cost: one pass over the table.
    pub fn inconsistency(&self) -> Option<String> {
        let waited_for = |rref: &RRefId| {
            let slot = self.owners.get(rref).map(|owner| &owner.slot);
            matches!(slot, Some(Slot::Pending | Slot::Building))
        };
        if let Some(rref) = sorted_keys(&self.waiting, |rref, _| !waited_for(rref)).first() {
            return Some(format!("a fetch waits for {rref}, which nobody is making"));
        }
        let pending = sorted_keys(&self.owners, |_, owner| matches!(owner.slot, Slot::Pending));
        if pending.len() != self.pending_owners.len() {
            let (count, counted) = (pending.len(), self.pending_owners.len());
            return Some(format!("{count} values are not created, {counted} counted"));
        }
        let unused = |owner: &Owner<V, H>| owner.handles == 0 && owner.forks.is_empty();
        let idle = |rref: &RRefId, owner: &Owner<V, H>| {
            unused(owner)
                && !matches!(owner.slot, Slot::Building)
                && !self.waiting.contains_key(rref)
        };
        if let Some(rref) = sorted_keys(&self.owners, idle).first() {
            return Some(format!("nobody needs {rref}, and it is kept"));
        }
        for rref in sorted_keys(&self.users, |_, _| true) {
            let user = self.users.get(&rref)?;
            let children = sorted_keys(&self.children, |_, child| child.rref == rref).len();
            if children != user.children as usize {
                return Some(format!(
                    "{rref} has {children} children and counts otherwise"
                ));
            }
            let held = user.handles > 0 || children > 0;
            if !held && user.state != UserState::Pending {
                return Some(format!("{rref} is not needed here, and it is kept"));
            }
        }
        let is_declined = |user: &User<H>| user.state == UserState::Declined;
        let undeclined =
            |rref: &RRefId, _: &DeclineReason| !self.users.get(rref).is_some_and(is_declined);
        if let Some(rref) = sorted_keys(&self.declined, undeclined).first() {
            return Some(format!("{rref} was not declined, and why is kept"));
        }
        let declined = sorted_keys(&self.users, |_, user| is_declined(user));
        if declined.len() != self.declined.len() {
            let (count, reasons) = (declined.len(), self.declined.len());
            return Some(format!(
                "{count} references were declined, {reasons} reasons kept"
            ));
        }
        let due = |rref: &RRefId, _: &Vec<ForkId>| {
            let state = self.users.get(rref).map(|user| user.state);
            !matches!(state, Some(UserState::Pending | UserState::Declined))
        };
        let unpaid = sorted_keys(&self.dues, due);
        unpaid
            .first()
            .map(|rref| format!("parents of {rref} wait for nothing"))
    }

    /// How many references the table knows, owned or held.
    pub fn len(&self) -> usize {
        self.owners.len() + self.users.len()
    }

    /// Lists what is still referred to, in the order of the ids.
    pub fn leaks(&self) -> Vec<Leak> {
        self.leaks_up_to(usize::MAX)
    }

    /// Lists what is still referred to: of the values owned here and of those held elsewhere at most
    /// so many each, those with the least ids, in their order. Cost: one pass, whatever the limit.
    pub fn leaks_up_to(&self, most: usize) -> Vec<Leak> {
        let owned = least_keys(&self.owners, most)
            .into_iter()
            .filter_map(|rref| {
                let owner = self.owners.get(&rref)?;
                Some(Leak {
                    rref,
                    owner: self.me,
                    fingerprint: owner.fingerprint,
                    handles: owner.handles,
                    holders: owner
                        .forks
                        .as_slice()
                        .iter()
                        .map(|fork| (fork.id, fork.holder))
                        .collect(),
                })
            });
        let held = least_keys(&self.users, most)
            .into_iter()
            .filter_map(|rref| {
                let user = self.users.get(&rref)?;
                Some(Leak {
                    rref,
                    owner: user.owner,
                    fingerprint: user.fingerprint,
                    handles: user.handles,
                    holders: Vec::new(),
                })
            });
        owned.chain(held).collect()
    }

    /// Takes all handles of references to values elsewhere away from the program, as a shutdown
    /// does that will wait no longer. Those still pending are released once they are confirmed.
    pub fn release_all_users(&mut self, out: &mut Outbox<V>) {
        for rref in sorted_keys(&self.users, |_, _| true) {
            if let Some(user) = self.users.get_mut(&rref) {
                user.handles = 0;
            }
            self.release_if_unused(rref, out);
        }
    }

    /// Frees the values that no other node refers to, whatever handles the program here has.
    pub fn free_unforked_owners(&mut self, out: &mut Outbox<V>) {
        for rref in sorted_keys(&self.owners, |_, owner| owner.forks.is_empty()) {
            if let Some(owner) = self.owners.get_mut(&rref) {
                owner.handles = 0;
            }
            self.free_if_unused(rref, out);
        }
    }

    /// Ends the table: everything in it is handed out or forgotten, and from now on every use is an
    /// error. Whoever waits for a fetch or a confirmation is told. Answers what was still referred to.
    pub fn destroy(&mut self, out: &mut Outbox<V>) -> Vec<Leak> {
        let leaks = self.leaks();
        self.destroyed = true;
        self.unanswered.clear();
        for rref in sorted_keys(&self.owners, |_, _| true) {
            if let Some(Owner {
                slot: Slot::Ready(value),
                ..
            }) = self.owners.remove(&rref)
            {
                out.event(Event::Freed { rref, value });
            }
        }
        for rref in sorted_keys(&self.waiting, |_, _| true) {
            for (waiter, _) in self.waiting.remove(&rref).unwrap_or_default() {
                out.event(Event::Fetched {
                    waiter,
                    rref,
                    outcome: Err(RefError::Destroyed),
                });
            }
        }
        for rref in sorted_keys(&self.users, |_, _| true) {
            let Some(user) = self.users.remove(&rref) else {
                continue;
            };
            match user.state {
                UserState::Confirmed => {
                    let fork = user.fork;
                    self.send(
                        user.owner,
                        Control::Release(vec![Share { rref, fork }]),
                        out,
                    );
                }
                UserState::Pending => {
                    let error = RefError::Destroyed;
                    out.event(Event::Lost { rref, error });
                }
                UserState::OwnerLost | UserState::Declined => {}
            }
        }
        self.children.clear();
        self.dues.clear();
        self.declined.clear();
        self.pending_owners.clear();
        leaks
    }
}
