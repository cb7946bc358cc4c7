//! The owner's side: values, the forks registered with them, fetches.

use super::*;
use crate::error::PeerMisbehaved;
use crate::limits::MAX_FORKS;
use crate::message::{Adoption, Creation, Declined, Registration, Share};
use crate::mutation::mutated;

/// What a fetch found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fetch<V> {
    /// The value.
    Ready(V),
    /// It is not there yet: an [`Event::Fetched`] follows.
    Waiting,
}

impl<V, H> RefTable<V, H> {
    /// Makes a reference to a value of this node, with one handle.
    pub fn create_local(&mut self, value: V, fingerprint: Fingerprint) -> Result<RRefId, RefError> {
        self.create_owner(Slot::Ready(value), fingerprint)
    }

    /// Makes a reference, with one handle, to a value that this node is going to compute for itself
    /// (a remote creation whose callee is the caller).
    pub fn create_self(&mut self, fingerprint: Fingerprint) -> Result<RRefId, RefError> {
        self.create_owner(Slot::Building, fingerprint)
    }

    fn create_owner(
        &mut self,
        slot: Slot<V>,
        fingerprint: Fingerprint,
    ) -> Result<RRefId, RefError> {
        self.check_alive()?;
        let rref = self.ids.rref();
        let owner = Owner {
            handles: 1,
            ..Owner::new(slot, fingerprint)
        };
        self.owners.insert(rref, owner);
        Ok(rref)
    }

    /// Takes in another node's request to own a value: registers and confirms it at once, before
    /// the value is there. The value follows by [`fulfil`](Self::fulfil).
    pub fn accept_creation(
        &mut self,
        from: NodeId,
        creation: Creation,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        let Creation { share, fingerprint } = creation;
        let Share { rref, fork } = share;
        if rref.origin != from || fork.origin != from {
            return Err(PeerMisbehaved::ForeignCreation { rref });
        }
        if self.users.contains_key(&rref) {
            // Somebody said that another node owns it (RT-13).
            self.decline(from, share, DeclineReason::Freed, out);
            return Ok(());
        }
        let known = self.owners.get(&rref);
        if known.is_some_and(|owner| !matches!(owner.slot, Slot::Pending)) {
            return Err(PeerMisbehaved::CreatedTwice { rref });
        }
        if let Some(owner) = self.owners.get_mut(&rref) {
            self.pending_owners.remove(rref);
            // Those who registered early may have believed another type; the creator knows. They
            // learn of a mismatch when they use the value.
            owner.fingerprint = fingerprint;
            owner.slot = Slot::Building;
            owner.forks.insert(fork, from);
        } else {
            let mut forks = ForkSet::default();
            forks.insert(fork, from);
            let owner = Owner {
                forks,
                ..Owner::new(Slot::Building, fingerprint)
            };
            self.owners.insert(rref, owner);
        }
        self.send(from, Control::Confirm(vec![share]), out);
        self.turn_away_mismatched(rref, fingerprint, out);
        Ok(())
    }

    /// Answers the fetches that came before the creation and expect another type.
    fn turn_away_mismatched(&mut self, rref: RRefId, found: Fingerprint, out: &mut Outbox<V>) {
        let Some(waiters) = self.waiting.get_mut(&rref) else {
            return;
        };
        for (waiter, expected) in waiters.extract_if(.., |(_, expected)| !expected.agrees(found)) {
            let outcome = Err(RefError::TypeMismatch {
                rref,
                expected,
                found,
            });
            out.event(Event::Fetched {
                waiter,
                rref,
                outcome,
            });
        }
        if waiters.is_empty() {
            self.waiting.remove(&rref);
        }
    }

    /// The value of a creation is there (or its error: to the protocol that is a value too).
    pub fn fulfil(&mut self, rref: RRefId, value: V, out: &mut Outbox<V>)
    where
        V: Clone,
    {
        let Some(owner) = self.owners.get_mut(&rref) else {
            return;
        };
        if !matches!(owner.slot, Slot::Building) {
            return;
        }
        owner.slot = Slot::Ready(value.clone());
        for (waiter, _) in self.waiting.remove(&rref).unwrap_or_default() {
            out.event(Event::Fetched {
                waiter,
                rref,
                outcome: Ok(value.clone()),
            });
        }
        self.free_if_unused(rref, out);
    }

    /// Asks for the value behind a reference that this node owns, for itself or for a holder.
    pub fn fetch(
        &mut self,
        rref: RRefId,
        fingerprint: Fingerprint,
        waiter: Waiter,
    ) -> Result<Fetch<V>, RefError>
    where
        V: Clone,
    {
        self.check_alive()?;
        if !self.owners.contains_key(&rref) {
            self.create_pending(rref, fingerprint, waiter.node)
                .map_err(|reason| match reason {
                    DeclineReason::CreatorLost => RefError::CreatorLost { rref },
                    DeclineReason::TooManyPending => RefError::TooManyPending { rref },
                    _ => RefError::Freed { rref },
                })?;
        }
        let Some(owner) = self.owners.get(&rref) else {
            return Err(RefError::Unknown { rref });
        };
        match &owner.slot {
            Slot::Void => Err(self.never_came(rref)),
            Slot::Pending => {
                self.waiting
                    .entry(rref)
                    .or_default()
                    .push((waiter, fingerprint));
                Ok(Fetch::Waiting)
            }
            _ if !owner.fingerprint.agrees(fingerprint) => Err(RefError::TypeMismatch {
                rref,
                expected: fingerprint,
                found: owner.fingerprint,
            }),
            Slot::Building => {
                self.waiting
                    .entry(rref)
                    .or_default()
                    .push((waiter, fingerprint));
                Ok(Fetch::Waiting)
            }
            Slot::Ready(value) => Ok(Fetch::Ready(value.clone())),
        }
    }

    /// Why there is no value, nor ever will be.
    pub(super) fn never_came(&self, rref: RRefId) -> RefError {
        match rref.origin == self.me {
            // Whoever made it up says that it was this node's (RT-13).
            true => RefError::Freed { rref },
            false => RefError::CreatorLost { rref },
        }
    }

    /// Forgets a fetch that waits.
    pub fn cancel_fetch(&mut self, rref: RRefId, waiter: Waiter, out: &mut Outbox<V>) {
        if let Some(waiters) = self.waiting.get_mut(&rref) {
            waiters.retain(|(other, _)| *other != waiter);
            if waiters.is_empty() {
                self.waiting.remove(&rref);
            }
            self.free_if_unused(rref, out);
        }
    }

    /// The value of a reference that this node owns, if it is there.
    pub fn value(&self, rref: RRefId) -> Result<Option<&V>, RefError> {
        self.check(rref)?;
        match self.owners.get(&rref) {
            Some(Owner {
                slot: Slot::Ready(value),
                ..
            }) => Ok(Some(value)),
            Some(_) => Ok(None),
            None => match self.users.get(&rref) {
                Some(user) => Err(RefError::NotOwner {
                    rref,
                    owner: user.owner,
                }),
                None => Err(RefError::Unknown { rref }),
            },
        }
    }

    /// A holder tells of a fork that it got from somebody else.
    pub fn on_register(
        &mut self,
        from: NodeId,
        registration: Registration,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        let Registration { share, fingerprint } = registration;
        // This node knows whom it made a fork for: nobody has to tell it.
        if share.fork.origin == self.me {
            let parent = self.me;
            return Err(PeerMisbehaved::ForeignFork { parent });
        }
        self.check_forks_of(from, share)?;
        match self.register(share, from, fingerprint, from) {
            Ok(()) => self.send(from, Control::Confirm(vec![share]), out),
            Err(reason) => self.decline(from, share, reason, out),
        }
        Ok(())
    }

    fn decline(&self, to: NodeId, share: Share, reason: DeclineReason, out: &mut Outbox<V>) {
        let declined = Declined { share, reason };
        self.send(to, Control::Decline(vec![declined]), out);
    }

    /// RT-12: a holder has one fork that it registered, and may be about to release another.
    fn check_forks_of(&self, holder: NodeId, share: Share) -> Result<(), PeerMisbehaved> {
        let Share { rref, fork } = share;
        let Some(Owner { forks, .. }) = self.owners.get(&rref) else {
            return Ok(());
        };
        if forks.as_slice().len() < MAX_FORKS || forks.contains(fork, holder) {
            return Ok(());
        }
        // Those that this node made for it itself are as many as messages are under way.
        let registered = |other: &&Fork| other.holder == holder && other.id.origin != self.me;
        if forks.as_slice().iter().filter(registered).count() >= MAX_FORKS {
            return Err(PeerMisbehaved::TooManyForks { rref });
        }
        Ok(())
    }

    /// A parent registers a fork that was on its way to a node that has departed.
    pub fn on_adopt(&mut self, from: NodeId, adoption: Adoption) -> Result<(), PeerMisbehaved> {
        let Adoption {
            share,
            holder,
            fingerprint,
        } = adoption;
        let Share { rref, fork } = share;
        if fork.origin != from {
            return Err(PeerMisbehaved::ForeignFork {
                parent: fork.origin,
            });
        }
        // After settling nothing of the departed may be added; by then whoever got the reference from
        // it has registered.
        if self.settled.covers(holder) {
            return Ok(());
        }
        // Nobody has to be told that an earlier life of this very worker is over; what it was handed, nobody has any more.
        if holder.is_over_with(self.me) && holder != self.me {
            return Ok(());
        }
        // The news of a departure goes before what is said because of it. Of one who lives only it itself may speak: it would have
        // forks that it does not know of, and never releases.
        let last = self.gone.last(holder.worker);
        let Some(holder) = last.filter(|last| holder.is_over_with(*last)) else {
            return Err(PeerMisbehaved::AdoptedForLiving { holder });
        };
        // RT-12: all that the departed has goes at one time, so one fork is as good as many, and with its last life all of its
        // lives are settled. Those that this node made for it may be undone before.
        let spoken_for = |fork: &Fork| fork.holder == holder && fork.id.origin != self.me;
        let known = self.owners.get(&rref);
        if known.is_some_and(|owner| owner.forks.as_slice().iter().any(spoken_for)) {
            return Ok(());
        }
        let declined = self.register(share, holder, fingerprint, from).err();
        // RT-7: the creator's own fork comes with the creation, on another lane. It waits for no answer, and may let go as
        // soon as that is here. The quota is for what others say of a value; the creator can make this node keep it anyway.
        if declined == Some(DeclineReason::TooManyPending)
            && rref.origin == from
            && !mutated!(self.mutant, AdoptWithinQuota)
        {
            self.insert_pending(rref, fingerprint, from);
            let _ = self.register(share, holder, fingerprint, from);
        }
        Ok(())
    }

    fn register(
        &mut self,
        share: Share,
        holder: NodeId,
        fingerprint: Fingerprint,
        teller: NodeId,
    ) -> Result<(), DeclineReason> {
        let Share { rref, fork } = share;
        if self.users.contains_key(&rref) {
            // This node knows another owner (RT-13).
            return Err(DeclineReason::Freed);
        }
        if !self.owners.contains_key(&rref) {
            self.create_pending(rref, fingerprint, teller)?;
        }
        let Some(owner) = self.owners.get_mut(&rref) else {
            return Err(DeclineReason::Freed);
        };
        // Only the creator knows the type; of a value that has not come it is whoever asked first who said.
        let known = !matches!(owner.slot, Slot::Pending | Slot::Void);
        if known && !owner.fingerprint.agrees(fingerprint) {
            let owner = owner.fingerprint;
            return Err(DeclineReason::TypeMismatch { owner });
        }
        if !mutated!(self.mutant, ConfirmWithoutRegistering) {
            owner.forks.insert(fork, holder);
        }
        Ok(())
    }

    /// Makes room for a value whose creation is still on its way (RT-10), of which a peer tells.
    pub(super) fn create_pending(
        &mut self,
        rref: RRefId,
        fingerprint: Fingerprint,
        teller: NodeId,
    ) -> Result<(), DeclineReason> {
        // This node's own creations are in the table from their first moment: what is missing was
        // freed. Likewise when the creator's departure is settled, nothing can come any more.
        if rref.origin == self.me || mutated!(self.mutant, NoPendingOwner) {
            return Err(DeclineReason::Freed);
        }
        if self.settled.covers(rref.origin) {
            return Err(DeclineReason::CreatorLost);
        }
        if !self.pending_owners.has_room_for(teller) {
            return Err(DeclineReason::TooManyPending);
        }
        self.insert_pending(rref, fingerprint, teller);
        Ok(())
    }

    pub(super) fn insert_pending(
        &mut self,
        rref: RRefId,
        fingerprint: Fingerprint,
        teller: NodeId,
    ) {
        self.pending_owners.insert(rref, teller);
        let owner = Owner::new(Slot::Pending, fingerprint);
        self.owners.insert(rref, owner);
    }

    /// A holder gives a fork back. Repeated releases change nothing.
    pub fn on_release(
        &mut self,
        from: NodeId,
        share: Share,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        let Some(owner) = self.owners.get_mut(&share.rref) else {
            return Ok(());
        };
        let Share { fork, .. } = share;
        if owner.forks.contains(fork, from) {
            if mutated!(self.mutant, FreeOnFirstRelease) {
                owner.forks = ForkSet::default();
                owner.handles = 0;
            } else {
                owner.forks.remove(fork, from);
            }
        } else if let Some(holder) = owner.forks.holder(fork) {
            return Err(PeerMisbehaved::NotHolder { holder });
        }
        self.free_if_unused(share.rref, out);
        Ok(())
    }

    /// Frees the value if RT-1 allows it.
    pub(super) fn free_if_unused(&mut self, rref: RRefId, out: &mut Outbox<V>) {
        let Some(owner) = self.owners.get(&rref) else {
            return;
        };
        let building = matches!(owner.slot, Slot::Building);
        if owner.handles > 0
            || !owner.forks.is_empty()
            || building
            || (self.waiting.contains_key(&rref) && !mutated!(self.mutant, FreeIgnoresWaiting))
        {
            return;
        }
        let Some(owner) = self.owners.remove(&rref) else {
            return;
        };
        match owner.slot {
            Slot::Ready(value) => out.event(Event::Freed { rref, value }),
            Slot::Pending => self.pending_owners.remove(rref),
            Slot::Building | Slot::Void => {}
        }
    }
}
