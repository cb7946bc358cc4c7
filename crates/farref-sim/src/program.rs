//! Random user programs: what they do of their own accord.

use std::time::Duration;

use farref_proto::{ContextId, NodeId};

use crate::calling::Kind;
use crate::happening::Happening;
use crate::process::{Goal, MAX_DEPTH, MAX_HANDLES};
use crate::world::World;

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
            0..20 if self.conditions.creator_crashes > 0 => self.create_and_die(node),
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
        if !self.conditions.contexts {
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

    pub(crate) fn release_context(&mut self, node: NodeId, context: ContextId) {
        if let Some(process) = self.process(node)
            && process
                .node
                .release_context(context, &mut process.out)
                .is_ok()
        {
            process.program.releases.insert(context);
        }
    }
}
