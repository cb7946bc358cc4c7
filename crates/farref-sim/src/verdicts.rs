//! What the oracle has to say to what programs see: the checks at the events that could break a
//! guarantee.

use farref_proto::{CallError, Carried, ContextId, NodeId, RRefId, RefError};

use crate::oracle::CallFact;
use crate::process::Value;
use crate::world::World;

impl World {
    /// R1: nobody alive holds what is freed.
    pub(crate) fn on_freed(&mut self, node: NodeId, rref: RRefId, value: Value) {
        let now = self.now;
        self.stats.freed += 1;
        match self.oracle.refs.get_mut(&rref) {
            Some(fact) if fact.freed || fact.value != Some(value) => {
                let what = format!("{node} freed {rref} twice or as another value");
                return self.oracle.violated("R1", now, what);
            }
            Some(fact) => fact.freed = true,
            None => {
                let what = format!("{node} freed {rref}, which nobody made");
                return self.oracle.violated("R1", now, what);
            }
        }
        for other in self.running() {
            let holds = self.process(other).is_some_and(|p| p.program.holds(rref));
            if holds && (other == node || self.together(node, other)) {
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

    /// R1, R4: what arrives has not been freed.
    pub(crate) fn check_received(&mut self, from: NodeId, to: NodeId, carried: &[Carried]) {
        for fork in carried {
            let rref = fork.share.rref;
            let Some(fact) = self.oracle.refs.get(&rref) else {
                continue;
            };
            if fact.freed && self.together(fact.owner, to) {
                let what = format!("{to} received {rref} from {from} after it was freed");
                self.oracle.violated("R1/R4", self.now, what);
            }
        }
    }

    /// What a use of a reference may answer.
    pub(crate) fn check_use(
        &mut self,
        user: NodeId,
        rref: RRefId,
        outcome: Result<Value, RefError>,
    ) {
        let Some(fact) = self.oracle.refs.get(&rref).cloned() else {
            return;
        };
        let complaint = match outcome {
            Ok(value) => fact.value != Some(value),
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
            CallError::PeerGone { .. } => self.together(node, to),
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
    }

    /// A worker departed: contexts that it may have taken part in promise nothing any more.
    pub(crate) fn context_members_lost(&mut self, node: NodeId) {
        for call in &self.oracle.calls {
            if let Some(context) = call.context
                && (call.caller == node || call.callee == node)
            {
                self.oracle.contexts.entry(context).or_default().failed = true;
            }
        }
    }

    /// The calls that a dead worker made or was working on are over.
    pub(crate) fn calls_ended_by_death(&mut self, node: NodeId) {
        for call in &mut self.oracle.calls {
            if call.caller == node || call.callee == node {
                call.over = true;
            }
        }
    }
}
