//! What a simulation is made of, and what its seed makes of that.

use std::time::Duration;

use farref_proto::{NodeConfig, Session, SessionConfig};

use crate::process::Process;

/// The part of a simulation that its seed does not decide.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// How many workers a run has at the least. Default 3.
    pub min_workers: u32,
    /// How many workers a run has at the most. Default 8.
    pub max_workers: u32,
    /// How many things each worker's program does on its own. Default 24.
    pub steps: u32,
    /// Whether anything fails at all. Default true.
    pub faults: bool,
    /// Whether workers die most of the time right after handing on what they were handed, while the
    /// receiver can hardly reach the owner: the case of guarantee R4, many times over. Default false.
    pub relay_pressure: bool,
    /// Whether workers need a majority of their group, and the network splits in every run. Those that give up come back.
    /// Default false.
    pub require_majority: bool,
    /// A rule to break.
    #[cfg(feature = "mutations")]
    pub mutation: Option<Mutant>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            min_workers: 3,
            max_workers: 8,
            steps: 24,
            faults: true,
            relay_pressure: false,
            require_majority: false,
            #[cfg(feature = "mutations")]
            mutation: None,
        }
    }
}

/// A rule that a simulation breaks on every worker.
#[cfg(feature = "mutations")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mutant {
    /// One of a node's.
    Node(farref_proto::Mutation),
    /// Sessions hand over what they have handed over before.
    SessionForgetsDuplicates,
    /// Sessions do not send again what a broken connection lost.
    SessionForgetsReplay,
}

#[cfg(feature = "mutations")]
impl Config {
    pub(crate) fn break_session<F>(&self, session: &mut Session<F>) {
        match self.mutation {
            Some(Mutant::SessionForgetsDuplicates) => session.break_dedup(),
            Some(Mutant::SessionForgetsReplay) => session.break_replay(),
            _ => {}
        }
    }

    pub(crate) fn break_process(&self, process: &mut Process) {
        if let Some(Mutant::Node(mutation)) = self.mutation {
            process.node.mutate(mutation);
            process.out.mutate(mutation);
        }
    }
}

#[cfg(not(feature = "mutations"))]
impl Config {
    pub(crate) fn break_session<F>(&self, _: &mut Session<F>) {}

    pub(crate) fn break_process(&self, _: &mut Process) {}
}

/// What goes wrong in one run, and how often. Each run has only some kinds of faults, some of them often:
/// a mixture of everything in every run would hide what one kind does alone.
#[derive(Clone, Debug)]
pub(crate) struct Conditions {
    pub(crate) workers: u32,
    /// Per frame, in 1/1024.
    pub(crate) loss: u32,
    pub(crate) duplication: u32,
    pub(crate) reordering: u32,
    /// How many of each happen in the run.
    pub(crate) cuts: u32,
    pub(crate) partitions: u32,
    pub(crate) stalls: u32,
    pub(crate) crashes: u32,
    /// Crashes of workers that have just handed on what they were handed.
    pub(crate) relay_crashes: u32,
    /// Crashes of workers that have just handed on a reference to what they asked for, before its
    /// owner has heard of it.
    pub(crate) creator_crashes: u32,
    pub(crate) leaves: u32,
    pub(crate) joins: u32,
    /// Joins while somebody departs, over links that fail.
    pub(crate) crowded_joins: u32,
    /// How often the first to know of a death dies, too, while somebody joins through it.
    pub(crate) sponsor_crashes: u32,
    /// How often one worker dies and comes back in quick succession.
    pub(crate) flaps: u32,
    /// Whether crashed workers come back.
    pub(crate) restarts: bool,
    /// The longest a frame takes.
    pub(crate) max_delay: Duration,
    /// The longest a control message waits to be sent with others.
    pub(crate) max_flush: Duration,
    /// How often a call is taken back instead of being sent, in 1/16.
    pub(crate) undo: u32,
    /// The longest a call waits before it is sent, as those do for which there is no room.
    pub(crate) max_parking: Duration,
    /// Whether functions fetch what they are given at once, and change their minds.
    pub(crate) eager: bool,
    /// How many references to values not yet created a worker keeps for each shard, if they are few.
    pub(crate) pending_quota: Option<usize>,
    pub(crate) contexts: bool,
    pub(crate) ref_shards: u32,
    /// Sessions so impatient that partitions and stalls get workers declared dead that are not.
    pub(crate) impatient: bool,
    /// How many members a group lets in, if there may be too many.
    pub(crate) max_members: Option<usize>,
    /// How many changes one worker may tell of before they are settled.
    pub(crate) max_unsettled: usize,
    /// How many standings are told to a worker that was never heard.
    pub(crate) max_unheard: usize,
    /// After how long somebody comes who does not fit to a member.
    pub(crate) unfit_joins: Vec<Duration>,
    /// Decides who that is.
    pub(crate) unfit: fastrand::Rng,
}

impl Conditions {
    pub(crate) fn new(config: &Config, rng: &mut fastrand::Rng) -> Self {
        // Drawn apart, so that all else stays as it was before there were these.
        let mut limits = fastrand::Rng::with_seed(rng.clone().u64(..));
        let mut unfit = fastrand::Rng::with_seed(rng.clone().u64(..).rotate_left(32));
        let unfit_joins = match unfit.u32(0..8) {
            _ if !config.faults => 0,
            0 => unfit.u32(1..=2),
            _ => 0,
        };
        let unfit_joins = (0..unfit_joins).map(|_| Duration::from_micros(unfit.u64(0..380_000)));
        let unfit_joins: Vec<Duration> = unfit_joins.collect();
        let workers = rng.u32(config.min_workers..=config.max_workers.max(config.min_workers));
        let mut some = |chance: f64, range: std::ops::RangeInclusive<u32>| {
            let drawn = rng.u32(range);
            let happens = rng.f64() < chance;
            if config.faults && happens { drawn } else { 0 }
        };
        let loss = some(0.3, 1..=40);
        let duplication = some(0.3, 1..=80);
        let reordering = some(0.2, 1..=40);
        let cuts = some(0.5, 1..=12);
        let partitions = some(0.25, 1..=3);
        let stalls = some(0.25, 1..=3);
        let crashes = some(0.5, 1..=3);
        let relay_crashes = some(0.3, 1..=2);
        let leaves = some(0.15, 1..=2);
        let joins = some(0.2, 1..=2);
        let creator_crashes = some(0.25, 1..=2);
        let crowded_joins = some(0.25, 1..=3);
        let sponsor_crashes = some(0.5, 1..=2);
        let flaps = some(0.15, 2..=5);
        let mut conditions = Self {
            workers,
            loss,
            duplication,
            reordering,
            cuts,
            partitions,
            stalls,
            crashes,
            relay_crashes,
            creator_crashes,
            leaves,
            joins,
            crowded_joins,
            sponsor_crashes,
            flaps,
            restarts: rng.bool(),
            max_delay: Duration::from_micros(rng.u64(100..=20_000)),
            max_flush: Duration::from_micros(if rng.u32(0..4) == 0 {
                rng.u64(3_000..=20_000)
            } else {
                rng.u64(1..=3_000)
            }),
            undo: if rng.bool() { 0 } else { 2 },
            max_parking: Duration::from_micros(if rng.bool() { 0 } else { rng.u64(1..30_000) }),
            eager: rng.bool(),
            pending_quota: (rng.u32(0..6) == 0).then(|| rng.usize(1..5)),
            contexts: rng.bool(),
            ref_shards: rng.u32(1..=3),
            impatient: rng.u32(0..4) == 0,
            max_members: (limits.u32(0..4) == 0).then(|| workers as usize + limits.usize(0..3)),
            max_unsettled: 32 + 4 * workers as usize,
            max_unheard: match limits.bool() {
                true => limits.usize(0..3),
                false => NodeConfig::default().max_unheard,
            },
            unfit_joins,
            unfit,
        };
        if config.require_majority && config.faults {
            conditions.partitions = rng.u32(1..=4);
            conditions.impatient = true;
        }
        conditions
    }

    /// Sessions as in production, only less patient, so that a second holds many silences.
    pub(crate) fn session_config(&self) -> SessionConfig {
        let millis = if self.impatient {
            [120, 30, 60]
        } else {
            [1000, 250, 200]
        };
        let [peer_timeout, heartbeat_interval, ack_timeout] = millis.map(Duration::from_millis);
        let mut config = SessionConfig::default();
        config.peer_timeout = peer_timeout;
        config.heartbeat_interval = heartbeat_interval;
        config.ack_timeout = ack_timeout;
        config
    }
}
