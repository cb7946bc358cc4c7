//! The reference table: who owns which value, who holds it, and when it may be freed.
//!
//! A reference is *owned* by one node and *held* by others. A holder's share is a *fork*, made by
//! the node that handed the reference to it (its *parent*) and registered with the owner. One
//! `RefTable` is one shard of one node's references: everything about one reference is in the shard
//! that [`RRefId::counter`](crate::RRefId) names, so shards need no common lock.
//!
//! # Invariants
//!
//! - **RT-1** A value is freed only when nothing refers to it: no handle on the owner, no registered
//!   fork, no waiting fetch, no running constructor.
//! - **RT-2** An owner that hands a reference out registers the fork before the message that carries
//!   it can leave (early registration).
//! - **RT-3** A user that hands a reference on keeps its own until the child has accepted; a child
//!   accepts only once it has a fork that the owner confirmed. So a fork that the owner does not
//!   know always has an ancestor that it does know.
//! - **RT-4** The owner confirms a fork only after registering it.
//! - **RT-5** A user releases only a confirmed fork, so a release never overtakes its registration.
//! - **RT-6** What a departed node held is released when its departure is *settled* (every member
//!   has said that it refuses the departed one's frames), by the path of an ordinary release.
//! - **RT-7** A parent whose child departed registers the child's fork in the child's name before it
//!   releases its own: the child may have handed it on. The owner keeps what the creator adopts before the creation is
//!   there, whatever the quota.
//! - **RT-8** A confirmation of a fork that is not held here is answered by its release. A late or
//!   repeated registration thus undoes itself; no tombstones are needed.
//! - **RT-9** Every carried fork is received once or undone once.
//! - **RT-10** A fork, a fetch or a hand-over that reaches the owner before the creation waits for it.
//! - **RT-11** When the owner departs, references to it are lost at once; parents are let go.
//! - **RT-12** No peer makes the owner keep more than a few forks of one value by registering them, nor more than one for each
//!   departed node by adopting them. What one peer says takes no fork from another.
//! - **RT-13** Whoever hands a reference on believes what it was told of it. Where two say that different nodes own it, or that a
//!   node owns what it has freed, nobody is cut off: the reference leads where it was first said to, or nowhere.

mod carry;
mod departure;
mod forks;
mod owner;
mod pending_owners;
mod report;
#[cfg(test)]
mod tests;
mod user;

use std::collections::BTreeSet;
use std::hash::{Hash, Hasher};

pub use owner::Fetch;
pub use report::{Leak, RefCounters};

use crate::error::RefError;
use crate::event::{Event, Waiter};
use crate::hash::{IdMap, id_map};
use crate::ids::{Fingerprint, ForkId, IdSource, NodeId, RRefId};
use crate::message::{Control, DeclineReason};
use crate::mutation::Mutant;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::outbox::Outbox;
use crate::slab::SlabMap;
use crate::watermarks::Watermarks;
use forks::{Fork, ForkSet};
use pending_owners::PendingOwners;

/// How one shard of a node's reference table is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefTableConfig {
    /// Which shard this is, below `shards`. Default 0.
    pub shard: u32,
    /// How many shards the node has. Default 1.
    pub shards: u32,
    /// Keeps peers from choosing ids that collide: random in production, constant in tests.
    /// Default 0.
    pub seed: u64,
    /// How many references to values not yet created the shard keeps for each peer that tells of them; one that asks
    /// for more is declined. Default 65,536.
    pub max_pending_owners: usize,
}

impl Default for RefTableConfig {
    fn default() -> Self {
        Self {
            shard: 0,
            shards: 1,
            seed: 0,
            max_pending_owners: 1 << 16,
        }
    }
}

/// One shard of a node's references, both those it owns and those it holds.
///
/// `V` is what the runtime keeps for an owned value, usually an `Arc`; `H` is what it keeps for a reference that its
/// program holds ([`keep_hold`](Self::keep_hold)).
#[derive(Clone, Debug)]
pub struct RefTable<V, H = ()> {
    me: NodeId,
    ids: IdSource,
    owners: SlabMap<RRefId, Owner<V, H>>,
    users: SlabMap<RRefId, User<H>>,
    /// Forks that this node, a user, handed on and whose receivers have not accepted yet.
    children: IdMap<ForkId, Child>,
    /// Parents to let go when the reference is confirmed.
    dues: IdMap<RRefId, Vec<ForkId>>,
    /// Why references were declined, which hardly one ever is.
    declined: IdMap<RRefId, DeclineReason>,
    /// Fetches that wait for a value, with the type that they expect.
    waiting: IdMap<RRefId, Vec<(Waiter, Fingerprint)>>,
    pending_owners: PendingOwners,
    gone: Watermarks,
    settled: Watermarks,
    /// References that departed nodes handed to this one, and whose owners have not answered the registration.
    unanswered: BTreeSet<RRefId>,
    destroyed: bool,
    mutant: Mutant,
}

/// What an owner knows about one value.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Owner<V, H> {
    slot: Slot<V>,
    forks: ForkSet,
    fingerprint: Fingerprint,
    /// Handles of the program on this node, and of its fetches.
    handles: u32,
    /// What the driver keeps of those. Most values are held elsewhere only.
    hold: Option<Box<H>>,
}

/// How far a value is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Slot<V> {
    /// Somebody referred to it, but its creation has not arrived.
    Pending,
    /// Being computed.
    Building,
    /// Here. A failed constructor's error is a value like any other.
    Ready(V),
    /// Its creator died before the creation arrived: it never will. Or somebody handed over what this node has freed.
    Void,
}

/// What a node knows about a reference to a value elsewhere: one entry however often it was received.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct User<H> {
    owner: NodeId,
    /// The fork that stands for this node at the owner.
    fork: ForkId,
    fingerprint: Fingerprint,
    /// Handles of the program on this node, and of its fetches.
    handles: u32,
    /// How many fetches are under way.
    fetches: u32,
    /// How many children have not accepted yet.
    children: u32,
    state: UserState,
    /// What the driver keeps of the program's handles.
    hold: Option<H>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum UserState {
    /// The owner has not confirmed the fork yet. The reference can be used, not released.
    Pending,
    /// The owner has registered the fork.
    Confirmed,
    /// The owner is gone.
    OwnerLost,
    /// The owner would not register the fork; `declined` says why.
    Declined,
}

/// A fork handed on by a user.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Child {
    rref: RRefId,
    to: NodeId,
}

impl<V, H> RefTable<V, H> {
    /// An empty shard of `me`'s table.
    pub fn new(me: NodeId, config: RefTableConfig) -> Self {
        let seed = config.seed;
        Self {
            me,
            ids: IdSource::new(me, config.shard, config.shards),
            owners: SlabMap::new(seed),
            users: SlabMap::new(seed),
            children: id_map(seed),
            dues: id_map(seed),
            declined: id_map(seed),
            waiting: id_map(seed),
            pending_owners: PendingOwners::new(seed, config.max_pending_owners),
            gone: Watermarks::default(),
            settled: Watermarks::default(),
            unanswered: BTreeSet::new(),
            destroyed: false,
            mutant: Mutant::default(),
        }
    }

    /// Breaks a rule on purpose.
    #[cfg(feature = "mutations")]
    pub fn mutate(&mut self, mutation: Mutation) {
        let broken = Some(mutation);
        self.mutant.broken = broken;
        self.gone.mutant.broken = broken;
        self.settled.mutant.broken = broken;
    }

    /// The node whose table this is.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// Takes another handle on a reference that is held already.
    pub fn add_handle(&mut self, rref: RRefId) -> Result<(), RefError> {
        self.check_alive()?;
        let handles = if let Some(owner) = self.owners.get_mut(&rref) {
            &mut owner.handles
        } else if let Some(user) = self.users.get_mut(&rref) {
            &mut user.handles
        } else {
            return Err(RefError::Unknown { rref });
        };
        if *handles == 0 {
            return Err(RefError::Unknown { rref });
        }
        *handles += 1;
        Ok(())
    }

    /// Gives a handle back. The last one releases the reference as soon as the protocol allows.
    pub fn drop_handle(&mut self, rref: RRefId, out: &mut Outbox<V>) {
        if self.drop_owner_handle(rref, out) {
            return;
        }
        if let Some(user) = self.users.get_mut(&rref) {
            user.handles = user.handles.saturating_sub(1);
            if user.program_handles() == 0 {
                user.hold = None;
            }
            self.release_if_unused(rref, out);
        }
    }

    /// The same, of a value that is here. Says whether it is.
    fn drop_owner_handle(&mut self, rref: RRefId, out: &mut Outbox<V>) -> bool {
        let Some(owner) = self.owners.get_mut(&rref) else {
            return false;
        };
        owner.handles = owner.handles.saturating_sub(1);
        if owner.handles == 0 {
            owner.hold = None;
        }
        self.free_if_unused(rref, out);
        true
    }

    /// Takes another handle, for a fetch of the value, until that is answered.
    pub(crate) fn begin_fetch(&mut self, rref: RRefId) -> Result<(), RefError> {
        self.add_handle(rref)?;
        if let Some(user) = self.users.get_mut(&rref) {
            user.fetches += 1;
        }
        Ok(())
    }

    /// The fetch has been answered, or never will be.
    pub(crate) fn end_fetch(&mut self, rref: RRefId, out: &mut Outbox<V>) {
        if let Some(user) = self.users.get_mut(&rref) {
            user.fetches = user.fetches.saturating_sub(1);
            user.handles = user.handles.saturating_sub(1);
            self.pay_dues_if_declined(rref, out);
            self.release_if_unused(rref, out);
        } else {
            self.drop_owner_handle(rref, out);
        }
    }

    /// Keeps something for a reference that the program has just got a handle on, until it has none any more. If it
    /// has others already, what is kept for the first of them stays.
    pub fn keep_hold(&mut self, rref: RRefId, hold: H) {
        if let Some(user) = self.users.get_mut(&rref) {
            user.hold.get_or_insert(hold);
        } else if let Some(owner) = self.owners.get_mut(&rref)
            && owner.hold.is_none()
        {
            owner.hold = Some(Box::new(hold));
        }
    }

    /// What is kept for a reference that the program holds, also after [`release_all_users`](Self::release_all_users),
    /// which releases references over the program's head.
    pub fn hold(&self, rref: RRefId) -> Option<&H> {
        if let Some(user) = self.users.get(&rref) {
            return user.hold.as_ref();
        }
        self.owners.get(&rref)?.hold.as_deref()
    }

    /// Where the value is.
    pub fn owner_of(&self, rref: RRefId) -> Option<NodeId> {
        if self.owners.contains_key(&rref) {
            return Some(self.me);
        }
        self.users.get(&rref).map(|user| user.owner)
    }

    /// The fork that stands for this node at the owner of a reference that it holds.
    pub fn fork_of(&self, rref: RRefId) -> Option<ForkId> {
        self.users.get(&rref).map(|user| user.fork)
    }

    /// Who has departed, for [`Watermarks::raise_all`].
    pub(crate) fn gone_mut(&mut self) -> &mut Watermarks {
        &mut self.gone
    }

    /// Whose departure is settled, for [`Watermarks::raise_all`].
    pub(crate) fn settled_mut(&mut self) -> &mut Watermarks {
        &mut self.settled
    }

    /// Whether the table knows that a node has departed.
    pub fn knows_departure_of(&self, node: NodeId) -> bool {
        self.gone.covers(node)
    }

    /// Whether the owners of all that departed nodes handed to this one have answered its registrations (ME-3).
    pub fn is_registered(&self) -> bool {
        self.unanswered.is_empty()
    }

    /// Whether the owner is known to have registered this node's reference.
    pub fn is_confirmed(&self, rref: RRefId) -> bool {
        self.owners.contains_key(&rref)
            || self
                .users
                .get(&rref)
                .is_some_and(|user| user.state == UserState::Confirmed)
    }

    /// Whether the reference can be used, and if not, why.
    pub fn check(&self, rref: RRefId) -> Result<(), RefError> {
        self.check_alive()?;
        if let Some(owner) = self.owners.get(&rref) {
            return match owner.slot {
                Slot::Void => Err(self.never_came(rref)),
                _ => Ok(()),
            };
        }
        match self.users.get(&rref) {
            Some(user) => self.check_user(rref, user),
            None => Err(RefError::Unknown { rref }),
        }
    }

    fn check_user(&self, rref: RRefId, user: &User<H>) -> Result<(), RefError> {
        match user.state {
            UserState::Pending | UserState::Confirmed => return Ok(()),
            UserState::OwnerLost => {
                let owner = user.owner;
                return Err(RefError::OwnerLost { rref, owner });
            }
            UserState::Declined => {}
        }
        Err(match self.declined.get(&rref) {
            Some(DeclineReason::Freed) | None => RefError::Freed { rref },
            Some(DeclineReason::CreatorLost) => RefError::CreatorLost { rref },
            Some(DeclineReason::TooManyPending) => RefError::TooManyPending { rref },
            Some(&DeclineReason::TypeMismatch { owner }) => RefError::TypeMismatch {
                rref,
                expected: user.fingerprint,
                found: owner,
            },
        })
    }

    fn check_alive(&self) -> Result<(), RefError> {
        if self.destroyed {
            return Err(RefError::Destroyed);
        }
        Ok(())
    }

    fn send(&self, to: NodeId, control: Control, out: &mut Outbox<V>) {
        if !self.gone.covers(to) {
            out.send(to, control);
        }
    }
}

impl<V, H> Owner<V, H> {
    /// A value that nobody refers to so far.
    fn new(slot: Slot<V>, fingerprint: Fingerprint) -> Self {
        Self {
            slot,
            forks: ForkSet::default(),
            fingerprint,
            handles: 0,
            hold: None,
        }
    }
}

impl<H> User<H> {
    /// A reference with one handle.
    fn new(owner: NodeId, fork: ForkId, fingerprint: Fingerprint, state: UserState) -> Self {
        Self {
            owner,
            fork,
            fingerprint,
            handles: 1,
            fetches: 0,
            children: 0,
            state,
            hold: None,
        }
    }

    /// Handles of the program alone.
    fn program_handles(&self) -> u32 {
        self.handles.saturating_sub(self.fetches)
    }

    /// Whether somebody counts on the value who is not registered for it, if this node is not.
    fn needs_its_parent(&self) -> bool {
        self.children > 0 || self.fetches > 0
    }
}

impl<V: PartialEq, H: PartialEq> PartialEq for RefTable<V, H> {
    fn eq(&self, other: &Self) -> bool {
        self.me == other.me
            && self.ids == other.ids
            && self.owners == other.owners
            && self.users == other.users
            && self.children == other.children
            && self.dues == other.dues
            && self.declined == other.declined
            && self.waiting == other.waiting
            && self.gone == other.gone
            && self.settled == other.settled
            && self.unanswered == other.unanswered
            && self.destroyed == other.destroyed
    }
}

impl<V: Eq, H: Eq> Eq for RefTable<V, H> {}

impl<V: Hash, H: Hash> Hash for RefTable<V, H> {
    fn hash<S: Hasher>(&self, state: &mut S) {
        self.me.hash(state);
        self.ids.hash(state);
        self.owners.hash(state);
        self.users.hash(state);
        self.children.hash(state);
        self.dues.hash(state);
        self.declined.hash(state);
        self.waiting.hash(state);
        self.gone.hash(state);
        self.settled.hash(state);
        self.unanswered.hash(state);
        self.destroyed.hash(state);
    }
}
