//! Random user programs: what they do, and how they take what comes to them.

use std::time::Duration;

use farref_proto::{ContextId, Event, Fingerprint, MessageId, NodeId, Phase, RRefId};

use crate::calling::Kind;
use crate::process::{Goal, Process, Value};
use crate::world::{Happening, World};

/// The types that values have. The last is another system's, which agrees with all.
pub(crate) const TYPES: [Fingerprint; 3] = [
    Fingerprint(42).native(),
    Fingerprint(43).native(),
    Fingerprint::foreign(44),
];
pub(crate) const MAX_DEPTH: u32 = 3;
pub(crate) const MAX_HANDLES: usize = 10;

impl World {
    pub(crate) fn start_program(&mut self, node: NodeId) {
        let steps = self.config.steps;
        let draining = self.draining;
        let Some(process) = self.process(node) else {
            return;
        };
        process.program.steps_left = steps;
        if draining {
            return self.drain(node);
        }
        let wait = Duration::from_micros(self.rng.u64(0..5_000));
        self.schedule(self.now + wait, Happening::Step { node });
    }

    /// The program does one thing.
    pub(crate) fn step(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        let program = &mut process.program;
        if program.draining || program.steps_left == 0 {
            return;
        }
        program.steps_left -= 1;
        let crowded = program.handles.len() > MAX_HANDLES;
        match self.rng.u32(0..100) {
            _ if crowded => self.drop_some(node),
            0..20 if self.weather.creator_crashes > 0 => self.create_and_die(node),
            0..8 => self.create_local(node),
            8..12 => self.create_own(node),
            12..32 => self.make_call(node, Kind::Create, None, 0, &[]),
            32..60 => self.make_call(node, Kind::Plain, None, 0, &[]),
            60..72 => self.fetch_some(node),
            72..76 => self.cancel_some(node),
            76..88 => self.drop_some(node),
            88..91 => self.clone_one(node),
            91..96 => self.open_context(node),
            _ => self.release_one_context(node),
        }
        self.settle(node);
        let wait = Duration::from_micros(self.rng.u64(0..24_000));
        self.schedule(self.now + wait, Happening::Step { node });
    }

    fn create_local(&mut self, node: NodeId) {
        let value = self.oracle.fresh_value();
        let fingerprint = self.some_type();
        let Some(process) = self.process(node) else {
            return;
        };
        if let Ok(rref) = process.node.create_local(value, fingerprint) {
            process.program.handles.push(rref);
            self.stats.references += 1;
            self.oracle
                .reference_made(rref, node, Some(value), fingerprint);
        }
    }

    fn create_own(&mut self, node: NodeId) {
        let fingerprint = self.some_type();
        let Some(process) = self.process(node) else {
            return;
        };
        if let Ok(rref) = process.node.create_self(fingerprint) {
            process.program.handles.push(rref);
            self.stats.references += 1;
            self.oracle.reference_made(rref, node, None, fingerprint);
            let goal = Goal::CreateOwn(rref);
            self.start_task(node, goal, None, None, Vec::new(), MAX_DEPTH);
        }
    }

    fn drop_some(&mut self, node: NodeId) {
        let times = self.rng.u32(1..4);
        for _ in 0..times {
            let pick = self.rng.usize(..);
            let Some(process) = self.process(node) else {
                return;
            };
            if process.program.handles.is_empty() {
                return;
            }
            let at = pick % process.program.handles.len();
            let rref = process.program.handles.swap_remove(at);
            process.node.drop_handle(rref, &mut process.out);
        }
    }

    fn clone_one(&mut self, node: NodeId) {
        let pick = self.rng.usize(..);
        let Some(process) = self.process(node) else {
            return;
        };
        if !process.program.handles.is_empty() {
            let rref = process.program.handles[pick % process.program.handles.len()];
            if process.node.add_handle(rref).is_ok() {
                process.program.handles.push(rref);
            }
        }
    }

    fn open_context(&mut self, node: NodeId) {
        if !self.weather.contexts {
            return;
        }
        let Some(process) = self.process(node) else {
            return;
        };
        if process.program.contexts.len() < 3 {
            let context = process.node.open_context();
            process.program.contexts.push(context);
            self.stats.contexts += 1;
            let fact = self.oracle.contexts.entry(context).or_default();
            fact.entered.insert(node);
        }
    }

    fn release_one_context(&mut self, node: NodeId) {
        let pick = self.rng.usize(..);
        let Some(process) = self.process(node) else {
            return;
        };
        let contexts = process.program.contexts.clone();
        if !contexts.is_empty() {
            // Stays in the program's list until the release is complete; twice is an error.
            let context = contexts[pick % contexts.len()];
            self.release_context(node, context);
        }
    }

    fn release_context(&mut self, node: NodeId, context: ContextId) {
        if let Some(process) = self.process(node)
            && process
                .node
                .release_context(context, &mut process.out)
                .is_ok()
        {
            process.program.releases.insert(context);
        }
    }

    pub(crate) fn on_program_event(&mut self, node: NodeId, event: Event<Value>) {
        match event {
            Event::Freed { rref, value } => self.on_freed(node, rref, value),
            Event::Fetched {
                waiter,
                rref,
                outcome,
            } => {
                if let Err(error) = &outcome {
                    self.check_use(waiter.node, rref, None, Err(error.clone()));
                }
                self.answer(node, waiter.node, waiter.request, &[], outcome.ok());
            }
            Event::Confirmed(rref) => {
                self.no_longer_unconfirmed(node, rref);
                if let Some(fact) = self.oracle.refs.get_mut(&rref)
                    && rref.origin == node
                {
                    fact.confirmed = true;
                }
            }
            Event::Lost { rref, error } => {
                self.no_longer_unconfirmed(node, rref);
                self.check_use(node, rref, None, Err(error));
            }
            Event::PeerLost {
                node: peer,
                request,
            } => self.on_peer_lost(node, peer, request),
            Event::Abandoned {
                node: peer,
                request,
            } => {
                let goal = Goal::Answer(peer, request);
                let Some(process) = self.process(node) else {
                    return;
                };
                let mut tasks = process.program.tasks.iter();
                if let Some((&id, _)) = tasks.find(|(_, task)| task.goal == goal) {
                    // Stops at once: whatever it waits for, nobody wants its answer.
                    if let Some(task) = process.program.tasks.get_mut(&id) {
                        task.awaiting = 0;
                    }
                    for call in &mut process.program.outstanding {
                        if call.parent == Some(id) {
                            call.parent = None;
                        }
                    }
                    self.schedule(self.now, Happening::Task { node, task: id });
                } else {
                    // A fetch that was still waiting.
                    self.answer(node, peer, request, &[], None);
                }
            }
            Event::ContextFailed { context, .. } => {
                self.oracle.contexts.entry(context).or_default().failed = true;
            }
            Event::ContextClosed(context) => self.on_context_closed(node, context),
            Event::ContextReleased(context) => self.on_context_released(node, context),
            Event::ContextNotReleased(context) => {
                if let Some(process) = self.process(node) {
                    process.program.releases.remove(&context);
                }
            }
            _ => {}
        }
    }

    fn on_peer_lost(&mut self, node: NodeId, peer: NodeId, request: MessageId) {
        if let Some(call) = self.take_outstanding(node, peer, request) {
            if let Some(process) = self.process(node) {
                process.program.parked.remove(&(peer, request));
            }
            return self.outcome(node, &call);
        }
        let unsent = self
            .process(node)
            .is_some_and(|p| p.program.unsent.remove(&(peer, request)));
        if !unsent {
            let what = format!("{node} lost a call to {peer} that it never made");
            self.oracle.violated("F2", self.now, what);
        }
    }

    fn no_longer_unconfirmed(&mut self, node: NodeId, rref: RRefId) {
        if let Some(process) = self.process(node) {
            process.program.unconfirmed.remove(&rref);
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
}
