//! References inside calls and answers: made ready by the sender, taken in by the receiver, undone
//! if the message never left.
//!
//! The four positions, for a reference owned by O:
//!
//! | sender → receiver | sender does | receiver does |
//! | --- | --- | --- |
//! | owner → user | registers the fork (RT-2) | holds it, confirmed |
//! | owner → itself | registers the fork | takes a handle, removes the fork |
//! | user → owner | keeps its own for a *phantom* child | takes a handle, accepts |
//! | user → user | keeps its own for the child (RT-3) | registers with O, accepts once confirmed |

use super::*;
use crate::error::PeerMisbehaved;
use crate::message::{Carried, Registration, Share};
use crate::mutation::mutated;

impl<V, H> RefTable<V, H> {
    /// Makes a fork of a held reference for `to`. Put the result into the message to `to`; if that
    /// message never leaves, give it to [`undo_fork`](Self::undo_fork).
    pub fn fork(&mut self, rref: RRefId, to: NodeId) -> Result<Carried, RefError> {
        self.check(rref)?;
        if self.gone.covers(to) {
            return Err(RefError::ReceiverLost { rref, node: to });
        }
        let fork = self.ids.fork();
        let share = Share { rref, fork };
        if let Some(owner) = self.owners.get_mut(&rref) {
            if owner.handles == 0 {
                return Err(RefError::Unknown { rref });
            }
            if !mutated!(self.mutant, NoEarlyRegistration) {
                owner.forks.insert(fork, to);
            }
            return Ok(Carried {
                share,
                owner: self.me,
                fingerprint: owner.fingerprint,
            });
        }
        let user = match self.users.get_mut(&rref) {
            Some(user) if user.handles > 0 => user,
            _ => return Err(RefError::Unknown { rref }),
        };
        if !mutated!(self.mutant, ForgetParentHold) {
            user.children += 1;
            self.children.insert(fork, Child { rref, to });
        }
        Ok(Carried {
            share,
            owner: user.owner,
            fingerprint: user.fingerprint,
        })
    }

    /// Takes back a fork whose message never left this node (RT-9).
    pub fn undo_fork(&mut self, carried: &Carried, out: &mut Outbox<V>) {
        if mutated!(self.mutant, NoUndo) {
            return;
        }
        let Share { rref, fork } = carried.share;
        if let Some(owner) = self.owners.get_mut(&rref) {
            if let Some(to) = owner.forks.holder(fork) {
                owner.forks.remove(fork, to);
            }
            self.free_if_unused(rref, out);
        } else {
            self.forget_child(fork, out);
        }
    }

    /// Takes in a fork that arrived from `from`, and a handle on it for the program. Whatever the
    /// program does not want it drops like any handle, so no fork is left open.
    pub fn receive(
        &mut self,
        from: NodeId,
        carried: &Carried,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        let parent = carried.share.fork.origin;
        if parent != from {
            return Err(PeerMisbehaved::ForeignFork { parent });
        }
        // RT-13: what was known before goes before what this one says.
        let rref = carried.share.rref;
        let is_owner = carried.owner == self.me && !self.users.contains_key(&rref);
        if is_owner || self.owners.contains_key(&rref) {
            self.receive_as_owner(from, carried, out);
        } else {
            self.receive_as_user(from, carried, out);
        }
        Ok(())
    }

    fn receive_as_owner(&mut self, from: NodeId, carried: &Carried, out: &mut Outbox<V>) {
        let Share { rref, fork } = carried.share;
        if !self.owners.contains_key(&rref) {
            match self.create_pending(rref, carried.fingerprint, from) {
                Ok(()) => {}
                // The quota is for what others may make this node keep. This one the program keeps.
                Err(DeclineReason::TooManyPending) => {
                    self.insert_pending(rref, carried.fingerprint, from);
                }
                // The program gets a handle all the same; using it says what happened.
                Err(_) => {
                    let void = Owner::new(Slot::Void, carried.fingerprint);
                    self.owners.insert(rref, void);
                }
            }
        }
        if let Some(owner) = self.owners.get_mut(&rref) {
            // What comes with a reference comes from its creator; whoever fetched it before may have guessed.
            if matches!(owner.slot, Slot::Pending | Slot::Void) {
                owner.fingerprint = carried.fingerprint;
            }
            owner.handles += 1;
            if from == self.me {
                owner.forks.remove(fork, from);
            }
        }
        if from != self.me {
            self.give_back(from, carried, out);
        }
    }

    fn receive_as_user(&mut self, from: NodeId, carried: &Carried, out: &mut Outbox<V>) {
        let Share { rref, fork } = carried.share;
        let from_owner = from == carried.owner;
        let Some(user) = self.users.get_mut(&rref) else {
            self.begin_hold(from_owner, carried, out);
            return;
        };
        user.handles += 1;
        if user.state == UserState::Pending && !from_owner {
            self.dues.entry(rref).or_default().push(fork);
        } else {
            // One fork at the owner is enough: this one goes back, even if the other is not
            // confirmed yet. That one's registration is under way and must not be forgotten.
            self.give_back(from, carried, out);
        }
    }

    /// This node needs nothing of whoever handed the reference to it: it stands on its own already, or is lost.
    fn give_back(&self, from: NodeId, carried: &Carried, out: &mut Outbox<V>) {
        let shares = vec![carried.share];
        match from == carried.owner {
            true => self.send(from, Control::Release(shares), out),
            false => self.send(from, Control::Accept(shares), out),
        }
    }

    /// Begins to hold a reference that was not held before.
    fn begin_hold(&mut self, from_owner: bool, carried: &Carried, out: &mut Outbox<V>) {
        let Carried {
            share,
            owner,
            fingerprint,
        } = *carried;
        let parent = share.fork.origin;
        let lost = self.gone.covers(owner);
        let state = match (lost, from_owner) {
            (true, _) => UserState::OwnerLost,
            (false, true) => UserState::Confirmed,
            (false, false) => UserState::Pending,
        };
        self.users
            .insert(share.rref, User::new(owner, share.fork, fingerprint, state));
        match state {
            UserState::Pending => {
                let registration = Registration { share, fingerprint };
                self.send(owner, Control::Register(vec![registration]), out);
                if mutated!(self.mutant, AcceptOnReceipt) {
                    self.send(parent, Control::Accept(vec![share]), out);
                } else {
                    self.dues.insert(share.rref, vec![share.fork]);
                }
            }
            UserState::OwnerLost if !from_owner => {
                self.send(parent, Control::Accept(vec![share]), out);
            }
            _ => {}
        }
    }
}
