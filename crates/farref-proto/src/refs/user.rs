//! The user's side: references to values elsewhere, from their first moment to their release.

use super::*;
use crate::error::PeerMisbehaved;
use crate::message::{Creation, Share};
use crate::mutation::mutated;

impl<V, H> RefTable<V, H> {
    /// Makes a reference, with one handle, to a value that `owner` is asked to create. The result
    /// goes into the call that asks; the reference can be used and handed on at once.
    pub fn create_remote(
        &mut self,
        owner: NodeId,
        fingerprint: Fingerprint,
    ) -> Result<Creation, RefError> {
        self.check_alive()?;
        let rref = self.ids.rref();
        if self.gone.covers(owner) {
            return Err(RefError::OwnerLost { rref, owner });
        }
        let fork = self.ids.fork();
        self.users.insert(
            rref,
            User::new(owner, fork, fingerprint, UserState::Pending),
        );
        Ok(Creation {
            share: Share { rref, fork },
            fingerprint,
        })
    }

    /// Takes back a creation whose call could not be sent, be its owner gone by now or not. The
    /// reference must not have been handed on; if it was, nothing happens and the answer is `false`.
    pub fn abort_creation(&mut self, rref: RRefId) -> bool {
        let untouched = self.users.get(&rref).is_some_and(|user| {
            user.state != UserState::Confirmed && user.children == 0 && user.fork.origin == self.me
        });
        if untouched {
            self.remove_user(rref);
        }
        untouched
    }

    /// The owner has registered a fork.
    pub fn on_confirm(&mut self, from: NodeId, share: Share, out: &mut Outbox<V>) {
        let Share { rref, fork } = share;
        match self.users.get_mut(&rref) {
            Some(user) if user.fork == fork && user.owner == from => {
                if user.state == UserState::Pending {
                    user.state = UserState::Confirmed;
                    self.unanswered.remove(&rref);
                    out.event(Event::Confirmed(rref));
                    self.pay_dues(rref, out);
                    self.release_if_unused(rref, out);
                }
            }
            // RT-8: not ours any more; a repeated registration has brought it back.
            _ => {
                if !mutated!(self.mutant, NoEcho) {
                    self.send(from, Control::Release(vec![share]), out);
                }
            }
        }
    }

    /// The owner would not register a fork.
    pub fn on_decline(
        &mut self,
        from: NodeId,
        share: Share,
        reason: DeclineReason,
        out: &mut Outbox<V>,
    ) {
        let Share { rref, fork } = share;
        if let Some(user) = self.users.get_mut(&rref)
            && user.fork == fork
            && user.owner == from
            && user.state == UserState::Pending
        {
            user.state = UserState::Declined;
            self.unanswered.remove(&rref);
            self.declined.insert(rref, reason);
            self.lose(rref, out);
        }
    }

    /// A child says that its parent need not stay alive for it. Repeats change nothing.
    pub fn on_accept(
        &mut self,
        from: NodeId,
        share: Share,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        match self.children.get(&share.fork) {
            Some(child) if child.to != from => {
                return Err(PeerMisbehaved::NotHolder { holder: child.to });
            }
            Some(_) => self.forget_child(share.fork, out),
            None => {}
        }
        Ok(())
    }

    /// A child is accounted for: its parent may go if nothing else keeps it.
    pub(super) fn forget_child(&mut self, fork: ForkId, out: &mut Outbox<V>) {
        let Some(child) = self.children.remove(&fork) else {
            return;
        };
        if let Some(user) = self.users.get_mut(&child.rref) {
            user.children = user.children.saturating_sub(1);
            self.pay_dues_if_declined(child.rref, out);
            self.release_if_unused(child.rref, out);
        }
    }

    /// Nothing is left that the parent of a declined reference had to wait for.
    pub(super) fn pay_dues_if_declined(&mut self, rref: RRefId, out: &mut Outbox<V>) {
        let done = self
            .users
            .get(&rref)
            .is_some_and(|user| user.state == UserState::Declined && !user.needs_its_parent());
        if done {
            self.pay_dues(rref, out);
        }
    }

    /// Tells the parents that this node's reference stands on its own.
    pub(super) fn pay_dues(&mut self, rref: RRefId, out: &mut Outbox<V>) {
        self.pay_dues_but(rref, None, out);
    }

    /// The same, but for the parent that made this fork.
    fn pay_dues_but(&mut self, rref: RRefId, but: Option<ForkId>, out: &mut Outbox<V>) {
        let mut dues = self.dues.remove(&rref).unwrap_or_default();
        for fork in dues.extract_if(.., |fork| Some(*fork) != but) {
            self.send(
                fork.origin,
                Control::Accept(vec![Share { rref, fork }]),
                out,
            );
        }
        if !dues.is_empty() {
            self.dues.insert(rref, dues);
        }
    }

    /// The reference leads nowhere any more (its state says why): nobody needs to wait for it. If only
    /// this node was turned away, those whom it handed the reference to may not be, and a fetch of its own may
    /// arrive when the value is there: until they stand on their own and it is answered, the parent that this
    /// node has it from waits for them as well (RT-3, CA-1). Parents that handed it to this node once more do
    /// not: they might be among those.
    pub(super) fn lose(&mut self, rref: RRefId, out: &mut Outbox<V>) {
        let Some(user) = self.users.get(&rref) else {
            return;
        };
        let error = self.check_user(rref, user).err();
        let waits = user.needs_its_parent() && user.state != UserState::OwnerLost;
        let but = waits.then_some(user.fork);
        self.pay_dues_but(rref, but, out);
        if let Some(error) = error {
            out.event(Event::Lost { rref, error });
        }
        self.release_if_unused(rref, out);
    }

    /// Releases the reference if no handle and no child needs it and RT-5 allows it.
    pub(super) fn release_if_unused(&mut self, rref: RRefId, out: &mut Outbox<V>) {
        let Some(user) = self.users.get(&rref) else {
            return;
        };
        if user.handles > 0 || user.children > 0 {
            return;
        }
        let (owner, fork) = (user.owner, user.fork);
        match user.state {
            UserState::Pending if !mutated!(self.mutant, ReleaseUnconfirmed) => return,
            UserState::Pending | UserState::Confirmed => {
                self.send(owner, Control::Release(vec![Share { rref, fork }]), out);
            }
            UserState::OwnerLost | UserState::Declined => {}
        }
        self.remove_user(rref);
    }

    fn remove_user(&mut self, rref: RRefId) {
        let removed = self.users.remove(&rref);
        self.unanswered.remove(&rref);
        if removed.is_some_and(|user| user.state == UserState::Declined) {
            self.declined.remove(&rref);
        }
    }
}
