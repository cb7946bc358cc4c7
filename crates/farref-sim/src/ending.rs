//! The end of a run: programs let go of everything and shut down, and nothing may be left.

use std::time::Duration;

use farref_proto::{NodeId, Phase, Time};

use crate::calling::Kind;
use crate::happening::Happening;
use crate::process::Process;
use crate::world::{DRAIN, World};

impl World {
    pub(crate) fn end_programs(&mut self) {
        self.draining = true;
        self.somebody_ended = true;
        for link in self.links.values_mut() {
            link.blocked_until = Time::ZERO;
        }
        for process in self.processes.iter_mut().flatten() {
            process.stalled_until = Time::ZERO;
        }
        for node in self.running() {
            let wait = Duration::from_micros(self.rng.u64(0..100_000));
            self.schedule(self.now + wait, Happening::Drain { node });
        }
    }

    /// The program drops everything that it has in hand; what runs goes on.
    pub(crate) fn let_go(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        process.program.draining = true;
        for rref in std::mem::take(&mut process.program.handles) {
            process.node.drop_handle(rref, &mut process.out);
        }
        for context in process.program.contexts.clone() {
            // Those already being released say so; that is fine.
            self.release_context(node, context);
        }
        self.settle(node);
    }

    /// The program wants to shut down. It starts a few last things that nobody waits for: what they
    /// set off may still be going on when their caller has nothing left to do.
    pub(crate) fn drain(&mut self, node: NodeId) {
        let wants = |process: &mut Process| process.node.quiescence().wants_shutdown();
        if self.process(node).is_none_or(wants) {
            return;
        }
        for _ in 0..2 {
            self.make_call(node, Kind::Create, None, 0, &[]);
        }
        self.let_go(node);
        if let Some(process) = self.process(node)
            && process.node.membership().phase() == Phase::Member
        {
            process.node.shut_down();
            self.schedule_poll(node);
        }
    }

    pub(crate) fn is_over(&mut self) -> bool {
        if !self.draining || !std::mem::take(&mut self.somebody_ended) {
            return false;
        }
        self.processes
            .iter()
            .flatten()
            .all(|process| process.finished || process.resigned)
    }

    pub(crate) fn not_at_rest(&mut self) {
        let busy: Vec<String> = self
            .processes
            .iter()
            .flatten()
            .filter(|process| !process.finished && !process.resigned)
            .map(|process| {
                format!(
                    "{} {:?} has {:?} {:?}, program {:?}, leaks {:?}, awaits {:?}",
                    process.me(),
                    process.node.membership().phase(),
                    process.node.residue(),
                    process.node.ref_counters(),
                    process.program,
                    process.node.leaks(),
                    process.node.membership().awaited(),
                )
            })
            .collect();
        let what = format!("not at rest after {DRAIN:?}: {}", busy.join("; "));
        self.oracle.violated("R2/S1", self.now, what);
    }

    /// S1: when a worker may go, nothing is left on any worker that it knows to be alive.
    pub(crate) fn check_shutdown(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        process.finished = true;
        self.somebody_ended = true;
        let linger = Duration::from_millis(100);
        self.schedule(self.now + linger, Happening::Exit { node });
        self.final_checks(node);
        let busy = |process: &&Process| {
            let member = process.node.membership().phase() == Phase::Member;
            let is_gone = |caller| process.node.membership().view().is_gone(caller);
            member && !(process.node.is_empty() && process.program.is_empty(is_gone))
        };
        let busy = self.processes.iter().flatten().filter(busy);
        for other in busy.map(Process::me).collect::<Vec<_>>() {
            // After a partition two groups may go on that know nothing of each other's newcomers, or only that they asked to be let in.
            let is_member = self.has_for_member(node, other);
            if !is_member && (self.oracle.split || !self.counts(node, other)) {
                continue;
            }
            if !self.together(node, other) {
                continue;
            }
            let Some(process) = self.process(other) else {
                continue;
            };
            let residue = process.node.residue();
            let program = &process.program;
            let what = format!("{node} may go while {other} has {residue:?} {program:?}");
            self.oracle.violated("S1", self.now, what);
        }
    }

    /// At the end nothing is left on a worker: no table entry, no open call, no value.
    fn final_checks(&mut self, node: NodeId) {
        let mut complaints = Vec::new();
        if let Some(process) = self.process(node) {
            let counters = process.node.ref_counters();
            if !process.node.is_empty() || !counters.is_empty() {
                let contexts = process.node.open_contexts();
                complaints.push(format!("{node} still has {counters:?} {contexts:?}"));
            }
            let program = &process.program;
            if !program.unconfirmed.is_empty() || !program.releases.is_empty() {
                let (references, contexts) = (&program.unconfirmed, &program.releases);
                complaints.push(format!(
                    "{node} still waits for {references:?} {contexts:?}"
                ));
            }
        }
        for (context, fact) in &self.oracle.contexts {
            if fact.entered.contains(&node) {
                complaints.push(format!("{node} was never told that {context} is over"));
            }
        }
        for number in self.oracle.calls_of(node) {
            let call = &self.oracle.calls[number];
            let due = u32::from(!call.no_outcome_due);
            if call.caller == node && call.outcomes != due {
                let (callee, outcomes) = (call.callee, call.outcomes);
                complaints.push(format!(
                    "call {number} from {node} to {callee} has {outcomes} outcomes"
                ));
            }
        }
        let owned = self.oracle.owned.get(&node).into_iter().flatten();
        let facts = owned.filter_map(|rref| Some((rref, self.oracle.refs.get(rref)?)));
        for (rref, fact) in facts {
            let due = fact.value.is_some() || self.together(node, rref.origin);
            if due && !fact.freed {
                complaints.push(format!("{rref} on {node} was never freed"));
            }
        }
        if let Some(complaint) = complaints.first() {
            self.oracle.violated("R2", self.now, complaint.clone());
        }
    }
}
