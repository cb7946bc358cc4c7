//! The world: virtual time, the queue of things to happen, and every worker's processes.

use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use farref_proto::{Membership, Node, NodeConfig, NodeId, Phase, SessionConfig, Time, View};

use crate::config::{Conditions, Config};
use crate::happening::Happening;
use crate::link::Link;
use crate::oracle::{Oracle, Violation};
use crate::process::Process;
use crate::stats::Stats;

/// How long programs run before everything is let go.
const PROGRAM: Duration = Duration::from_millis(400);
/// How long the rest may take after that.
pub(crate) const DRAIN: Duration = Duration::from_secs(120);

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
    pub(crate) conditions: Conditions,
    pub(crate) patience: Rc<SessionConfig>,
    seed: u64,
    pub(crate) rng: fastrand::Rng,
    pub(crate) now: Time,
    /// By when it happens, and of what happens at one time, what was scheduled first.
    queue: BTreeMap<(Time, u64), Happening>,
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
    /// Somebody has ended since this was last looked at: all may have.
    pub(crate) somebody_ended: bool,
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
        let conditions = Conditions::new(config, &mut rng);
        let workers = conditions.workers;
        let mut world = Self {
            config: Rc::new(config.clone()),
            patience: Rc::new(conditions.session_config()),
            seed,
            rng,
            now: Time::ZERO + Duration::from_millis(1),
            queue: BTreeMap::new(),
            order: 0,
            processes: Vec::new(),
            incarnations: vec![1; workers as usize],
            links: BTreeMap::new(),
            oracle: Oracle::default(),
            stats: Stats::default(),
            trace: traced.then(Vec::new),
            draining: false,
            somebody_ended: false,
            next_task: 0,
            conditions,
        };
        let members: Vec<NodeId> = (0..workers).map(|worker| NodeId::new(worker, 1)).collect();
        let view = View::of(members.iter().copied());
        for &me in &members {
            let process = world.new_process(me, Membership::founded(me, view.clone()));
            world.processes.push(Some(process));
        }
        for me in members {
            world.keep_in_sight(me);
            world.start_program(me);
        }
        world.schedule_faults();
        world.schedule(world.now + PROGRAM, Happening::EndOfProgram);
        world
    }

    pub(crate) fn new_process(&self, me: NodeId, membership: Membership) -> Process {
        let mut config = NodeConfig::default();
        config.ref_shards = self.conditions.ref_shards;
        config.probe_interval = Duration::from_millis(40);
        config.require_majority = self.config.require_majority;
        if let Some(quota) = self.conditions.pending_quota {
            config.max_pending_owners = quota;
        }
        if let Some(most) = self.conditions.max_members {
            config.max_members = most;
            // As many again, should groups meet.
            config.max_lives = 2 * most + 4;
        }
        config.max_unsettled = self.conditions.max_unsettled;
        config.max_unheard = self.conditions.max_unheard;
        let mut process = Process::new(Node::new(me, membership, config));
        self.config.break_process(&mut process);
        process
    }

    fn run(&mut self) -> Result<Stats, Box<Failure>> {
        let limit = self.now + PROGRAM + DRAIN;
        while let Some(((at, _), happening)) = self.queue.pop_first() {
            self.now = at;
            if self.now > limit {
                self.not_at_rest();
                break;
            }
            self.stats.steps += 1;
            self.happen(happening);
            if self.oracle.violation.is_some() || self.is_over() {
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
        self.queue.insert((at, self.order), happening);
    }

    fn happen(&mut self, happening: Happening) {
        if let Some(node) = happening.process() {
            let now = self.now;
            match self.process(node) {
                Some(process) if process.stalled_until > now => {
                    let at = process.stalled_until;
                    return self.schedule(at, happening);
                }
                Some(process) if process.resigned && !happening.outlives_membership() => return,
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

    /// Whether `a` and `b` both run, have not resigned, and neither has the other for gone.
    pub(crate) fn together(&self, a: NodeId, b: NodeId) -> bool {
        let find = |node: NodeId| {
            let process = self.processes.get(node.worker.0 as usize)?.as_ref()?;
            (process.me() == node && !process.resigned).then_some(process)
        };
        let (Some(first), Some(second)) = (find(a), find(b)) else {
            return false;
        };
        !first.node.membership().view().is_gone(b) && !second.node.membership().view().is_gone(a)
    }
}
