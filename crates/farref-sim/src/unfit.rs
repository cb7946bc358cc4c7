//! Newcomers that do not fit to a member that was there before: neither takes the other's connections, ever. What a driver
//! does about it (F10; UW-1 of `farref`'s), and what the oracle has to say.

use std::time::Duration;

use farref_proto::{Control, NodeId};

use crate::happening::Happening;
use crate::link::pair;
use crate::process::Program;
use crate::world::{World, trace};

impl World {
    /// Somebody joins, as a new worker or as another life of one that is gone, and some member and it refuse each other.
    pub(crate) fn unfit_join(&mut self) {
        let members = self.members();
        let draw = &mut self.conditions.unfit;
        let Some(elder) = draw.choice(members) else {
            return;
        };
        let stopped = self.processes.iter().enumerate();
        let stopped: Vec<u32> = stopped
            .filter(|(_, process)| process.is_none())
            .map(|(worker, _)| worker as u32)
            .collect();
        let again = draw.bool();
        let former = draw.choice(stopped).filter(|_| again);
        let worker = former.unwrap_or_else(|| self.new_worker());
        self.stats.faults.unfit_joins += 1;
        self.start_life(worker);
        let newcomer = NodeId::new(worker, self.incarnations[worker as usize]);
        trace!(self, "{newcomer} and {elder} refuse each other");
        self.links.entry(pair(newcomer, elder)).or_default().unfit = true;
    }

    /// A worker finds that another does not take its connection.
    pub(crate) fn not_taken(&mut self, node: NodeId, by: NodeId) {
        if let Some(process) = self.process(node) {
            process.refused_by.insert(by);
        }
    }

    /// A worker was let in. If it knows of a member that refuses it, it is not to stay.
    pub(crate) fn let_in(&mut self, node: NodeId) -> Option<NodeId> {
        let process = self.process(node)?;
        let members = process.node.membership().view().members();
        process.elders = members.filter(|&member| member != node).collect();
        let refused_by = process.elders.intersection(&process.refused_by).next();
        let refused_by = refused_by.copied();
        for elder in process.elders.clone() {
            let link = self.links.get(&pair(node, elder));
            if link.is_some_and(|link| link.unfit) {
                self.oracle.unfit.insert((node, elder));
            }
        }
        refused_by
    }

    /// Whether a worker that cannot reach another is to go itself: that one was there before, and refuses it.
    pub(crate) fn is_unwelcome(&mut self, node: NodeId, by: NodeId) -> bool {
        let process = self.process(node);
        process.is_some_and(|it| it.elders.contains(&by) && it.refused_by.contains(&by))
    }

    pub(crate) fn resign(&mut self, node: NodeId, refused_by: NodeId) {
        self.resign_at_once(node, refused_by);
        self.settle(node);
    }

    /// The same while events are acted on.
    pub(crate) fn resign_at_once(&mut self, node: NodeId, refused_by: NodeId) {
        trace!(self, "{node} resigns, for {refused_by} refuses it");
        if let Some(process) = self.process(node) {
            process.node.resign(refused_by, &mut process.out);
        }
    }

    /// A worker is out. If it has resigned, its process is there for a while: it may well be there for good, since its
    /// program decides about that. The others come to rest only if they know that it is gone.
    pub(crate) fn leave_the_stage(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        if !process.node.membership().view().is_gone(node) {
            return self.kill(node);
        }
        process.resigned = true;
        process.program = Program::default();
        self.stats.faults.resignations += 1;
        self.somebody_ended = true;
        self.context_members_lost(node);
        self.calls_ended_by_death(node);
        self.flush(node);
        let draw = &mut self.conditions.unfit;
        if draw.bool() {
            let wait = Duration::from_micros(draw.u64(0..200_000));
            self.schedule(self.now + wait, Happening::Exit { node });
        }
    }

    pub(crate) fn has_resigned(&mut self, node: NodeId) -> bool {
        self.process(node).is_some_and(|process| process.resigned)
    }

    /// F10: a member that runs is not declared dead because a newcomer does not fit to it: neither by that one nor on its word.
    pub(crate) fn check_unfit(&mut self, by: NodeId, node: NodeId) {
        let handling = self.oracle.handling.as_ref();
        let accuser = handling
            .filter(|handling| handling.control == Control::Suspect(node))
            .map(|handling| handling.from);
        // On another's word anybody may: that one cannot reach it.
        let newcomer = accuser.unwrap_or(by);
        if self.oracle.unfit.contains(&(newcomer, node)) {
            let what = format!("{by} declares {node} dead, for {newcomer} does not fit to it");
            self.oracle.violated("F10", self.now, what);
        }
    }
}
