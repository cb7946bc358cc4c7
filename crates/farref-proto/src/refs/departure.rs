//! What a node's departure does to references: first when it is known here, then when it is settled.
//!
//! A departure is *known* when the membership view here no longer has the node: from then on none of
//! its frames is taken in. It is *settled* when every member has said the same. In between, other
//! members may still tell us of forks that the departed handed them; that is why what it held is
//! kept until it is settled (RT-6).
//!
//! With a life all earlier ones of the same worker are over, also those that were never in the view here: two groups have
//! met, or somebody connected and did not join.

use super::*;
use crate::hash::sorted_keys;
use crate::message::{Adoption, Share};
use crate::mutation::mutated;

impl<V, H> RefTable<V, H> {
    /// The node has departed as far as this node knows.
    pub fn on_gone(&mut self, node: NodeId, out: &mut Outbox<V>) {
        self.gone.raise(node);
        self.lose_owner(node, out);
        self.adopt_children_of(node, out);
        self.forget_parent(node);
        self.forget_waiter(node, out);
        if mutated!(self.mutant, ReleaseBeforeSettled) {
            self.on_settled(node, out);
        }
    }

    /// Every member knows that the node has departed: what it held is released.
    pub fn on_settled(&mut self, node: NodeId, out: &mut Outbox<V>) {
        self.settled.raise(node);
        let is_settled = |fork: &Fork| fork.holder.is_over_with(node);
        let never_comes = |rref: RRefId, slot: &Slot<V>| {
            rref.origin.is_over_with(node) && matches!(slot, Slot::Pending)
        };
        let affected = sorted_keys(&self.owners, |rref, owner| {
            let held = owner.forks.as_slice().iter().any(is_settled);
            held || never_comes(*rref, &owner.slot)
        });
        for rref in affected {
            let Some(owner) = self.owners.get_mut(&rref) else {
                continue;
            };
            if !mutated!(self.mutant, IgnoreDeadHolder) {
                owner.forks.remove_if(is_settled);
            }
            if never_comes(rref, &owner.slot) {
                owner.slot = Slot::Void;
                self.pending_owners.remove(rref);
                for (waiter, _) in self.waiting.remove(&rref).unwrap_or_default() {
                    out.event(Event::Fetched {
                        waiter,
                        rref,
                        outcome: Err(RefError::CreatorLost { rref }),
                    });
                }
            }
            self.free_if_unused(rref, out);
        }
    }

    /// RT-11: references to the departed node's values lead nowhere.
    fn lose_owner(&mut self, node: NodeId, out: &mut Outbox<V>) {
        if mutated!(self.mutant, IgnoreDeadOwner) {
            return;
        }
        let live = |state| matches!(state, UserState::Pending | UserState::Confirmed);
        for rref in sorted_keys(&self.users, |_, user| {
            user.owner.is_over_with(node) && live(user.state)
        }) {
            if let Some(user) = self.users.get_mut(&rref) {
                user.state = UserState::OwnerLost;
                self.unanswered.remove(&rref);
                self.lose(rref, out);
            }
        }
    }

    /// RT-7: forks that were on their way to the departed node are registered in its name, because
    /// it may have received them and handed them on.
    fn adopt_children_of(&mut self, node: NodeId, out: &mut Outbox<V>) {
        for fork in sorted_keys(&self.children, |_, child| child.to.is_over_with(node)) {
            let Some(&Child { rref, to }) = self.children.get(&fork) else {
                continue;
            };
            if let Some(user) = self.users.get(&rref)
                && !mutated!(self.mutant, NoAdoption)
            {
                let adoption = Adoption {
                    share: Share { rref, fork },
                    holder: to,
                    fingerprint: user.fingerprint,
                };
                self.send(user.owner, Control::Adopt(vec![adoption]), out);
            }
            self.forget_child(fork, out);
        }
    }

    /// A departed parent waits for nothing. But its departure does, for the registration (ME-3).
    fn forget_parent(&mut self, node: NodeId) {
        let Self {
            dues,
            users,
            unanswered,
            ..
        } = self;
        dues.retain(|rref, forks| {
            let before = forks.len();
            forks.retain(|fork| !fork.origin.is_over_with(node));
            let pending = |user: &User<H>| user.state == UserState::Pending;
            if forks.len() < before && users.get(rref).is_some_and(pending) {
                unanswered.insert(*rref);
            }
            !forks.is_empty()
        });
    }

    fn forget_waiter(&mut self, node: NodeId, out: &mut Outbox<V>) {
        for rref in sorted_keys(&self.waiting, |_, waiters| {
            waiters
                .iter()
                .any(|(waiter, _)| waiter.node.is_over_with(node))
        }) {
            if let Some(waiters) = self.waiting.get_mut(&rref) {
                waiters.retain(|(waiter, _)| !waiter.node.is_over_with(node));
                if waiters.is_empty() {
                    self.waiting.remove(&rref);
                }
            }
            self.free_if_unused(rref, out);
        }
    }
}
