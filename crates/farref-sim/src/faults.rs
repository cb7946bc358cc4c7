//! Faults: what goes wrong, when, and to whom.

use std::time::Duration;

use farref_proto::{Membership, NodeId, Phase};

use crate::happening::{Fault, Happening};
use crate::link::{Parcel, pair};
use crate::world::{World, trace};

impl World {
    pub(crate) fn schedule_faults(&mut self) {
        let conditions = self.conditions.clone();
        for (fault, times) in [
            (Fault::Cut, conditions.cuts),
            (Fault::Partition, conditions.partitions),
            (Fault::Stall, conditions.stalls),
            (Fault::Crash, conditions.crashes),
            (Fault::Leave, conditions.leaves),
            (Fault::Join, conditions.joins),
            (Fault::CrowdedJoin, conditions.crowded_joins),
        ] {
            for _ in 0..times {
                let at = self.now + Duration::from_micros(self.rng.u64(0..400_000));
                self.schedule(at, Happening::Fault(fault));
            }
        }
        for wait in conditions.unfit_joins {
            self.schedule(self.now + wait, Happening::Fault(Fault::UnfitJoin));
        }
        if conditions.flaps > 0 {
            let worker = self.rng.u32(0..conditions.workers);
            let times = conditions.flaps;
            let at = self.now + Duration::from_micros(self.rng.u64(0..200_000));
            self.schedule(at, Happening::Fault(Fault::Flap { worker, times }));
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
            Fault::Join => self.newcomer(),
            Fault::CrowdedJoin => self.crowded_join(),
            Fault::UnfitJoin => self.unfit_join(),
            Fault::Block => {
                let running = self.running();
                let pair_of = [self.rng.choice(running.clone()), self.rng.choice(running)];
                if let [Some(a), Some(b)] = pair_of {
                    let wait = Duration::from_millis(self.rng.u64(2..150));
                    self.block(a, b, wait);
                }
            }
            Fault::Flap { worker, times } => self.flap(worker, times),
            Fault::Restart { worker } => {
                if self.processes[worker as usize].is_none() {
                    self.stats.faults.restarts += 1;
                    self.start_life(worker);
                }
            }
        }
    }

    fn newcomer(&mut self) {
        let worker = self.new_worker();
        self.stats.faults.joins += 1;
        self.start_life(worker);
    }

    pub(crate) fn new_worker(&mut self) -> u32 {
        let worker = self.processes.len() as u32;
        self.processes.push(None);
        self.incarnations.push(0);
        worker
    }

    fn block(&mut self, a: NodeId, b: NodeId, time: Duration) {
        let link = self.links.entry(pair(a, b)).or_default();
        link.blocked_until = link.blocked_until.max(self.now + time);
    }

    /// What is hard about joining: to be let in while others go, by those who cannot reach all.
    fn crowded_join(&mut self) {
        let around = |world: &mut Self| {
            let most = 3 * world.conditions.max_delay.as_nanos() as u64;
            world.now + Duration::from_nanos(world.rng.u64(0..=most))
        };
        self.newcomer();
        let departure = match self.rng.u32(0..4) {
            0 => Fault::Leave,
            _ => Fault::Crash,
        };
        for fault in [departure, Fault::Block, Fault::Block] {
            let at = around(self);
            self.schedule(at, Happening::Fault(fault));
        }
        // Long enough to be suspected by the impatient, and then the newcomer is let in all the same.
        let newcomer = self.running().last().copied();
        let member = self.members();
        if let (Some(newcomer), Some(member)) = (newcomer, self.rng.choice(member))
            && self.rng.bool()
        {
            let wait = Duration::from_millis(self.rng.u64(100..300));
            self.block(newcomer, member, wait);
        }
    }

    fn flap(&mut self, worker: u32, times: u32) {
        let node = self.processes[worker as usize].as_ref().map(|p| p.me());
        match node {
            Some(node) if self.members().len() > 2 => {
                self.stats.faults.crashes += 1;
                self.kill(node);
            }
            Some(_) => {}
            None => {
                self.stats.faults.restarts += 1;
                self.start_life(worker);
            }
        }
        if times > 0 {
            let at = self.now + Duration::from_micros(self.rng.u64(500..40_000));
            let times = times - 1;
            self.schedule(at, Happening::Fault(Fault::Flap { worker, times }));
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
        if self.conditions.restarts {
            let worker = node.worker.0;
            let at = self.now + Duration::from_micros(self.rng.u64(100..200_000));
            self.schedule(at, Happening::Fault(Fault::Restart { worker }));
        }
    }

    /// Ends a process. What it has sent may still arrive until its peers notice.
    pub(crate) fn kill(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        let peers: Vec<NodeId> = process.channels.keys().copied().collect();
        self.processes[node.worker.0 as usize] = None;
        self.somebody_ended = true;
        self.context_members_lost(node);
        for peer in peers {
            let delay = self.delay() * self.rng.u32(0..4);
            if let Some(link) = self.links.get(&pair(node, peer))
                && link.up
            {
                let epoch = link.epoch;
                self.deliver_at(self.now + delay, node, peer, epoch, Parcel::Closed);
            }
        }
        self.calls_ended_by_death(node);
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

    /// A worker is the first to know of a departure while somebody joins: it can tell nobody but the
    /// newcomer, and dies.
    pub(crate) fn lose_sponsor(&mut self, node: NodeId) {
        let members = self.members();
        let joining = self.running().len() > members.len();
        if !joining || self.draining || self.conditions.sponsor_crashes == 0 {
            return;
        }
        self.conditions.sponsor_crashes -= 1;
        for member in members {
            if member != node {
                self.block(node, member, Duration::from_millis(150));
            }
        }
        let wait = self.delay() * 3;
        self.schedule(self.now + wait, Happening::Fault(Fault::CrashOf(node)));
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
    pub(crate) fn start_life(&mut self, worker: u32) {
        // Now and then a life is skipped: it died before anybody heard of it.
        let skipped = u32::from(self.rng.u32(0..4) == 0);
        let incarnation = self.incarnations[worker as usize] + 1 + skipped;
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
            sponsors
                .retain(|member| !view.is_gone(*member) && !process.refused_by.contains(member));
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
