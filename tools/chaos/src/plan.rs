//! Which faults come when: chosen by the seed alone, before anything is started.
//!
//! 1. PL-1: the same seed and figures give the same plan.
//! 2. PL-2: a worker has one fault at a time, and some time without one after each.
//! 3. PL-3: fewer than half of the workers are away at a time, those among them that the group may not have heard of yet: all of them need a
//!    majority (F7), and the run is to go on.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;

/// What the plan is made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures {
    pub(super) seed: u64,
    /// How many workers there are. The last `unproxied` of them are not behind the proxy.
    pub(super) workers: u32,
    pub(super) unproxied: u32,
    pub(super) length: Duration,
    /// How many faults there are to be in a second, on average.
    pub(super) rate: f64,
    pub(super) peer_timeout: Duration,
}

/// Something that is done to a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fault {
    /// When, since the beginning.
    pub(super) at: Duration,
    /// To which worker.
    pub(super) worker: u32,
    pub(super) what: What,
    /// For how long. A worker that was killed or has left is started again after that.
    pub(super) lasts: Duration,
}

/// What is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum What {
    /// SIGKILL, and a new life later.
    Kill,
    /// It leaves the group, and joins again later, as a new life.
    Leave,
    /// SIGSTOP, and SIGCONT later.
    Stop,
    /// Each connection to it breaks after so many bytes, wherever in a frame that is.
    Cut { after: u64 },
    /// What goes to it and comes from it over connections that others have made takes so much longer.
    Delay { by: Duration },
    /// Of that, so many bytes pass in a second.
    Throttle { bytes_per_second: u64 },
    /// Nothing passes in one direction; the other one is as ever.
    HalfOpen { inward: bool },
}

impl What {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Kill => "kill",
            Self::Leave => "leave",
            Self::Stop => "stop",
            Self::Cut { .. } => "cut",
            Self::Delay { .. } => "delay",
            Self::Throttle { .. } => "throttle",
            Self::HalfOpen { .. } => "half-open",
        }
    }

    /// Whether it is done to the worker's connections, and not to its process.
    pub(super) fn is_of_links(self) -> bool {
        match self {
            Self::Kill | Self::Leave | Self::Stop => false,
            Self::Cut { .. }
            | Self::Delay { .. }
            | Self::Throttle { .. }
            | Self::HalfOpen { .. } => true,
        }
    }
}

impl Fault {
    /// Whether the others may lose the worker by it. All else is over long before they would (F1), and must lose nothing (D2).
    pub(super) fn loses(&self, peer_timeout: Duration) -> bool {
        match self.what {
            What::Kill | What::Leave => true,
            What::Stop | What::HalfOpen { .. } => self.lasts > Self::harmless(peer_timeout),
            What::Cut { .. } | What::Delay { .. } | What::Throttle { .. } => false,
        }
    }

    /// How long a worker may be silent so that nobody thinks anything of it.
    fn harmless(peer_timeout: Duration) -> Duration {
        peer_timeout / 2
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasts = self.lasts.as_millis();
        match self.what {
            What::Kill => write!(f, "killed, back after {lasts} ms"),
            What::Leave => write!(f, "leaves, back after {lasts} ms"),
            What::Stop => write!(f, "stopped for {lasts} ms"),
            What::Cut { after } => write!(
                f,
                "connections cut after {after} bytes each, for {lasts} ms"
            ),
            What::Delay { by } => {
                write!(f, "{} ms more on the way, for {lasts} ms", by.as_millis())
            }
            What::Throttle { bytes_per_second } => {
                write!(f, "{bytes_per_second} bytes/s, for {lasts} ms")
            }
            What::HalfOpen { inward: true } => write!(f, "nothing gets in, for {lasts} ms"),
            What::HalfOpen { inward: false } => write!(f, "nothing gets out, for {lasts} ms"),
        }
    }
}

/// How long the group takes at most to be itself again after a fault: a new life has joined, and all know of it.
pub(super) fn recovery(peer_timeout: Duration) -> Duration {
    peer_timeout + Duration::from_secs(2)
}

/// How many workers may be away at a time (PL-3).
pub(super) fn most_away(workers: u32) -> u32 {
    (workers.saturating_sub(1) / 2).saturating_sub(1).max(1)
}

/// All faults of a run, by their times, and how many there would have been besides, had there been a worker for each (PL-2, PL-3).
pub(super) fn make(figures: &Figures) -> (Vec<Fault>, u32) {
    let mut random = Rng::with_seed(figures.seed ^ 0x00c4_a05f_a017);
    let mut planned = Planned::new(figures);
    let mut left_out = 0;
    let mut at = next_gap(&mut random, figures.rate);
    while at < figures.length {
        planned.forget(at);
        match planned.choose(at, &mut random) {
            Some(fault) => planned.add(fault),
            None => left_out += 1,
        }
        at += next_gap(&mut random, figures.rate);
    }
    (planned.faults, left_out)
}

/// How long it is to the next fault: they come independently of each other.
fn next_gap(random: &mut Rng, rate: f64) -> Duration {
    if rate <= 0.0 {
        return Duration::MAX;
    }
    let gap = -(1.0 - random.f64()).ln() / rate;
    Duration::from_secs_f64(gap.clamp(0.001, 3600.0))
}

struct Planned<'a> {
    figures: &'a Figures,
    faults: Vec<Fault>,
    /// Until when each worker is spared.
    busy_until: Vec<Duration>,
    /// Until when those are away that are, at the moment that is planned for.
    away_until: Vec<Duration>,
}

impl<'a> Planned<'a> {
    fn new(figures: &'a Figures) -> Self {
        Self {
            figures,
            faults: Vec::new(),
            busy_until: vec![Duration::ZERO; figures.workers as usize],
            away_until: Vec::new(),
        }
    }

    /// Forgets who is back by now.
    fn forget(&mut self, at: Duration) {
        self.away_until.retain(|until| *until > at);
    }

    fn choose(&self, at: Duration, random: &mut Rng) -> Option<Fault> {
        let (what, lasts) = draw(random, self.figures.peer_timeout);
        let workers = match what.is_of_links() {
            true => self.figures.workers.saturating_sub(self.figures.unproxied),
            false => self.figures.workers,
        };
        let is_free = |worker: &u32| self.busy_until[*worker as usize] <= at;
        let free: Vec<u32> = (0..workers).filter(is_free).collect();
        let worker = *free.get(random.usize(..free.len().max(1)))?;
        let fault = Fault {
            at,
            worker,
            what,
            lasts,
        };
        let is_one_too_many = self.away_until.len() >= most_away(self.figures.workers) as usize;
        (!fault.loses(self.figures.peer_timeout) || !is_one_too_many).then_some(fault)
    }

    fn add(&mut self, fault: Fault) {
        let peer_timeout = self.figures.peer_timeout;
        let over = fault.at + fault.lasts;
        let loses = fault.loses(peer_timeout);
        let rest = match loses {
            true => recovery(peer_timeout),
            false => Duration::from_millis(500),
        };
        self.busy_until[fault.worker as usize] = over + rest;
        if loses {
            self.away_until.push(over + rest);
        }
        self.faults.push(fault);
    }
}

/// A fault, and for how long.
fn draw(random: &mut Rng, peer_timeout: Duration) -> (What, Duration) {
    let mut between = |least: u64, most: u64| Duration::from_millis(random.u64(least..=most));
    let timeout = peer_timeout.as_millis() as u64;
    // What is to be harmless, with a margin: the machine is busy.
    let short = between(50, timeout / 4);
    let long = between(timeout * 3 / 2, timeout * 5 / 2);
    let away = between(100, 3_000);
    match random.u32(..100) {
        0..20 => (What::Kill, away),
        20..28 => (What::Leave, away),
        28..42 => (What::Stop, short),
        42..46 => (What::Stop, long),
        46..66 => {
            let after = match random.u32(..100) {
                // Within a handshake, within a frame, within a large value.
                0..15 => random.u64(1..600),
                15..75 => random.u64(600..6_000),
                _ => random.u64(6_000..400_000),
            };
            (What::Cut { after }, short)
        }
        66..78 => {
            let by = Duration::from_millis(random.u64(5..300));
            (What::Delay { by }, short)
        }
        78..88 => {
            let bytes_per_second = random.u64(20_000..2_000_000);
            (What::Throttle { bytes_per_second }, short)
        }
        _ => {
            let inward = random.bool();
            (What::HalfOpen { inward }, short)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(seed: u64) -> Figures {
        Figures {
            seed,
            workers: 8,
            unproxied: 2,
            length: Duration::from_secs(300),
            rate: 2.0,
            peer_timeout: Duration::from_secs(6),
        }
    }

    #[test]
    fn pl_1_a_seed_is_a_plan_and_another_seed_another_one() {
        assert_eq!(make(&figures(7)), make(&figures(7)));
        assert_ne!(make(&figures(7)), make(&figures(8)));
    }

    #[test]
    fn every_kind_of_fault_comes_and_about_as_many_as_were_asked_for() {
        let (faults, left_out) = make(&figures(7));
        let names = [
            "kill",
            "leave",
            "stop",
            "cut",
            "delay",
            "throttle",
            "half-open",
        ];
        for name in names {
            assert!(
                faults.iter().any(|fault| fault.what.name() == name),
                "{name}"
            );
        }
        let in_all = faults.len() + left_out as usize;
        assert!((480..720).contains(&in_all), "{in_all}");
        assert!(faults.iter().all(|fault| fault.at < figures(7).length));
        assert!(faults.is_sorted_by_key(|fault| fault.at));
    }

    #[test]
    fn pl_2_a_worker_has_one_fault_at_a_time() {
        for seed in 0..20 {
            let (faults, _) = make(&figures(seed));
            for (index, fault) in faults.iter().enumerate() {
                let mut later = faults[index + 1..].iter();
                let next = later.find(|later| later.worker == fault.worker);
                assert!(next.is_none_or(|next| next.at > fault.at + fault.lasts));
            }
        }
    }

    #[test]
    fn pl_3_fewer_than_half_are_away_at_a_time() {
        for seed in 0..20 {
            let figures = figures(seed);
            let (faults, _) = make(&figures);
            for fault in &faults {
                let away = faults.iter().filter(|other| {
                    let until = other.at + other.lasts + recovery(figures.peer_timeout);
                    other.loses(figures.peer_timeout) && other.at <= fault.at && fault.at < until
                });
                assert!(away.count() <= most_away(figures.workers) as usize);
            }
        }
        for workers in 4..65 {
            assert!(most_away(workers) * 2 < workers, "{workers}");
        }
    }

    #[test]
    fn connections_of_those_that_are_not_behind_the_proxy_are_left_alone() {
        let (faults, _) = make(&figures(7));
        assert!(faults.iter().any(|fault| fault.worker >= 6));
        let mut of_links = faults.iter().filter(|fault| fault.what.is_of_links());
        assert!(of_links.all(|fault| fault.worker < 6));
    }

    #[test]
    fn without_a_rate_there_is_no_fault() {
        let calm = Figures {
            rate: 0.0,
            ..figures(7)
        };
        assert_eq!(make(&calm), (Vec::new(), 0));
    }
}
