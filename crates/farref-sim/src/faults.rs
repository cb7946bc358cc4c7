//! Faults: what goes wrong, when, and to whom.

use std::time::Duration;

use farref_proto::{Membership, NodeId, Phase};

use crate::network::pair;
use crate::world::{Happening, World, trace};

/// Something that goes wrong.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    Cut,
    Partition,
    Stall,
    Crash,
    CrashOf(NodeId),
    Leave,
    Join,
    Restart { worker: u32 },
}

impl World {
    pub(crate) fn schedule_faults(&mut self) {
        let weather = self.weather.clone();
        for (fault, times) in [
            (Fault::Cut, weather.cuts),
            (Fault::Partition, weather.partitions),
            (Fault::Stall, weather.stalls),
            (Fault::Crash, weather.crashes),
            (Fault::Leave, weather.leaves),
            (Fault::Join, weather.joins),
        ] {
            for _ in 0..times {
                let at = self.now + Duration::from_micros(self.rng.u64(0..400_000));
                self.schedule(at, Happening::Fault(fault));
            }
        }
    }

    pub(crate) fn inject(&mut self, fault: Fault) {
        if self.draining {
            return;
        }
        trace!(self, "fault: {fault:?}");
        match fault {
            Fault::Cut => self.cut(),
            Fault::Partition => self.partition(),
            Fault::Stall => self.stall(),
            Fault::Crash => {
                let running = self.running();
                if let Some(node) = self.rng.choice(running) {
                    self.crash(node);
                }
            }
            Fault::CrashOf(node) => self.crash(node),
            Fault::Leave => self.leave(),
            Fault::Join => {
                let worker = self.processes.len() as u32;
                self.processes.push(None);
                self.incarnations.push(0);
                self.stats.faults.joins += 1;
                self.start_life(worker);
            }
            Fault::Restart { worker } => {
                if self.processes[worker as usize].is_none() {
                    self.stats.faults.restarts += 1;
                    self.start_life(worker);
                }
            }
        }
    }

    fn cut(&mut self) {
        let up: Vec<_> = self
            .links
            .iter()
            .filter(|(_, link)| link.up)
            .map(|(key, _)| *key)
            .collect();
        if let Some((a, b)) = self.rng.choice(up) {
            self.stats.faults.connections_cut += 1;
            let (a, b) = if self.rng.bool() { (a, b) } else { (b, a) };
            self.disconnect(a, b);
            self.service(a, b);
        }
    }

    /// Splits the group in two for a while, or only cuts one pair off.
    fn partition(&mut self) {
        self.stats.faults.partitions += 1;
        let running = self.running();
        let most = if self.rng.bool() { 300 } else { 2500 };
        let until = self.now + Duration::from_millis(self.rng.u64(10..most));
        let single = self.rng.bool();
        let side: Vec<bool> = running.iter().map(|_| self.rng.bool()).collect();
        for (i, &a) in running.iter().enumerate() {
            for (j, &b) in running.iter().enumerate().skip(i + 1) {
                let apart = if single {
                    (i, j) == (0, 1)
                } else {
                    side[i] != side[j]
                };
                if apart {
                    self.links.entry(pair(a, b)).or_default().blocked_until = until;
                }
            }
        }
    }

    fn stall(&mut self) {
        let running = self.running();
        if let Some(node) = self.rng.choice(running) {
            self.stats.faults.stalls += 1;
            let most = if self.rng.bool() { 300 } else { 2500 };
            let until = self.now + Duration::from_millis(self.rng.u64(10..most));
            if let Some(process) = self.process(node) {
                process.stalled_until = until;
            }
        }
    }

    fn crash(&mut self, node: NodeId) {
        if self.members().len() < 2 || self.process(node).is_none() {
            return;
        }
        self.stats.faults.crashes += 1;
        trace!(self, "{node} crashes");
        self.kill(node);
        if self.weather.restarts {
            let worker = node.worker.0;
            let at = self.now + Duration::from_micros(self.rng.u64(100..200_000));
            self.schedule(at, Happening::Fault(Fault::Restart { worker }));
        }
    }

    /// A worker dies that has just handed on what it was handed, before it could tell the owner; and
    /// the one that got it cannot tell the owner for a while.
    pub(crate) fn lose_relay(&mut self, node: NodeId, receiver: NodeId, owner: NodeId) {
        let apart = receiver != owner && node != owner && node != receiver;
        if apart && !self.draining && self.rng.bool() {
            let until = self.now + Duration::from_millis(100);
            self.links
                .entry(pair(receiver, owner))
                .or_default()
                .blocked_until = until;
            let wait = self.delay();
            self.schedule(self.now + wait, Happening::Fault(Fault::CrashOf(node)));
        }
    }

    fn leave(&mut self) {
        let members = self.members();
        if members.len() < 2 {
            return;
        }
        let Some(node) = self.rng.choice(members) else {
            return;
        };
        self.stats.faults.leaves += 1;
        trace!(self, "{node} leaves");
        self.let_go(node);
        if let Some(process) = self.process(node) {
            process.program.steps_left = 0;
            process.node.leave(&mut process.out);
            self.settle(node);
        }
    }

    /// Starts a new life of a worker, which asks to be let in.
    fn start_life(&mut self, worker: u32) {
        let incarnation = self.incarnations[worker as usize] + 1;
        self.incarnations[worker as usize] = incarnation;
        let me = NodeId::new(worker, incarnation);
        trace!(self, "{me} starts");
        let process = self.new_process(me, Membership::joining(me));
        self.processes[worker as usize] = Some(process);
        self.schedule(self.now, Happening::AskToJoin { node: me });
    }

    pub(crate) fn ask_to_join(&mut self, node: NodeId) {
        let members = self.members();
        let Some(process) = self.process(node) else {
            return;
        };
        if process.node.membership().phase() != Phase::Joining {
            return;
        }
        let mut sponsors = members;
        if let Some(process) = self.process(node) {
            let view = process.node.membership().view();
            sponsors.retain(|&member| !view.is_gone(member));
        }
        let Some(sponsor) = self.rng.choice(sponsors) else {
            // Nobody is left to let it in.
            return self.kill(node);
        };
        if let Some(process) = self.process(node) {
            process.node.join(sponsor, &mut process.out);
            self.settle(node);
        }
        self.schedule(
            self.now + Duration::from_millis(300),
            Happening::AskToJoin { node },
        );
    }
}
