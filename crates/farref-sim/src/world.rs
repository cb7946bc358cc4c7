//! The world: virtual time, the queue of things to happen, and every worker's processes.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use farref_proto::{
    CallHead, Control, Departure, Event, Lane, Membership, MessageId, Node, NodeConfig, NodeId,
    Phase, SessionConfig, Time,
};

use crate::config::{Config, Weather};
use crate::network::{Link, Parcel, pair};
use crate::oracle::{Oracle, Violation};
use crate::process::{Body, Packet, Process};
use crate::stats::Stats;

/// How long programs run before everything is let go.
const PROGRAM: Duration = Duration::from_millis(400);
/// How long the rest may take after that.
const DRAIN: Duration = Duration::from_secs(120);

/// Something that is going to happen.
#[derive(Clone, Debug)]
pub(crate) enum Happening {
    Deliver {
        from: NodeId,
        to: NodeId,
        epoch: u64,
        parcel: Parcel,
    },
    Loopback {
        node: NodeId,
        packet: Rc<Packet>,
    },
    Timer {
        node: NodeId,
        peer: NodeId,
    },
    Connect {
        node: NodeId,
        peer: NodeId,
    },
    Flush {
        node: NodeId,
    },
    Poll {
        node: NodeId,
    },
    Step {
        node: NodeId,
    },
    Task {
        node: NodeId,
        task: u64,
    },
    /// A call that never left is taken back.
    Undo {
        node: NodeId,
        to: NodeId,
        head: Rc<CallHead>,
    },
    /// There is room for a call that waited.
    Unpark {
        node: NodeId,
        to: NodeId,
        lane: Lane,
        head: Rc<CallHead>,
        body: Body,
    },
    /// The program no longer wants an answer.
    GiveUp {
        node: NodeId,
        to: NodeId,
        request: MessageId,
    },
    AskToJoin {
        node: NodeId,
    },
    Fault(crate::faults::Fault),
    Drain {
        node: NodeId,
    },
    Exit {
        node: NodeId,
    },
    EndOfProgram,
}

impl Happening {
    /// The process that it happens to, which does nothing while it is stalled.
    fn process(&self) -> Option<NodeId> {
        match *self {
            Self::Deliver { to: node, .. }
            | Self::Loopback { node, .. }
            | Self::Timer { node, .. }
            | Self::Connect { node, .. }
            | Self::Flush { node }
            | Self::Poll { node }
            | Self::Step { node }
            | Self::Task { node, .. }
            | Self::Undo { node, .. }
            | Self::Unpark { node, .. }
            | Self::GiveUp { node, .. }
            | Self::AskToJoin { node }
            | Self::Drain { node }
            | Self::Exit { node } => Some(node),
            Self::Fault(_) | Self::EndOfProgram => None,
        }
    }
}

struct Scheduled {
    at: Time,
    order: u64,
    happening: Happening,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// A run that broke a guarantee.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Replays it, with the same configuration.
    pub seed: u64,
    /// What was broken.
    pub violation: Violation,
    /// What happened, if the run was traced.
    pub trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}: {}", self.seed, self.violation)
    }
}

/// Simulates one seed.
pub fn run(config: &Config, seed: u64) -> Result<Stats, Box<Failure>> {
    World::new(config, seed, false).run()
}

/// Simulates one seed and writes down every message and event.
pub fn run_traced(config: &Config, seed: u64) -> (Result<Stats, Box<Failure>>, Vec<String>) {
    let mut world = World::new(config, seed, true);
    let result = world.run();
    (result, world.trace.unwrap_or_default())
}

pub(crate) struct World {
    pub(crate) config: Rc<Config>,
    pub(crate) weather: Weather,
    pub(crate) patience: Rc<SessionConfig>,
    seed: u64,
    pub(crate) rng: fastrand::Rng,
    pub(crate) now: Time,
    queue: BinaryHeap<Reverse<Scheduled>>,
    order: u64,
    /// The running process of each worker.
    pub(crate) processes: Vec<Option<Process>>,
    /// The incarnation that each worker had last.
    pub(crate) incarnations: Vec<u32>,
    pub(crate) links: BTreeMap<(NodeId, NodeId), Link>,
    pub(crate) oracle: Oracle,
    pub(crate) stats: Stats,
    pub(crate) trace: Option<Vec<String>>,
    pub(crate) draining: bool,
    pub(crate) next_task: u64,
}

/// Writes a line into the trace, if there is one.
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if let Some(lines) = &mut $world.trace {
            lines.push(format!("{} {}", $world.now, format_args!($($arg)*)));
        }
    };
}
pub(crate) use trace;

impl World {
    fn new(config: &Config, seed: u64, traced: bool) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let weather = Weather::new(config, &mut rng);
        let workers = weather.workers;
        let mut world = Self {
            config: Rc::new(config.clone()),
            patience: Rc::new(weather.session_config()),
            seed,
            rng,
            now: Time::ZERO + Duration::from_millis(1),
            queue: BinaryHeap::new(),
            order: 0,
            processes: Vec::new(),
            incarnations: vec![1; workers as usize],
            links: BTreeMap::new(),
            oracle: Oracle::default(),
            stats: Stats::default(),
            trace: traced.then(Vec::new),
            draining: false,
            next_task: 0,
            weather,
        };
        let members: Vec<NodeId> = (0..workers).map(|worker| NodeId::new(worker, 1)).collect();
        for &me in &members {
            let process = world.new_process(me, Membership::founding(me, members.clone()));
            world.processes.push(Some(process));
        }
        for me in members {
            world.start_program(me);
        }
        world.schedule_faults();
        world.schedule(world.now + PROGRAM, Happening::EndOfProgram);
        world
    }

    pub(crate) fn new_process(&self, me: NodeId, membership: Membership) -> Process {
        let mut config = NodeConfig::default();
        config.ref_shards = self.weather.ref_shards;
        config.probe_interval = Duration::from_millis(40);
        if let Some(quota) = self.weather.pending_quota {
            config.max_pending_owners = quota;
        }
        let mut process = Process::new(Node::new(me, membership, config));
        self.config.break_process(&mut process);
        process
    }

    fn run(&mut self) -> Result<Stats, Box<Failure>> {
        let limit = self.now + PROGRAM + DRAIN;
        while let Some(Reverse(next)) = self.queue.pop() {
            self.now = next.at;
            if self.now > limit {
                self.not_at_rest();
                break;
            }
            self.stats.steps += 1;
            self.happen(next.happening);
            if self.oracle.violation.is_some() || (self.draining && self.is_over()) {
                break;
            }
        }
        if let Some(violation) = self.oracle.violation.take() {
            let seed = self.seed;
            let trace = self.trace.clone().unwrap_or_default();
            return Err(Box::new(Failure {
                seed,
                violation,
                trace,
            }));
        }
        self.stats.seeds = 1;
        self.stats.simulated_micros = self.now.0 / 1000;
        Ok(self.stats)
    }

    pub(crate) fn schedule(&mut self, at: Time, happening: Happening) {
        self.order += 1;
        let order = self.order;
        self.queue.push(Reverse(Scheduled {
            at,
            order,
            happening,
        }));
    }

    fn happen(&mut self, happening: Happening) {
        if let Some(node) = happening.process() {
            let now = self.now;
            match self.process(node) {
                Some(process) if process.stalled_until > now => {
                    let at = process.stalled_until;
                    return self.schedule(at, happening);
                }
                Some(_) => {}
                None => return,
            }
        }
        match happening {
            Happening::Deliver {
                from,
                to,
                epoch,
                parcel,
            } => {
                self.on_deliver(from, to, epoch, parcel);
            }
            Happening::Loopback { node, packet } => self.on_packet(node, node, &packet),
            Happening::Timer { node, peer } => self.on_timer(node, peer),
            Happening::Connect { node, peer } => self.on_connect(node, peer),
            Happening::Flush { node } => self.flush(node),
            Happening::Poll { node } => self.poll(node),
            Happening::Step { node } => self.step(node),
            Happening::Task { node, task } => self.finish_task(node, task),
            Happening::Undo { node, to, head } => self.undo(node, to, &head),
            Happening::Unpark {
                node,
                to,
                lane,
                head,
                body,
            } => self.unpark(node, to, lane, &head, body),
            Happening::GiveUp { node, to, request } => {
                self.cancel(node, to, request);
                self.settle(node);
            }
            Happening::AskToJoin { node } => self.ask_to_join(node),
            Happening::Fault(fault) => self.inject(fault),
            Happening::Drain { node } => self.drain(node),
            Happening::Exit { node } => self.kill(node),
            Happening::EndOfProgram => self.end_programs(),
        }
    }

    /// The process of exactly this life, if it runs.
    pub(crate) fn process(&mut self, node: NodeId) -> Option<&mut Process> {
        let slot = self.processes.get_mut(node.worker.0 as usize)?;
        slot.as_mut().filter(|process| process.me() == node)
    }

    /// All running lives.
    pub(crate) fn running(&self) -> Vec<NodeId> {
        self.processes.iter().flatten().map(Process::me).collect()
    }

    /// All running lives that are members as far as they know.
    pub(crate) fn members(&self) -> Vec<NodeId> {
        let member = |process: &&Process| {
            process.node.membership().phase() == Phase::Member && !process.finished
        };
        self.processes
            .iter()
            .flatten()
            .filter(member)
            .map(Process::me)
            .collect()
    }

    pub(crate) fn chance(&mut self, of_1024: u32) -> bool {
        of_1024 > 0 && !self.draining && self.rng.u32(0..1024) < of_1024
    }

    /// Whether `a` and `b` both run and neither has the other for gone.
    pub(crate) fn together(&self, a: NodeId, b: NodeId) -> bool {
        let find = |node: NodeId| {
            let process = self.processes.get(node.worker.0 as usize)?.as_ref()?;
            (process.me() == node).then_some(process)
        };
        let (Some(first), Some(second)) = (find(a), find(b)) else {
            return false;
        };
        !first.node.membership().view().is_gone(b) && !second.node.membership().view().is_gone(a)
    }

    /// Lets the effects of an input take place: events at once, messages with the next flush.
    pub(crate) fn settle(&mut self, node: NodeId) {
        while let Some(process) = self.process(node) {
            let Some(event) = process.out.pop_event() else {
                break;
            };
            self.on_event(node, event);
        }
        if self.process(node).is_some_and(|process| process.evicted) {
            self.check_evicted(node);
            return self.kill(node);
        }
        let now = self.now;
        let most = self.weather.max_flush.as_nanos() as u64;
        let wait = Duration::from_nanos(self.rng.u64(0..=most));
        let Some(process) = self.process(node) else {
            return;
        };
        if process.out.controls() > 0 && process.flush_scheduled.is_none() {
            process.flush_scheduled = Some(now);
            self.schedule(now + wait, Happening::Flush { node });
        }
    }

    fn flush(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        let since = process.flush_scheduled.take().unwrap_or_default();
        while let Some((to, control)) = self.process(node).and_then(|p| p.out.pop_control()) {
            self.check_order(node, &control, since);
            self.send(node, to, Lane::Control, Packet::Control(control));
        }
    }

    fn poll(&mut self, node: NodeId) {
        let now = self.now;
        let Some(process) = self.process(node) else {
            return;
        };
        process.node.poll(now, &mut process.out);
        process.poll_scheduled = false;
        self.settle(node);
        self.schedule_poll(node);
    }

    pub(crate) fn schedule_poll(&mut self, node: NodeId) {
        let now = self.now;
        let Some(process) = self.process(node) else {
            return;
        };
        if let Some(due) = process.node.poll_timeout()
            && !process.poll_scheduled
        {
            process.poll_scheduled = true;
            self.schedule(
                due.max(now + Duration::from_micros(1)),
                Happening::Poll { node },
            );
        }
    }

    pub(crate) fn suspect(&mut self, node: NodeId, peer: NodeId) {
        trace!(self, "{node} suspects {peer}");
        self.oracle.suspicions.insert((node, peer));
        if let Some(process) = self.process(node) {
            process.node.suspect(peer, &mut process.out);
            self.settle(node);
        }
    }

    pub(crate) fn refused(&mut self, node: NodeId, by: NodeId) {
        trace!(self, "{node} is refused by {by}");
        if let Some(process) = self.process(node) {
            process.node.refused(by, &mut process.out);
            self.settle(node);
        }
    }

    /// A packet arrives at its worker.
    pub(crate) fn on_packet(&mut self, from: NodeId, to: NodeId, packet: &Packet) {
        trace!(self, "{from} -> {to}: {packet:?}");
        self.stats.messages += 1;
        self.heard(from, to, packet);
        match packet {
            Packet::Control(control) => {
                self.stats.controls += 1;
                self.on_control(from, to, control);
            }
            Packet::Call(head, body) => self.on_call(from, to, head, *body),
            Packet::Answer(head, reply) => self.on_answer(from, to, head, *reply),
            Packet::Cancel(request) => {
                if let Some(process) = self.process(to) {
                    process
                        .node
                        .receive_cancel(from, *request, &mut process.out);
                }
            }
        }
        self.settle(to);
        self.oracle.handling = None;
        self.check_memory(to);
        self.schedule_poll(to);
    }

    fn on_control(&mut self, from: NodeId, to: NodeId, control: &Control) {
        if let Control::ContextCleanup(list) = control
            && self.together(from, to)
        {
            for (context, _) in list {
                self.oracle
                    .contexts
                    .entry(*context)
                    .or_default()
                    .closed_on
                    .insert(to);
            }
        }
        let now = self.now;
        self.begin_handling(from, to, control);
        let Some(process) = self.process(to) else {
            return;
        };
        if let Err(error) = process.node.handle(from, control.clone(), &mut process.out) {
            self.oracle
                .violated("F4", now, format!("{to} accuses {from}: {error}"));
        }
    }

    fn on_event(&mut self, node: NodeId, event: Event<u64>) {
        trace!(self, "{node}: {event:?}");
        match event {
            Event::Gone {
                node: peer,
                departure,
            } => {
                if self.check_departure(node, peer, departure) {
                    self.lose_sponsor(node);
                }
                self.context_members_lost(peer);
                let left = departure == Departure::Left;
                let Some(channel) = self.channel(node, peer) else {
                    return;
                };
                // A leaver still gets what is queued for it, among that the answer to its good-bye.
                if left && channel.session.is_connected() {
                    channel.lingering = true;
                } else {
                    self.drop_channel(node, peer);
                    self.close_link(node, peer);
                }
            }
            Event::Evicted => {
                self.stats.faults.evictions += 1;
                if let Some(process) = self.process(node) {
                    process.evicted = true;
                }
            }
            Event::Departed => self.kill(node),
            Event::ShutdownComplete => self.check_shutdown(node),
            Event::Welcomed => {
                self.check_welcomed(node);
                self.start_program(node);
            }
            Event::Settled(peer) => self.check_settled(node, peer),
            Event::Joined(_) => {}
            event => self.on_program_event(node, event),
        }
    }

    /// Closes a connection from one end, which has no session any more.
    fn close_link(&mut self, node: NodeId, peer: NodeId) {
        let delay = self.delay();
        let Some(link) = self.links.get_mut(&pair(node, peer)) else {
            return;
        };
        if std::mem::replace(&mut link.up, false) {
            let epoch = link.epoch;
            let (from, to, parcel) = (node, peer, Parcel::Closed);
            self.schedule(
                self.now + delay,
                Happening::Deliver {
                    from,
                    to,
                    epoch,
                    parcel,
                },
            );
        }
    }

    /// Ends a process. What it has sent may still arrive until its peers notice.
    pub(crate) fn kill(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        let peers: Vec<NodeId> = process.channels.keys().copied().collect();
        self.processes[node.worker.0 as usize] = None;
        self.context_members_lost(node);
        for peer in peers {
            let delay = self.delay() * self.rng.u32(0..4);
            if let Some(link) = self.links.get(&pair(node, peer))
                && link.up
            {
                let epoch = link.epoch;
                let (from, to, parcel) = (node, peer, Parcel::Closed);
                self.schedule(
                    self.now + delay,
                    Happening::Deliver {
                        from,
                        to,
                        epoch,
                        parcel,
                    },
                );
            }
        }
        self.calls_ended_by_death(node);
    }

    fn end_programs(&mut self) {
        self.draining = true;
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

    fn is_over(&self) -> bool {
        self.processes
            .iter()
            .flatten()
            .all(|process| process.finished)
    }

    fn not_at_rest(&mut self) {
        let busy: Vec<String> = self
            .processes
            .iter()
            .flatten()
            .filter(|process| !process.finished)
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
    fn check_shutdown(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        process.finished = true;
        let linger = Duration::from_millis(100);
        self.schedule(self.now + linger, Happening::Exit { node });
        self.final_checks(node);
        for other in self.running() {
            // After a partition two groups may go on that know nothing of each other's newcomers.
            let known = |view: &farref_proto::View| view.is_live(other);
            let knows = self
                .process(node)
                .is_some_and(|p| known(p.node.membership().view()));
            if !knows || !self.together(node, other) {
                continue;
            }
            let Some(process) = self.process(other) else {
                continue;
            };
            let member = process.node.membership().phase() == Phase::Member;
            let is_gone = |caller| process.node.membership().view().is_gone(caller);
            if member && !(process.node.is_empty() && process.program.is_empty(is_gone)) {
                let residue = process.node.residue();
                let program = &process.program;
                let what = format!("{node} may go while {other} has {residue:?} {program:?}");
                self.oracle.violated("S1", self.now, what);
            }
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
        for (number, call) in self.oracle.calls.iter().enumerate() {
            let due = u32::from(!call.no_outcome_due);
            if call.caller == node && call.outcomes != due {
                let (callee, outcomes) = (call.callee, call.outcomes);
                complaints.push(format!(
                    "call {number} from {node} to {callee} has {outcomes} outcomes"
                ));
            }
        }
        for (rref, fact) in &self.oracle.refs {
            let due = fact.value.is_some() || self.together(node, rref.origin);
            if fact.owner == node && due && !fact.freed {
                complaints.push(format!("{rref} on {node} was never freed"));
            }
        }
        if let Some(complaint) = complaints.first() {
            self.oracle.violated("R2", self.now, complaint.clone());
        }
    }
}
