//! Autograd contexts: which workers take part in one, when its last call is done, how it is released.
//!
//! A context is opened by its *origin* and reaches other workers with the calls made in it. Calls may
//! be nested and need not be awaited, so the origin learns that all of them are done by Dijkstra and
//! Scholten's method: a worker that is drawn in by a call says *done* for that call only when it has
//! nothing running and everything it caused is done. Then the origin releases: a cleanup floods along
//! the edges that calls took, and an answer comes back along the same edges.
//!
//! # Invariants
//!
//! - **CT-1** The origin releases a context only when every call made in it, directly or not, is done.
//! - **CT-2** A cleanup reaches every worker that took part; each forgets the context and says so
//!   when all it told have said so.
//! - **CT-3** A worker that was told of the release refuses late calls of that context.
//! - **CT-4** When a worker departs, the others that took part with it attach to the origin directly,
//!   so the cleanup reaches them whoever is missing. When the origin departs, all forget.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::iter;

use crate::error::{ContextError, PeerMisbehaved};
use crate::event::Event;
use crate::hash::{IdMap, id_map, sorted_keys};
use crate::ids::{ContextId, IdSource, NodeId};
use crate::message::Control;
#[cfg(feature = "mutations")]
use crate::mutation::Mutation;
use crate::mutation::{Mutant, mutated};
use crate::outbox::Outbox;
use crate::watermarks::Watermarks;

/// How many tables a node has, in every group: the origin's word on which of its contexts are closed
/// is given per shard, so both sides must count alike.
pub const CONTEXT_SHARDS: u32 = 4;

/// How many closed contexts of one origin are remembered one by one, above the lowest still open. A
/// call can be later than that only in a context that a death has failed; should it bring the context
/// back, the caller's attachment to the origin ends it.
const MAX_CLOSED: usize = 4096;

/// One shard of a node's contexts: those whose counter leaves its index as remainder.
#[derive(Clone, Debug)]
pub struct ContextTable {
    me: NodeId,
    ids: IdSource,
    contexts: IdMap<ContextId, Context>,
    /// Released here; answers of those told are awaited.
    closing: IdMap<ContextId, Closing>,
    closed: BTreeMap<NodeId, Closed>,
    /// Counters of own contexts not yet released.
    open: BTreeSet<u64>,
    gone: Watermarks,
    mutant: Mutant,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Context {
    /// Workers that this one called or was called by.
    known: BTreeSet<NodeId>,
    /// Calls of the context that run here.
    running: u32,
    /// Calls made from here that are not done, by callee.
    undone: BTreeMap<NodeId, u32>,
    /// Who drew this worker in: one *done* is owed to it until this worker is at rest.
    drawn_in_by: Option<NodeId>,
    owes: bool,
    releasing: bool,
    failed: Option<NodeId>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Closing {
    /// Whom to tell when all have answered; nobody on the origin.
    tell: Option<NodeId>,
    waiting: BTreeSet<NodeId>,
}

/// Which contexts of one origin are known to be closed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Closed {
    /// All below this are.
    below: u64,
    /// And these.
    also: BTreeSet<u64>,
}

impl Closed {
    fn contains(&self, counter: u64) -> bool {
        counter < self.below || self.also.contains(&counter)
    }

    fn insert(&mut self, counter: u64, below: u64) {
        self.below = self.below.max(below);
        self.also.insert(counter);
        self.also = self.also.split_off(&self.below);
        while self.also.len() > MAX_CLOSED {
            self.also.pop_first();
        }
    }
}

impl ContextTable {
    /// Shard `shard` of [`CONTEXT_SHARDS`] of `me`'s contexts.
    pub fn new(me: NodeId, shard: u32, seed: u64) -> Self {
        Self {
            me,
            ids: IdSource::new(me, shard, CONTEXT_SHARDS),
            contexts: id_map(seed),
            closing: id_map(seed),
            closed: BTreeMap::new(),
            open: BTreeSet::new(),
            gone: Watermarks::default(),
            mutant: Mutant::default(),
        }
    }

    /// Breaks a rule on purpose.
    #[cfg(feature = "mutations")]
    pub(crate) fn mutate(&mut self, mutation: Mutation) {
        self.mutant.broken = Some(mutation);
        self.gone.mutant.broken = Some(mutation);
    }

    /// Opens a context.
    pub fn open(&mut self) -> ContextId {
        let context = self.ids.context();
        self.open.insert(context.counter);
        self.contexts.insert(context, Context::default());
        context
    }

    /// Notes that a call is made in the context. If the call never leaves, say so with
    /// [`undo_call`](Self::undo_call).
    pub fn start_call(&mut self, context: ContextId, to: NodeId) -> Result<(), ContextError> {
        self.check(context)?;
        if let Some(entry) = self.contexts.get_mut(&context) {
            entry.known.insert(to);
            *entry.undone.entry(to).or_default() += 1;
        }
        Ok(())
    }

    /// Takes back a call that never left.
    pub fn undo_call<V>(&mut self, context: ContextId, to: NodeId, out: &mut Outbox<V>) {
        if let Some(entry) = self.contexts.get_mut(&context) {
            entry.subtract(to, 1);
            self.rest(context, out);
        }
    }

    /// A call made in the context arrived. When it has been worked on, and answered, say
    /// [`finish_call`](Self::finish_call).
    pub fn receive_call<V>(
        &mut self,
        context: ContextId,
        from: NodeId,
        out: &mut Outbox<V>,
    ) -> Result<(), ContextError> {
        let own = context.origin == self.me;
        let known = self.contexts.contains_key(&context);
        if !known && (own || self.is_closed(context)) {
            out.send(from, Control::ContextDone(vec![(context, 1)]));
            return Err(ContextError::Closed { context });
        }
        let entry = self.contexts.entry(context).or_default();
        entry.known.insert(from);
        entry.running += 1;
        let at_rest = entry.running == 1 && entry.undone.is_empty();
        if !own && at_rest && entry.drawn_in_by.is_none() {
            entry.drawn_in_by = Some(from);
        }
        Ok(())
    }

    /// A call that was received has been worked on.
    pub fn finish_call<V>(&mut self, context: ContextId, from: NodeId, out: &mut Outbox<V>) {
        let Some(entry) = self.contexts.get_mut(&context) else {
            return;
        };
        entry.running = entry.running.saturating_sub(1);
        if entry.drawn_in_by == Some(from) && !entry.owes {
            entry.owes = true;
        } else if !self.gone.covers(from) {
            out.send(from, Control::ContextDone(vec![(context, 1)]));
        }
        self.rest(context, out);
    }

    /// A callee says that calls, and all they caused, are done.
    pub fn on_done<V>(
        &mut self,
        from: NodeId,
        context: ContextId,
        calls: u32,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        if let Some(entry) = self.contexts.get_mut(&context) {
            if entry.undone.get(&from).copied().unwrap_or(0) < calls {
                return Err(PeerMisbehaved::UnexpectedDone { context });
            }
            entry.subtract(from, calls);
            self.rest(context, out);
        }
        Ok(())
    }

    /// Releases an own context as soon as all its calls are done;
    /// [`Event::ContextReleased`] follows when every worker has forgotten it.
    pub fn release<V>(
        &mut self,
        context: ContextId,
        out: &mut Outbox<V>,
    ) -> Result<(), ContextError> {
        if context.origin != self.me {
            return Err(ContextError::NotOrigin { context });
        }
        let Some(entry) = self.contexts.get_mut(&context) else {
            return Err(ContextError::Closed { context });
        };
        entry.releasing = true;
        self.rest(context, out);
        Ok(())
    }

    /// Somebody who knows passes on that the context is released.
    pub fn on_cleanup<V>(
        &mut self,
        from: NodeId,
        context: ContextId,
        below: u64,
        out: &mut Outbox<V>,
    ) {
        if context.origin == self.me {
            // It came round: this node was the first to forget it.
            out.send(from, Control::ContextCleaned(vec![context]));
            return;
        }
        self.remember_closed(context, below);
        if self.contexts.contains_key(&context) {
            self.close(context, Some(from), out);
        } else {
            out.send(from, Control::ContextCleaned(vec![context]));
        }
    }

    /// Those told through `from` have forgotten the context.
    pub fn on_cleaned<V>(&mut self, from: NodeId, context: ContextId, out: &mut Outbox<V>) {
        if let Some(closing) = self.closing.get_mut(&context) {
            closing.waiting.remove(&from);
            self.finish_closing(context, out);
        }
    }

    /// A worker that was drawn in by one now departed wants to be told of the release.
    pub fn on_attach<V>(
        &mut self,
        from: NodeId,
        context: ContextId,
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        if context.origin != self.me {
            return Err(PeerMisbehaved::Impersonation {
                node: context.origin,
            });
        }
        if let Some(entry) = self.contexts.get_mut(&context) {
            entry.known.insert(from);
        } else {
            if let Some(closing) = self.closing.get_mut(&context) {
                closing.waiting.insert(from);
            }
            out.send(
                from,
                Control::ContextCleanup(vec![(context, self.lowest_open())]),
            );
        }
        Ok(())
    }

    /// A node has departed, and with it all earlier lives of its worker: some of them may have called without ever having
    /// been in the view here.
    pub fn on_gone<V>(&mut self, node: NodeId, out: &mut Outbox<V>) {
        self.gone.raise(node);
        self.closed.retain(|life, _| !life.is_over_with(node));
        let of_contexts = self
            .contexts
            .iter()
            .flat_map(|(context, entry)| iter::once(&context.origin).chain(&entry.known));
        let of_closing = self
            .closing
            .values()
            .flat_map(|closing| closing.waiting.iter().chain(&closing.tell));
        let lives = of_contexts.chain(of_closing).copied();
        let over: BTreeSet<NodeId> = lives.filter(|life| life.is_over_with(node)).collect();
        for life in over {
            self.lose_life(life, out);
        }
    }

    fn lose_life<V>(&mut self, node: NodeId, out: &mut Outbox<V>) {
        for context in sorted_keys(&self.contexts, |context, entry| {
            context.origin == node || entry.known.contains(&node)
        }) {
            out.event(Event::ContextFailed { context, node });
            if context.origin == node {
                self.contexts.remove(&context);
                out.event(Event::ContextClosed(context));
                continue;
            }
            if let Some(entry) = self.contexts.get_mut(&context) {
                entry.lose(node);
            }
            if context.origin != self.me && !mutated!(self.mutant, NoAttach) {
                out.send(context.origin, Control::ContextAttach(vec![context]));
            }
            self.rest(context, out);
        }
        for context in sorted_keys(&self.closing, |_, _| true) {
            if let Some(closing) = self.closing.get_mut(&context) {
                closing.waiting.remove(&node);
                closing.tell = closing.tell.filter(|&other| other != node);
                self.finish_closing(context, out);
            }
        }
    }

    /// Forgets everything: this node is no longer part of the group. Whoever waits for a release is
    /// told that it will not come.
    pub fn destroy<V>(&mut self, out: &mut Outbox<V>) {
        let node = self.me;
        for context in self.contexts() {
            out.event(Event::ContextFailed { context, node });
            out.event(Event::ContextClosed(context));
        }
        let own = |context: &ContextId| context.origin == node;
        let open = sorted_keys(&self.contexts, |id, entry| own(id) && entry.releasing);
        let closing = sorted_keys(&self.closing, |id, _| own(id));
        for context in open.into_iter().chain(closing) {
            out.event(Event::ContextNotReleased(context));
        }
        self.contexts.clear();
        self.closing.clear();
        self.open.clear();
    }

    /// How many contexts are open or being closed.
    pub fn len(&self) -> usize {
        self.contexts.len() + self.closing.len()
    }

    /// Whether no context is open or being closed.
    pub fn is_empty(&self) -> bool {
        self.contexts.is_empty() && self.closing.is_empty()
    }

    /// The open contexts, in order.
    pub fn contexts(&self) -> Vec<ContextId> {
        sorted_keys(&self.contexts, |_, _| true)
    }

    /// Who has departed, for [`Watermarks::raise_all`].
    pub(crate) fn gone_mut(&mut self) -> &mut Watermarks {
        &mut self.gone
    }

    /// Whether the table knows that a node has departed.
    pub fn knows_departure_of(&self, node: NodeId) -> bool {
        self.gone.covers(node)
    }

    /// What in the table contradicts itself, if anything does. For tests and simulators.
    pub fn inconsistency(&self) -> Option<String> {
        for context in self.contexts() {
            let entry = self.contexts.get(&context)?;
            let own = context.origin == self.me;
            if own != self.open.contains(&context.counter) && own {
                return Some(format!("{context} is open and not counted so"));
            }
            let stranger = entry
                .undone
                .keys()
                .chain(&entry.drawn_in_by)
                .find(|node| !entry.known.contains(node));
            if let Some(node) = stranger {
                return Some(format!("{context} waits for {node}, which takes no part"));
            }
            let at_rest = entry.running == 0 && entry.undone.is_empty();
            if at_rest && (entry.releasing || entry.drawn_in_by.is_some()) {
                return Some(format!("{context} is at rest and says so to nobody"));
            }
        }
        let idle = sorted_keys(&self.closing, |_, closing| closing.waiting.is_empty());
        idle.first()
            .map(|context| format!("{context} is closed and says so to nobody"))
    }

    /// The nodes some of whose closed contexts are remembered, in order.
    pub fn closed_origins(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.closed.keys().copied()
    }

    /// Whether calls can be made in the context: it is open here and nobody who took part is gone.
    pub fn check(&self, context: ContextId) -> Result<(), ContextError> {
        match self.contexts.get(&context) {
            None => Err(self.missing(context)),
            Some(Context {
                failed: Some(node), ..
            }) => Err(ContextError::ParticipantLost {
                context,
                node: *node,
            }),
            Some(_) => Ok(()),
        }
    }

    /// The workers that this one shares the context with.
    pub fn known_workers(&self, context: ContextId) -> Vec<NodeId> {
        let entry = self.contexts.get(&context);
        entry
            .map(|entry| entry.known.iter().copied().collect())
            .unwrap_or_default()
    }

    fn is_closed(&self, context: ContextId) -> bool {
        let origin = context.origin;
        (self.gone.covers(origin) && !mutated!(self.mutant, ReopenDeadContext))
            || self.closing.contains_key(&context)
            || self
                .closed
                .get(&origin)
                .is_some_and(|closed| closed.contains(context.counter))
    }

    fn missing(&self, context: ContextId) -> ContextError {
        if context.origin == self.me || self.is_closed(context) {
            ContextError::Closed { context }
        } else {
            ContextError::Unknown { context }
        }
    }

    /// All contexts of this node and shard below this counter are closed.
    fn lowest_open(&self) -> u64 {
        let lowest = self.open.first().copied();
        lowest.unwrap_or_else(|| self.ids.next())
    }

    fn remember_closed(&mut self, context: ContextId, below: u64) {
        // With its origin a context is closed for good: nothing more need be known.
        if !self.gone.covers(context.origin) && !mutated!(self.mutant, ForgetClosedContext) {
            self.closed
                .entry(context.origin)
                .or_default()
                .insert(context.counter, below);
        }
    }

    /// If the worker is at rest in the context: pay what is owed, release what is to be released.
    fn rest<V>(&mut self, context: ContextId, out: &mut Outbox<V>) {
        let Some(entry) = self.contexts.get_mut(&context) else {
            return;
        };
        let at_rest = entry.running == 0 && entry.undone.is_empty();
        if at_rest {
            entry.owes = false;
            if let Some(node) = entry.drawn_in_by.take() {
                out.send(node, Control::ContextDone(vec![(context, 1)]));
            }
        }
        if entry.releasing && (at_rest || mutated!(self.mutant, ReleaseBusyContext)) {
            self.open.remove(&context.counter);
            self.close(context, None, out);
        }
    }

    /// Forgets the context and tells those who know it from here.
    fn close<V>(&mut self, context: ContextId, told_by: Option<NodeId>, out: &mut Outbox<V>) {
        let Some(mut entry) = self.contexts.remove(&context) else {
            return;
        };
        out.event(Event::ContextClosed(context));
        entry.known.remove(&self.me);
        if let Some(told_by) = told_by {
            entry.known.remove(&told_by);
        }
        let below = if context.origin == self.me {
            self.lowest_open()
        } else {
            self.closed
                .get(&context.origin)
                .map_or(0, |closed| closed.below)
        };
        for &node in &entry.known {
            out.send(node, Control::ContextCleanup(vec![(context, below)]));
        }
        let closing = Closing {
            tell: told_by,
            waiting: entry.known,
        };
        self.closing.insert(context, closing);
        self.finish_closing(context, out);
    }

    fn finish_closing<V>(&mut self, context: ContextId, out: &mut Outbox<V>) {
        if self
            .closing
            .get(&context)
            .is_some_and(|closing| closing.waiting.is_empty())
            && let Some(closing) = self.closing.remove(&context)
        {
            if let Some(node) = closing.tell {
                out.send(node, Control::ContextCleaned(vec![context]));
            }
            if context.origin == self.me {
                out.event(Event::ContextReleased(context));
            }
        }
    }
}

impl Context {
    fn subtract(&mut self, callee: NodeId, calls: u32) {
        if let Some(undone) = self.undone.get_mut(&callee) {
            *undone = undone.saturating_sub(calls);
            if *undone == 0 {
                self.undone.remove(&callee);
            }
        }
    }

    fn lose(&mut self, node: NodeId) {
        self.known.remove(&node);
        self.undone.remove(&node);
        if self.drawn_in_by == Some(node) {
            self.drawn_in_by = None;
            self.owes = false;
        }
        self.failed = Some(node);
    }
}

impl PartialEq for ContextTable {
    fn eq(&self, other: &Self) -> bool {
        self.me == other.me
            && self.ids == other.ids
            && self.contexts == other.contexts
            && self.closing == other.closing
            && self.closed == other.closed
            && self.open == other.open
            && self.gone == other.gone
    }
}

impl Eq for ContextTable {}

impl Hash for ContextTable {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.me.hash(state);
        self.ids.hash(state);
        self.contexts.hash(state);
        self.closing.hash(state);
        self.closed.hash(state);
        self.open.hash(state);
        self.gone.hash(state);
    }
}
