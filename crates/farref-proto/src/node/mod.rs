//! One worker's whole protocol state: the tables, and the rules that tie them together.
//!
//! A `Node` is driven from outside: calls of the program and messages of peers come in, control
//! messages and events go into an [`Outbox`]. The driver brings messages to their peers (through a
//! [`Session`](crate::Session) each, or, in the model checker, through plain queues) and acts on
//! events. Control messages to one peer must arrive in the order in which they were put out.
//!
//! The parts of a node share nothing but this file's rules: references are in
//! [`RefTable`] shards, contexts in [`ContextTable`] shards, calls per peer. A driver with many
//! threads can therefore keep a lock for each.

mod calling;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::time::Duration;

pub use calling::{Answered, Arrival, Want};

use crate::calls::Calls;
use crate::context::{CONTEXT_SHARDS, ContextTable};
use crate::error::{CallError, ContextError, PeerMisbehaved, RefError};
use crate::event::Event;
use crate::ids::{ContextId, Fingerprint, Incarnation, MessageId, NodeId, RRefId};
use crate::limits::{MAX_BATCH, MAX_LIVES, MAX_MEMBERS, MAX_UNHEARD};
use crate::membership::{Change, Limits, Majority, Membership, Outcome, Quiescence, TooFew};
use crate::message::Control;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::mutation::{Mutant, mutated};
use crate::outbox::Outbox;
use crate::refs::{Leak, RefCounters, RefTable, RefTableConfig};
use crate::residue::Residue;
use crate::standing::{Departure, Phase};
use crate::time::Time;
use crate::watermarks::Watermarks;

/// How a node is set up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct NodeConfig {
    /// How many shards the reference table has. Default 1.
    pub ref_shards: u32,
    /// Keeps peers from choosing ids that collide: random in production, constant in tests.
    /// Default 0.
    pub seed: u64,
    /// How often the leader looks whether everyone is at rest during a shutdown. Default 50 ms.
    pub probe_interval: Duration,
    /// See [`RefTableConfig::max_pending_owners`]. Default 65,536 per shard.
    pub max_pending_owners: usize,
    /// Whether the node gives its group up ([`Event::Minority`]) when it no longer sees more than half of it. Default false.
    pub require_majority: bool,
    /// How many members a group has before it lets nobody in any more ([`Event::NoRoom`]). Default 16,384.
    pub max_members: usize,
    /// How many lives there may be at one time, members or joining, before a peer misbehaves that tells of more. It has to be
    /// more than are let in, since groups may meet that have grown apart. Default 65,536.
    pub max_lives: usize,
    /// How many changes of the group one peer may tell of before they are settled. Twice as many if this node leads the group,
    /// and eight times if the peer does: they pass on what others tell. Default 16,384.
    pub max_unsettled: usize,
    /// How many standings are told to a life before it was heard; if there are more, it is only asked to say something. Default 64.
    pub max_unheard: usize,
}

impl Default for NodeConfig {
    fn default() -> Self {
        Self {
            ref_shards: 1,
            seed: 0,
            probe_interval: Duration::from_millis(50),
            max_pending_owners: RefTableConfig::default().max_pending_owners,
            require_majority: false,
            max_members: MAX_MEMBERS,
            max_lives: MAX_LIVES,
            max_unsettled: MAX_MEMBERS,
            max_unheard: MAX_UNHEARD,
        }
    }
}

/// One worker's protocol state. The driver may keep something for each open call: `O` for those that it
/// makes, `I` for those of peers; and `H` for each reference that its program holds.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Node<V, O = (), I = (), H = ()> {
    me: NodeId,
    refs: Vec<RefTable<V, H>>,
    contexts: Vec<ContextTable>,
    membership: Membership,
    /// Whom this node has lost, where it needs most of its group.
    majority: Option<Majority>,
    quiescence: Quiescence,
    calls: BTreeMap<NodeId, Calls<O, I>>,
    /// For the tables of calls.
    seed: u64,
    /// What was kept for calls that were lost with their peers, until the driver asks for it.
    lost_outgoing: BTreeMap<(NodeId, MessageId), O>,
    lost_incoming: BTreeMap<(NodeId, MessageId), I>,
    /// What the driver does that a shutdown has to wait for.
    unfinished: u32,
    activity: Activity,
    mutant: Mutant,
}

/// Counts everything that a node does for its program or its peers. For a shutdown it would be enough to count
/// what brings work: whatever ends it was at work before.
///
/// All counts are equal to a comparison: two nodes that differ only here behave alike but for the
/// numbers in their shutdown reports. A model checker that told them apart would walk the same states
/// once for every way of getting there.
#[derive(Clone, Copy, Debug, Default)]
struct Activity(u64);

impl PartialEq for Activity {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Activity {}

impl Hash for Activity {
    fn hash<S: Hasher>(&self, _: &mut S) {}
}

impl<V: Clone> Node<V> {
    /// A node with the given place in its group, whose driver keeps nothing of its own in it.
    pub fn new(me: NodeId, membership: Membership, config: NodeConfig) -> Self {
        Self::with_records(me, membership, config)
    }
}

impl<V: Clone, O, I, H> Node<V, O, I, H> {
    /// A node with the given place in its group.
    pub fn with_records(me: NodeId, mut membership: Membership, config: NodeConfig) -> Self {
        membership.limit(Limits {
            members: config.max_members,
            lives: config.max_lives,
            unsettled: config.max_unsettled,
            unheard: config.max_unheard,
        });
        let shards = config.ref_shards.max(1);
        let table = |shard| {
            RefTable::new(
                me,
                RefTableConfig {
                    shard,
                    shards,
                    seed: config.seed,
                    max_pending_owners: config.max_pending_owners,
                },
            )
        };
        let contexts = |shard| ContextTable::new(me, shard, config.seed);
        Self {
            me,
            refs: (0..shards).map(table).collect(),
            contexts: (0..CONTEXT_SHARDS).map(contexts).collect(),
            membership,
            majority: config.require_majority.then(Majority::default),
            quiescence: Quiescence::new(config.probe_interval),
            calls: BTreeMap::new(),
            seed: config.seed,
            lost_outgoing: BTreeMap::new(),
            lost_incoming: BTreeMap::new(),
            unfinished: 0,
            activity: Activity::default(),
            mutant: Mutant::default(),
        }
    }

    /// Breaks a rule on purpose.
    #[cfg(feature = "mutations")]
    pub fn mutate(&mut self, mutation: Mutation) {
        self.refs
            .iter_mut()
            .for_each(|table| table.mutate(mutation));
        self.contexts
            .iter_mut()
            .for_each(|table| table.mutate(mutation));
        self.membership.mutate(mutation);
        self.quiescence.mutant.broken = Some(mutation);
        if let Some(majority) = &mut self.majority {
            majority.mutant.broken = Some(mutation);
        }
        self.mutant.broken = Some(mutation);
    }

    /// Who this is.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// The group as this node knows it.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// The graceful shutdown as this node knows it.
    pub fn quiescence(&self) -> &Quiescence {
        &self.quiescence
    }

    /// The shard of the reference table that a reference belongs to.
    pub fn refs(&self, rref: RRefId) -> &RefTable<V, H> {
        &self.refs[self.shard(rref)]
    }

    /// What is in the reference table.
    pub fn ref_counters(&self) -> RefCounters {
        let mut sum = RefCounters::default();
        self.refs.iter().for_each(|table| sum += table.counters());
        sum
    }

    /// How many values not yet created one shard waits for at the most because of one peer: as many as its quota, but for
    /// those that this node's program was handed and those that their creators adopted.
    pub fn most_pending_of_one_peer(&self) -> usize {
        let of_shards = self.refs.iter().map(RefTable::most_pending_of_one_peer);
        of_shards.max().unwrap_or(0)
    }

    /// Everything still referred to.
    pub fn leaks(&self) -> Vec<Leak> {
        let shards = 0..self.shards();
        let mut leaks: Vec<Leak> = shards
            .flat_map(|shard| self.leaks_in(shard, usize::MAX))
            .collect();
        leaks.sort_unstable_by_key(|leak| leak.rref);
        leaks
    }

    /// How many parts the table of references has.
    pub fn shards(&self) -> usize {
        self.refs.len()
    }

    /// What is still referred to in one part of the table, at most so much of each kind
    /// ([`RefTable::leaks_up_to`]). For those who must not stop a node with millions of references for as
    /// long as it takes to look at all of them.
    pub fn leaks_in(&self, shard: usize, most: usize) -> Vec<Leak> {
        let table = self.refs.get(shard);
        table.map_or_else(Vec::new, |table| table.leaks_up_to(most))
    }

    /// The contexts that this node takes part in.
    pub fn open_contexts(&self) -> Vec<ContextId> {
        let mut contexts: Vec<_> = self
            .contexts
            .iter()
            .flat_map(ContextTable::contexts)
            .collect();
        contexts.sort_unstable();
        contexts
    }

    /// Whether all tables know that a node has departed. They do if this node's view does.
    pub fn tables_know_departure_of(&self, node: NodeId) -> bool {
        let refs = self.refs.iter().all(|table| table.knows_departure_of(node));
        let mut contexts = self.contexts.iter();
        refs && contexts.all(|table| table.knows_departure_of(node))
    }

    /// What in this node's tables contradicts itself, if anything does. For tests and simulators, which
    /// look while everything goes on; cost: one pass over all tables.
    pub fn inconsistency(&self) -> Option<String> {
        let mut refs = self.refs.iter().filter_map(RefTable::inconsistency);
        let mut contexts = self.contexts.iter().filter_map(ContextTable::inconsistency);
        refs.next()
            .or_else(|| contexts.next())
            .or_else(|| self.membership.inconsistency())
    }

    /// The nodes some of whose closed contexts are remembered, so that late calls can be refused. None
    /// of them is gone.
    pub fn closed_origins(&self) -> Vec<NodeId> {
        let all = self.contexts.iter().flat_map(ContextTable::closed_origins);
        let mut origins: Vec<NodeId> = all.collect();
        origins.sort_unstable();
        origins.dedup();
        origins
    }

    /// What this node still has to do before it may shut down.
    pub fn residue(&self) -> Residue {
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let calls = count(self.calls.values().map(Calls::len).sum());
        Residue {
            wants_shutdown: self.quiescence.wants_shutdown(),
            calls: calls.saturating_add(self.unfinished),
            references: count(self.refs.iter().map(RefTable::len).sum()),
            contexts: count(self.contexts.iter().map(ContextTable::len).sum()),
            unsettled: u32::from(!self.membership.is_settled()),
        }
    }

    /// The driver begins something of its own that the shutdown is to wait for. It counts as a call that is being
    /// worked on.
    pub fn begin_work(&mut self) {
        self.activity.0 += 1;
        self.unfinished = self.unfinished.saturating_add(1);
    }

    /// What the driver [began](Self::begin_work) is done.
    pub fn end_work(&mut self) {
        self.unfinished = self.unfinished.saturating_sub(1);
    }

    /// Nobody waits any longer for what the driver [began](Self::begin_work).
    pub fn forget_work(&mut self) {
        self.unfinished = 0;
    }

    /// How many calls of this node are open whose answers the program still waits for: not those of others, and not
    /// those that it has cancelled. Cost: one pass over the open calls.
    pub fn wanted_calls(&self) -> usize {
        self.calls.values().map(Calls::wanted).sum()
    }

    /// Whether every table is empty.
    pub fn is_empty(&self) -> bool {
        self.refs.iter().all(RefTable::is_empty)
            && self.contexts.iter().all(ContextTable::is_empty)
            && self.calls.values().all(|calls| calls.len() == 0)
    }

    fn shard(&self, rref: RRefId) -> usize {
        (rref.counter % self.refs.len() as u64) as usize
    }

    fn table(&mut self, rref: RRefId) -> &mut RefTable<V, H> {
        let shard = self.shard(rref);
        &mut self.refs[shard]
    }

    fn context_table(&mut self, context: ContextId) -> &mut ContextTable {
        &mut self.contexts[(context.counter % u64::from(CONTEXT_SHARDS)) as usize]
    }

    /// A table to make the next id in: they take turns.
    fn next_table(&mut self) -> &mut RefTable<V, H> {
        self.activity.0 += 1;
        let shard = (self.activity.0 % self.refs.len() as u64) as usize;
        &mut self.refs[shard]
    }

    // References

    /// Makes a reference to a value of this node.
    pub fn create_local(&mut self, value: V, fingerprint: Fingerprint) -> Result<RRefId, RefError> {
        self.next_table().create_local(value, fingerprint)
    }

    /// Makes a reference to a value that this node is going to compute for itself.
    pub fn create_self(&mut self, fingerprint: Fingerprint) -> Result<RRefId, RefError> {
        self.next_table().create_self(fingerprint)
    }

    /// The same inside a context, which lives until [`finish_creation`](Self::finish_creation).
    pub fn create_self_in(
        &mut self,
        context: ContextId,
        fingerprint: Fingerprint,
        out: &mut Outbox<V>,
    ) -> Result<RRefId, CallError> {
        let me = self.me;
        self.context_table(context).start_call(context, me)?;
        let entered = self.context_table(context).receive_call(context, me, out);
        debug_assert!(entered.is_ok(), "the context is open: {entered:?}");
        let created = self.next_table().create_self(fingerprint);
        if created.is_err() {
            self.context_table(context).finish_call(context, me, out);
            self.loop_back(out);
        }
        Ok(created?)
    }

    /// Whether calls can be made in a context.
    pub fn check_context(&self, context: ContextId) -> Result<(), ContextError> {
        self.contexts[(context.counter % u64::from(CONTEXT_SHARDS)) as usize].check(context)
    }

    /// The workers that this one shares a context with, as far as it knows.
    pub fn context_workers(&self, context: ContextId) -> Vec<NodeId> {
        self.contexts[(context.counter % u64::from(CONTEXT_SHARDS)) as usize].known_workers(context)
    }

    /// Takes another handle on a held reference.
    pub fn add_handle(&mut self, rref: RRefId) -> Result<(), RefError> {
        self.activity.0 += 1;
        self.table(rref).add_handle(rref)
    }

    /// Keeps something for a reference that the program has just got a handle on ([`RefTable::keep_hold`]).
    pub fn keep_hold(&mut self, rref: RRefId, hold: H) {
        self.table(rref).keep_hold(rref, hold);
    }

    /// Gives a handle back.
    pub fn drop_handle(&mut self, rref: RRefId, out: &mut Outbox<V>) {
        self.activity.0 += 1;
        self.table(rref).drop_handle(rref, out);
        self.loop_back(out);
    }

    /// Takes all references away from the program: a shutdown that waits no longer.
    pub fn release_everything(&mut self, out: &mut Outbox<V>) {
        self.activity.0 += 1;
        for table in &mut self.refs {
            table.release_all_users(out);
            table.free_unforked_owners(out);
        }
        self.loop_back(out);
    }

    // Contexts

    /// Opens an autograd context.
    pub fn open_context(&mut self) -> ContextId {
        self.activity.0 += 1;
        let shard = (self.activity.0 % u64::from(CONTEXT_SHARDS)) as usize;
        self.contexts[shard].open()
    }

    /// Releases an own context when its calls are done.
    pub fn release_context(
        &mut self,
        context: ContextId,
        out: &mut Outbox<V>,
    ) -> Result<(), ContextError> {
        self.activity.0 += 1;
        let result = self.context_table(context).release(context, out);
        self.loop_back(out);
        result
    }

    // Membership

    /// Asks a member to let this node in.
    pub fn join(&mut self, sponsor: NodeId, out: &mut Outbox<V>) {
        let outcome = self.membership.join(sponsor);
        self.apply(outcome, out);
        self.proceed(out);
    }

    /// Says good-bye to the group. [`Event::Departed`] follows when all know.
    pub fn leave(&mut self, out: &mut Outbox<V>) {
        let outcome = self.membership.leave();
        self.apply(outcome, out);
        self.proceed(out);
    }

    /// Somebody else keeps the list of members and has put a node on it. Nobody is told.
    pub fn admit(&mut self, node: NodeId, out: &mut Outbox<V>) {
        let outcome = self.membership.admit(node);
        self.apply(outcome, out);
        self.proceed(out);
    }

    /// Somebody else keeps the list of members and has taken a node off it. Nobody is told, and nobody
    /// waited for: what it held is released at once.
    pub fn dismiss(&mut self, node: NodeId, departure: Departure, out: &mut Outbox<V>) {
        let outcome = self.membership.dismiss(node, departure);
        self.apply(outcome, out);
        self.proceed(out);
    }

    /// A peer cannot be reached: refused, or silent for too long.
    pub fn suspect(&mut self, node: NodeId, out: &mut Outbox<V>) {
        let outcome = self.membership.suspect(node);
        self.apply(outcome, out);
        self.proceed(out);
    }

    /// A peer refused this node because in the peer's view this life of it is over.
    pub fn refused(&mut self, by: NodeId, out: &mut Outbox<V>) {
        let outcome = self.membership.on_refused(by);
        self.apply(outcome, out);
        self.proceed(out);
    }

    /// A member does not talk to this node, and it is this node that goes: [`Event::Evicted`] follows, and the others
    /// are told that it has left.
    pub fn resign(&mut self, refused_by: NodeId, out: &mut Outbox<V>) {
        let outcome = self.membership.resign(refused_by);
        self.apply(outcome, out);
        self.proceed(out);
    }

    /// Counts who is left, if that matters (MJ-1); whether this node goes on.
    fn goes_on(&mut self, changes: &[Change], out: &mut Outbox<V>) -> bool {
        let Some(majority) = &mut self.majority else {
            return true;
        };
        let too_few = majority.on_changes(changes, self.membership.view());
        // MJ-3
        let counts = self.membership.phase() == Phase::Member && !self.quiescence.all_willing();
        match too_few {
            Some(too_few) if counts => self.give_up(too_few, out),
            _ => return true,
        }
        false
    }

    /// This node gives its group up, as if the others had declared it dead. Nobody is told: who sees it no more will declare
    /// it dead (MJ-3).
    fn give_up(&mut self, too_few: TooFew, out: &mut Outbox<V>) {
        out.event(Event::Minority(too_few));
        let outcome = self.membership.on_refused(self.me);
        self.apply(outcome, out);
        if !mutated!(self.mutant, GiveUpAloud) {
            out.forget_all();
        }
    }

    /// Asks for a graceful shutdown: when all members have, and all are at rest,
    /// [`Event::ShutdownComplete`] follows.
    pub fn shut_down(&mut self) {
        self.quiescence.start();
    }

    /// Says that the program only serves: it has nothing against a shutdown that somebody else asks for.
    pub fn serve(&mut self) {
        self.quiescence.serve();
    }

    /// When [`poll`](Self::poll) wants to be called next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.quiescence.poll_timeout()
    }

    /// Does what is due by now.
    pub fn poll(&mut self, now: Time, out: &mut Outbox<V>) {
        let mine = (self.activity.0, self.residue());
        let was_complete = self.quiescence.is_complete();
        for (to, control) in self.quiescence.poll(now, self.me, &self.membership, mine) {
            out.send(to, control);
        }
        if self.quiescence.is_complete() && !was_complete {
            self.membership.let_nobody_in();
            out.event(Event::ShutdownComplete);
        }
    }

    // Messages

    /// Takes in a control message of a peer. Those of nodes that are no members are ignored (ME-2).
    pub fn handle(
        &mut self,
        from: NodeId,
        control: Control,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        if self.membership.has_early_suspects() {
            self.membership.heard(from);
            let outcome = self.membership.report_early_suspects();
            self.apply(outcome, out);
        }
        let result = self.dispatch(from, control, out);
        self.membership.met(from);
        self.loop_back(out);
        self.proceed(out);
        result
    }

    /// Membership goes on when the tables have installed all that came.
    fn proceed(&mut self, out: &mut Outbox<V>) {
        if self.membership.is_busy() {
            let registered = self.refs.iter().all(RefTable::is_registered);
            let outcome = self.membership.proceed(registered);
            self.apply(outcome, out);
        }
    }

    fn dispatch(
        &mut self,
        from: NodeId,
        control: Control,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        if self.is_over() {
            return Ok(());
        }
        self.membership.heard(from);
        if !self.listens_to(from) {
            let outcome = match control {
                Control::Join => self.membership.on_join(from),
                Control::Leaving => self.membership.on_leaving(from),
                _ => return Ok(()),
            };
            self.apply(outcome, out);
            return Ok(());
        }
        // A newcomer only asks to be let in, and says back what it was told.
        if let Control::View { ask: Some(_), .. }
        | Control::Settled(_)
        | Control::Suspect(_)
        | Control::Accused(_)
        | Control::Probe { .. } = control
        {
            let outcome = self.membership.on_word_of_member(from);
            self.apply(outcome, out);
            if self.is_over() {
                return Ok(());
            }
        }
        match control {
            Control::Register(list) => {
                self.each(list, |node, entry| {
                    node.table(entry.share.rref).on_register(from, entry, out)
                })?;
            }
            Control::Confirm(list) => {
                self.each(list, |node, share| {
                    node.table(share.rref).on_confirm(from, share, out);
                    Ok(())
                })?;
            }
            Control::Decline(list) => {
                self.each(list, |node, entry| {
                    let table = node.table(entry.share.rref);
                    table.on_decline(from, entry.share, entry.reason, out);
                    Ok(())
                })?;
            }
            Control::Release(list) => {
                self.each(list, |node, share| {
                    node.table(share.rref).on_release(from, share, out)
                })?;
            }
            Control::Accept(list) => {
                self.each(list, |node, share| {
                    node.table(share.rref).on_accept(from, share, out)
                })?;
            }
            Control::Adopt(list) => {
                self.each(list, |node, entry| {
                    node.table(entry.share.rref).on_adopt(from, entry)
                })?;
            }
            Control::ContextDone(list) => {
                self.each(list, |node, (context, calls)| {
                    node.context_table(context)
                        .on_done(from, context, calls, out)
                })?;
            }
            Control::ContextCleanup(list) => {
                self.each(list, |node, (context, below)| {
                    node.context_table(context)
                        .on_cleanup(from, context, below, out);
                    Ok(())
                })?;
            }
            Control::ContextCleaned(list) => {
                self.each(list, |node, context| {
                    node.context_table(context).on_cleaned(from, context, out);
                    Ok(())
                })?;
            }
            Control::ContextAttach(list) => {
                self.each(list, |node, context| {
                    node.context_table(context).on_attach(from, context, out)
                })?;
            }
            // QU-5
            Control::Join if self.quiescence.is_complete() => {}
            Control::Join => {
                let outcome = self.membership.on_join(from);
                self.apply(outcome, out);
            }
            Control::Welcome(entries) => {
                self.membership.check_entries(from, &entries)?;
                let outcome = self.membership.on_welcome(from, entries);
                self.apply(outcome, out);
            }
            Control::View { entries, ask } => {
                self.membership.check_entries(from, &entries)?;
                let outcome = self.membership.on_view(from, entries, ask);
                self.apply(outcome, out);
            }
            Control::NoRoom { limit } => {
                let outcome = self.membership.on_no_room(from, limit);
                self.apply(outcome, out);
            }
            Control::Known(digest) => self.membership.on_known(from, digest),
            Control::Unlike { asked, mine } => {
                let outcome = self.membership.on_unlike(from, asked, mine);
                self.apply(outcome, out);
            }
            Control::Settled(digest) => {
                let outcome = self.membership.on_settled(from, digest);
                self.apply(outcome, out);
            }
            Control::Leaving => {
                let outcome = self.membership.on_leaving(from);
                self.apply(outcome, out);
            }
            Control::Farewell => {
                let outcome = self.membership.said_good_bye(from);
                self.apply(outcome, out);
            }
            Control::Suspect(node) => {
                self.membership.check_suspicion(from, node)?;
                let outcome = self.membership.on_suspect(from, node);
                self.apply(outcome, out);
            }
            Control::Accused(by) => {
                self.membership.check_suspicion(from, by)?;
                let outcome = self.membership.on_accused(from, by);
                self.apply(outcome, out);
            }
            Control::Probe {
                round,
                all_willing,
                waiting_for,
            } => {
                let len = waiting_for.len();
                if len > MAX_BATCH {
                    return Err(PeerMisbehaved::BatchTooLong { len });
                }
                let mine = (self.activity.0, self.residue());
                let told = (all_willing, waiting_for);
                let (to, report) = self.quiescence.on_probe(from, round, told, mine);
                out.send(to, report);
            }
            Control::Report {
                round,
                activity,
                residue,
            } => self.quiescence.on_report(from, round, (activity, residue)),
            Control::Finish => {
                if self.quiescence.on_finish() {
                    self.membership.let_nobody_in();
                    out.event(Event::ShutdownComplete);
                }
            }
        }
        Ok(())
    }

    /// Whether the others have ended this life: nothing that anybody says concerns it any more.
    fn is_over(&self) -> bool {
        self.membership.phase() == Phase::Evicted
    }

    /// ME-2, and a node always listens to itself, even while it is leaving. One that it has not heard
    /// of yet may be a member all the same, let in by somebody who knew no better.
    fn listens_to(&self, node: NodeId) -> bool {
        node == self.me
            || !self.membership.view().is_gone(node)
            || mutated!(self.mutant, KeepListening)
    }

    fn each<T>(
        &mut self,
        list: Vec<T>,
        mut handle: impl FnMut(&mut Self, T) -> Result<(), PeerMisbehaved>,
    ) -> Result<(), PeerMisbehaved> {
        if list.len() > MAX_BATCH {
            return Err(PeerMisbehaved::BatchTooLong { len: list.len() });
        }
        self.activity.0 += 1;
        list.into_iter().try_for_each(|entry| handle(self, entry))
    }

    /// Handles what this node has said to itself.
    fn loop_back(&mut self, out: &mut Outbox<V>) {
        while let Some(control) = out.pop_control_for(self.me) {
            // A node that misbehaves towards itself has no peer to cut off; its tests would fail.
            let handled = self.dispatch(self.me, control, out);
            debug_assert!(handled.is_ok(), "{handled:?}");
        }
    }

    /// Installs membership changes in the tables and puts out what follows from them.
    ///
    /// The news of a departure goes before what the tables say because of it: a node that hears, say,
    /// that a fork of a departed one is adopted must know of the departure, even if the sender dies
    /// in between.
    fn apply(&mut self, outcome: Outcome, out: &mut Outbox<V>) {
        if !self.goes_on(&outcome.changes, out) {
            return;
        }
        let mut effects = Outbox::new();
        let mut departed = BTreeMap::new();
        for change in outcome.changes {
            if let Change::Gone(node, _) = change {
                out.forget(node);
            }
            // Somebody who was never met may have been handed something, too.
            if let Change::Gone(node, _) | Change::NeverMet(node) = change {
                departed.extend(self.membership.entry(node.worker));
            }
            self.install(change, &mut effects);
        }
        for (to, control) in outcome.messages {
            out.send(to, control);
        }
        if !departed.is_empty() && !mutated!(self.mutant, ActUntold) {
            for to in effects.receivers().filter(|&to| to != self.me) {
                let entries: Vec<_> = departed.iter().map(|(&worker, &at)| (worker, at)).collect();
                for entries in entries.chunks(MAX_BATCH) {
                    let entries = entries.to_vec();
                    out.send(to, Control::View { entries, ask: None });
                }
            }
        }
        out.append(effects);
        self.loop_back(out);
    }

    /// A life is over, and with it all earlier ones of its worker.
    fn lose(&mut self, node: NodeId, departure: Departure, out: &mut Outbox<V>) {
        self.remember_gone(node);
        self.refs
            .iter_mut()
            .for_each(|table| table.on_gone(node, out));
        self.contexts
            .iter_mut()
            .for_each(|table| table.on_gone(node, out));
        let of_worker = NodeId {
            incarnation: Incarnation(0),
            ..node
        }..=node;
        let callers: Vec<NodeId> = self.calls.range(of_worker).map(|(&life, _)| life).collect();
        for life in callers {
            self.abandon_calls(life, out);
        }
        out.event(Event::Gone { node, departure });
    }

    /// All tables know who has departed; there is one memory of it for all of them.
    fn remember_gone(&mut self, node: NodeId) {
        let refs = self.refs.iter_mut().map(RefTable::gone_mut);
        let contexts = self.contexts.iter_mut().map(ContextTable::gone_mut);
        Watermarks::raise_all(refs.chain(contexts), node);
    }

    fn install(&mut self, change: Change, out: &mut Outbox<V>) {
        match change {
            Change::Joined(node) => out.event(Event::Joined(node)),
            Change::Gone(node, departure) => self.lose(node, departure, out),
            // There may be a connection all the same, and calls.
            Change::NeverMet(node) => self.lose(node, Departure::Died, out),
            Change::Settled(node) => {
                let settled = self.refs.iter_mut().map(RefTable::settled_mut);
                Watermarks::raise_all(settled, node);
                self.refs
                    .iter_mut()
                    .for_each(|table| table.on_settled(node, out));
                out.event(Event::Settled(node));
            }
            Change::NoRoom(node, limit) => out.event(Event::NoRoom { node, limit }),
            Change::Welcomed => out.event(Event::Welcomed),
            Change::Departed => out.event(Event::Departed),
            Change::Evicted => {
                out.event(Event::Evicted);
                self.refs
                    .iter_mut()
                    .for_each(|table| drop(table.destroy(out)));
                self.contexts
                    .iter_mut()
                    .for_each(|table| table.destroy(out));
                let peers: Vec<NodeId> = self.calls.keys().copied().collect();
                peers
                    .into_iter()
                    .for_each(|peer| self.abandon_calls(peer, out));
            }
        }
    }
}
