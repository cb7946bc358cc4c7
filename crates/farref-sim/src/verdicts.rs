//! What the oracle has to say to what programs see: the checks at the events that could break a
//! guarantee.

use farref_proto::{
    CallError, Carried, ContextError, ContextId, Fingerprint, NodeId, RRefId, RefError,
};

use crate::oracle::CallFact;
use crate::process::{Process, Value};
use crate::world::World;

impl World {
    /// R1: nobody alive holds what is freed.
    pub(crate) fn on_freed(&mut self, node: NodeId, rref: RRefId, value: Value) {
        let now = self.now;
        self.stats.freed += 1;
        let unprotected = match self.oracle.refs.get_mut(&rref) {
            Some(fact) if fact.freed || fact.value != Some(value) => {
                let what = format!("{node} freed {rref} twice or as another value");
                return self.oracle.violated("R1", now, what);
            }
            Some(fact) => {
                fact.freed = true;
                fact.unprotected
            }
            None => {
                let what = format!("{node} freed {rref}, which nobody made");
                return self.oracle.violated("R1", now, what);
            }
        };
        // What an evicted worker owned is lost, whoever holds it.
        if self.process(node).is_some_and(|process| process.evicted) {
            return;
        }
        let holds = |process: &&Process| {
            let turned_away = || {
                let used = process.node.refs(rref).check(rref);
                matches!(used, Err(RefError::TooManyPending { .. }))
            };
            process.program.holds(rref) && !turned_away()
        };
        let holders = self.processes.iter().flatten().filter(holds);
        for other in holders.map(Process::me).collect::<Vec<_>>() {
            if !unprotected && (other == node || self.together(node, other)) {
                let what = format!("{node} freed {rref}, which {other} holds");
                self.oracle.violated("R1", now, what);
            }
        }
        if let Some(process) = self.process(node) {
            for inner in process.program.inside.remove(&rref).unwrap_or_default() {
                process.node.drop_handle(inner, &mut process.out);
            }
        }
    }

    /// R1, R4: what arrives has not been freed. Those who take it in are told what becomes of it.
    pub(crate) fn received(&mut self, from: NodeId, to: NodeId, carried: &[Carried]) {
        for fork in carried {
            let rref = fork.share.rref;
            let own = self
                .process(to)
                .and_then(|process| process.node.refs(rref).fork_of(rref));
            if let Some(own) = own {
                let held = self.oracle.forks.entry((to, rref)).or_insert((own, false));
                if held.0 != own {
                    *held = (own, false);
                }
            }
            if let Some(process) = self.process(to) {
                process.program.handed_over += usize::from(fork.owner == to);
                let table = process.node.refs(rref);
                if table.check(rref).is_ok() && !table.is_confirmed(rref) {
                    process.program.unconfirmed.insert(rref);
                }
            }
            let unprotected = self.is_unprotected(from, fork.owner, rref);
            let Some(fact) = self.oracle.refs.get_mut(&rref) else {
                continue;
            };
            fact.unprotected |= unprotected;
            let promised = fact.freed && !fact.unprotected;
            let owner = fact.owner;
            if promised && self.together(owner, to) {
                let what = format!("{to} received {rref} from {from} after it was freed");
                self.oracle.violated("R1/R4", self.now, what);
            }
        }
    }

    /// Whether a worker hands a reference on for which nobody vouches: it was turned away for the quota, and
    /// whoever it has the reference from, and would wait for those who get it, is gone.
    fn is_unprotected(&mut self, from: NodeId, owner: NodeId, rref: RRefId) -> bool {
        let Some(process) = self.process(from) else {
            return false;
        };
        let table = process.node.refs(rref);
        let turned_away = matches!(table.check(rref), Err(RefError::TooManyPending { .. }));
        let Some(fork) = table.fork_of(rref).filter(|_| turned_away) else {
            return false;
        };
        let lost = |node: NodeId| {
            let process = self.process(node);
            process.is_some_and(|p| p.node.membership().view().is_gone(fork.origin))
        };
        [from, owner].into_iter().any(lost)
    }

    /// What a use of a reference, as some type, may answer.
    pub(crate) fn check_use(
        &mut self,
        user: NodeId,
        rref: RRefId,
        used_as: Option<Fingerprint>,
        outcome: Result<Value, RefError>,
    ) {
        let Some(fact) = self.oracle.refs.get(&rref).cloned() else {
            return;
        };
        let complaint = match outcome {
            Err(_) if fact.unprotected => false,
            Ok(value) => {
                fact.value != Some(value) || used_as.is_some_and(|it| !it.agrees(fact.fingerprint))
            }
            Err(RefError::OwnerLost { owner, .. }) => {
                let process = self.process(user);
                owner != fact.owner
                    || process.is_some_and(|p| !p.node.membership().view().is_gone(owner))
            }
            // Said by the owner, which knows whether the creator is gone.
            Err(RefError::CreatorLost { .. }) => {
                let gone = self
                    .process(fact.owner)
                    .is_none_or(|p| p.node.membership().view().is_gone(rref.origin));
                !gone || fact.value.is_some()
            }
            Err(RefError::TypeMismatch {
                expected, found, ..
            }) => found != fact.fingerprint || expected.agrees(found),
            Err(RefError::TooManyPending { .. }) => self.conditions.pending_quota.is_none(),
            Err(RefError::Destroyed) => false,
            Err(_) => self.together(user, fact.owner),
        };
        if complaint {
            let what = format!("{user} used {rref} of {} and got {outcome:?}", fact.owner);
            self.oracle.violated("R1/F2", self.now, what);
        }
    }

    pub(crate) fn check_call_error(&mut self, node: NodeId, to: NodeId, error: &CallError) {
        let complaint = match error {
            CallError::Reference(RefError::Unknown { .. }) => true,
            // Every member knows every other, until a split: a newcomer that two groups have heard of may
            // hand on a reference to one whom the receiver has not.
            CallError::PeerGone { .. } => {
                let known = self.counts(node, to) || !self.oracle.split;
                known && self.together(node, to)
            }
            _ => false,
        };
        if complaint {
            self.oracle
                .violated("F2", self.now, format!("{node} calls {to}: {error}"));
        }
    }

    /// A3: the calls of a released context are over.
    pub(crate) fn on_context_released(&mut self, node: NodeId, context: ContextId) {
        if let Some(process) = self.process(node) {
            process.program.contexts.retain(|&other| other != context);
            process.program.releases.remove(&context);
        }
        if self
            .oracle
            .contexts
            .get(&context)
            .is_some_and(|fact| fact.failed)
        {
            return;
        }
        let open = |call: &&CallFact| call.context == Some(context) && !call.over;
        if let Some(call) = self.oracle.calls.iter().find(open) {
            let what = format!(
                "{context} was released while a call from {} to {} runs in it",
                call.caller, call.callee
            );
            self.oracle.violated("A3", self.now, what);
        }
        // Whoever was cut off by a departure in the middle of the cleanup is told as soon as it asks.
        let view = self
            .process(node)
            .map(|p| p.node.membership().view().clone());
        let lost = |call: &CallFact| {
            let gone = |node| view.as_ref().is_none_or(|view| view.is_gone(node));
            call.context == Some(context) && (gone(call.caller) || gone(call.callee))
        };
        if self.oracle.calls.iter().any(lost) {
            return;
        }
        for other in self.running() {
            let open = self
                .process(other)
                .is_some_and(|process| process.node.open_contexts().contains(&context));
            if open && self.together(node, other) {
                let what = format!("{context} was released, and {other} was not told");
                self.oracle.violated("A3", self.now, what);
            }
        }
    }

    /// A context is over on a worker.
    pub(crate) fn on_context_closed(&mut self, node: NodeId, context: ContextId) {
        let fact = self.oracle.contexts.entry(context).or_default();
        fact.closed |= node == context.origin;
        if !fact.entered.remove(&node) {
            let what = format!("{context} ends on {node}, which takes no part in it");
            self.oracle.violated("A3", self.now, what);
        }
    }

    /// A3: a call is taken in in its context, which must not have been released before.
    pub(crate) fn check_entered(&mut self, node: NodeId, context: Option<ContextId>) {
        let Some(context) = context else {
            return;
        };
        let fact = self.oracle.contexts.entry(context).or_default();
        fact.entered.insert(node);
        let released = fact.closed_on.contains(&node);
        if released || self.origin_is_gone(node, context) {
            let what = format!("a late call brought {context} back on {node}");
            self.oracle.violated("A3", self.now, what);
        }
    }

    /// Whether a worker counts a context's origin as gone.
    fn origin_is_gone(&mut self, node: NodeId, context: ContextId) -> bool {
        let origin = context.origin;
        // A leaver still listens to itself.
        origin != node
            && self
                .process(node)
                .is_some_and(|p| p.node.membership().view().is_gone(origin))
    }

    /// A3: a call is refused only in a context that its origin has released, or that lost somebody.
    pub(crate) fn check_refusal(&mut self, node: NodeId, error: &CallError) {
        let CallError::Context(ContextError::Closed { context }) = *error else {
            return;
        };
        let fact = self.oracle.contexts.entry(context).or_default();
        let right = fact.closed || fact.failed;
        if !right && !self.origin_is_gone(node, context) {
            let what = format!("{node} refused a call in {context}, which is open");
            self.oracle.violated("A3", self.now, what);
        }
    }

    /// A worker departed: contexts that it may have taken part in promise nothing any more.
    pub(crate) fn context_members_lost(&mut self, node: NodeId) {
        for number in self.oracle.calls_of(node) {
            if let Some(context) = self.oracle.calls[number].context {
                self.oracle.contexts.entry(context).or_default().failed = true;
            }
        }
    }

    /// The calls that a dead worker made or was working on are over.
    pub(crate) fn calls_ended_by_death(&mut self, node: NodeId) {
        for number in self.oracle.calls_of(node) {
            self.oracle.calls[number].over = true;
        }
    }
}
