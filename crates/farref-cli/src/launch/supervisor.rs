//! Starts the ranks, watches them, and decides what follows from an end or a signal.
//!
//! 1. A rank that fails is started again while it may be; otherwise its failure ends the run.
//! 2. Once the run ends, nobody is started again: all are asked to end, and killed after the grace period
//!    or at the second Ctrl-C.
//! 3. The first failure decides the exit code and has the last word.
//! 4. The launcher ends when nothing of any rank is left.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::Restart;
use super::environment::{Attempt, variables};
use super::failure::{Ending, Failure, Spoken, killed_by};
use super::life::{self, Event, Life};
use super::meeting::Meeting;
use super::output::Output;
use super::plan::Plan;
use super::program::Program;
use super::signals::{self, Signals};

/// What to do about failures.
#[derive(Debug)]
pub(super) struct Policy {
    pub(super) restarts: u32,
    pub(super) restart: Restart,
    pub(super) grace: Duration,
}

#[derive(Debug)]
pub(super) struct Supervisor<'a> {
    plan: &'a Plan,
    program: &'a Program,
    policy: &'a Policy,
    meeting: &'a Meeting,
    output: Output,
    signals: Signals,
    ranks: Vec<Rank>,
    /// How often all ranks were started again.
    round: u32,
    phase: Phase,
    failure: Option<Failure>,
    /// The signal that ended the run, if one did.
    stopped_by: Option<Signal>,
    /// Somebody has pressed Ctrl-C since.
    interrupted: bool,
    /// A rank did not end well after it was asked to end.
    unwell: bool,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
}

#[derive(Clone, Default, Debug)]
struct Rank {
    /// The process group, until nothing of it is left.
    group: Option<Pid>,
    /// How often it was started again.
    restarts: u32,
    /// To be started again when its group is gone.
    comes_back: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    /// All are asked to end, and killed at this time. Then the run is over, or begins again.
    Stopping {
        killing: Instant,
        again: bool,
    },
    /// All were killed.
    Killing {
        again: bool,
    },
}

impl<'a> Supervisor<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        program: &'a Program,
        policy: &'a Policy,
        meeting: &'a Meeting,
        output: Output,
        signals: Signals,
    ) -> Self {
        Self {
            plan,
            program,
            policy,
            meeting,
            output,
            signals,
            ranks: vec![Rank::default(); plan.ranks as usize],
            round: 0,
            phase: Phase::Running,
            failure: None,
            stopped_by: None,
            interrupted: false,
            unwell: false,
            events: mpsc::channel(64),
        }
    }

    /// Runs until nothing is left of any rank; returns the exit code.
    pub(super) async fn run(mut self) -> u8 {
        self.start_all().await;
        loop {
            while self.ranks.iter().any(|rank| rank.group.is_some()) {
                self.step().await;
            }
            match self.phase {
                Phase::Stopping { again: true, .. } | Phase::Killing { again: true } => {
                    self.phase = Phase::Running;
                    self.round += 1;
                    self.start_all().await;
                }
                _ => break,
            }
        }
        self.wait_for_other_nodes().await;
        let (code, last_words) = self.verdict();
        if let Some(last_words) = last_words {
            self.output.say(&last_words);
        }
        // Whoever reads the output may take as long as they like, but must be able to leave.
        tokio::select! {
            () = self.output.finish() => {}
            _ = until_ended(&mut self.signals) => {}
        }
        code
    }

    async fn step(&mut self) {
        let killing = match self.phase {
            Phase::Stopping { killing, .. } => Some(killing),
            _ => None,
        };
        tokio::select! {
            Some(event) = self.events.1.recv() => match event {
                Event::Ended { local, ending, after } => self.ended(local, ending, after).await,
                Event::Gone { local } => self.gone(local).await,
            },
            signal = self.signals.next() => self.signalled(signal).await,
            failure = self.meeting.failure_elsewhere(), if self.failure.is_none() => {
                self.failure = Some(failure);
                self.stop(Signal::TERM, false);
                self.meeting.heard().await;
            }
            () = sleep_until(killing.unwrap_or_else(Instant::now)), if killing.is_some() => {
                let left: Vec<String> = (0..self.plan.ranks)
                    .filter(|local| self.is_there(*local))
                    .map(|local| self.plan.title(local))
                    .collect();
                let grace = Spoken(self.policy.grace);
                self.output.say(&format!("still there after {grace}: {}; killing", left.join(", ")));
                self.kill();
            }
        }
    }

    fn is_there(&self, local: u32) -> bool {
        let rank = self.ranks.get(local as usize);
        rank.is_some_and(|rank| rank.group.is_some())
    }

    async fn start_all(&mut self) {
        for local in 0..self.plan.ranks {
            // The one before may have been impossible to start.
            if self.phase == Phase::Running {
                self.start(local).await;
            }
        }
    }

    async fn start(&mut self, local: u32) {
        let Some(rank) = self.ranks.get_mut(local as usize) else {
            return;
        };
        let attempt = Attempt {
            round: self.round,
            restarts: rank.restarts + self.round,
            limit: self.policy.restarts,
        };
        let variables = variables(self.plan, local, self.meeting.place(), attempt);
        match Life::begin(self.program, variables) {
            Ok(life) => {
                rank.group = Some(life.group());
                let printers = self
                    .output
                    .printers(&self.plan.label(local), self.plan.rank(local));
                let events = self.events.0.clone();
                tokio::spawn(life.watch(local, printers, self.policy.grace, events));
            }
            Err(error) => {
                let ending = Ending::NotStarted(format!("{error:#}"));
                self.fail(local, &ending, Duration::ZERO).await;
            }
        }
    }

    async fn ended(&mut self, local: u32, ending: Ending, after: Duration) {
        if ending.is_success() {
            return;
        }
        if self.phase != Phase::Running {
            self.unwell = true;
            return;
        }
        let limit = self.policy.restarts;
        let title = self.plan.title(local);
        let spoken = Spoken(after);
        match self.policy.restart {
            Restart::Failed => {
                if let Some(rank) = self.ranks.get_mut(local as usize)
                    && rank.restarts < limit
                {
                    rank.restarts += 1;
                    rank.comes_back = true;
                    let count = rank.restarts;
                    let text = format!(
                        "{title} failed: {ending} after {spoken}; starting it again ({count} of {limit})"
                    );
                    return self.output.say(&text);
                }
            }
            Restart::All if self.round < limit => {
                let count = self.round + 1;
                let text = format!(
                    "{title} failed: {ending} after {spoken}; starting all again ({count} of {limit})"
                );
                self.output.say(&text);
                return self.stop(Signal::TERM, true);
            }
            Restart::All => {}
        }
        self.fail(local, &ending, after).await;
    }

    async fn gone(&mut self, local: u32) {
        let Some(rank) = self.ranks.get_mut(local as usize) else {
            return;
        };
        rank.group = None;
        let comes_back = std::mem::take(&mut rank.comes_back);
        if comes_back && self.phase == Phase::Running {
            self.start(local).await;
        }
    }

    async fn signalled(&mut self, signal: Signal) {
        if signal == Signal::INT && std::mem::replace(&mut self.interrupted, true) {
            return self.kill();
        }
        if !signals::ends(signal) {
            return self.signal_all(signal);
        }
        if self.stopped_by.is_none() && self.failure.is_none() {
            self.stopped_by = Some(signal);
            self.unwell = self.ranks.iter().any(|rank| rank.comes_back);
            let name = signals::name(signal);
            let node = self.plan.node;
            let code = killed_by(signal.as_raw());
            let text = format!("node {node} was stopped by {name}");
            self.stop(signal, false);
            self.meeting.tell(&Failure { code, text }).await;
            return;
        }
        self.stop(signal, false);
    }

    /// A failure that ends the run.
    async fn fail(&mut self, local: u32, ending: &Ending, after: Duration) {
        let title = self.plan.title(local);
        let lives = match self.ranks.get(local as usize) {
            Some(rank) if rank.restarts > 0 => format!(", the {} time", ordinal(rank.restarts + 1)),
            _ => String::new(),
        };
        let others = match self.plan.world_size() {
            1 => "",
            _ => "; the others were stopped",
        };
        let spoken = Spoken(after);
        let text = match ending {
            Ending::NotStarted(_) => format!("{title} {ending}{others}"),
            _ => format!("{title} failed first: {ending} after {spoken}{lives}{others}"),
        };
        let code = ending.exit_code();
        self.stop(Signal::TERM, false);
        let first = self.meeting.tell(&Failure { code, text }).await;
        self.failure.get_or_insert(first);
        self.meeting.heard().await;
    }

    /// Asks all to end. The first time decides when they are killed; who is told twice to end for good
    /// does not begin again.
    fn stop(&mut self, signal: Signal, again: bool) {
        self.signal_all(signal);
        self.phase = match self.phase {
            Phase::Running => Phase::Stopping {
                killing: Instant::now() + self.policy.grace,
                again,
            },
            Phase::Stopping {
                killing,
                again: before,
            } => Phase::Stopping {
                killing,
                again: before && again,
            },
            Phase::Killing { again: before } => Phase::Killing {
                again: before && again,
            },
        };
    }

    fn kill(&mut self) {
        self.signal_all(Signal::KILL);
        let again = matches!(
            self.phase,
            Phase::Stopping { again: true, .. } | Phase::Killing { again: true }
        );
        self.phase = Phase::Killing { again };
    }

    fn signal_all(&self, signal: Signal) {
        for group in self.ranks.iter().filter_map(|rank| rank.group) {
            life::signal(group, signal);
        }
    }

    /// All ranks here have ended well: the run has not while those of other nodes are at work.
    async fn wait_for_other_nodes(&mut self) {
        if self.failure.is_some() || self.stopped_by.is_some() {
            return;
        }
        if !self.meeting.hosts_others() {
            return self.meeting.say_done().await;
        }
        tokio::select! {
            () = self.meeting.others_done() => {}
            failure = self.meeting.failure_elsewhere() => {
                self.meeting.heard().await;
                self.failure = Some(failure);
            }
            signal = until_ended(&mut self.signals) => self.stopped_by = Some(signal),
        }
    }

    fn verdict(&self) -> (u8, Option<String>) {
        if let Some(Failure { code, text }) = &self.failure {
            return (*code, Some(text.clone()));
        }
        match self.stopped_by {
            Some(signal) => {
                let text = format!("stopped by {}", signals::name(signal));
                let code = match self.unwell {
                    true => killed_by(signal.as_raw()),
                    // Who finishes in order when asked to has done what it should.
                    false => 0,
                };
                (code, Some(text))
            }
            None => (0, None),
        }
    }
}

/// Waits for a signal that asks to end.
async fn until_ended(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if signals::ends(signal) {
            return signal;
        }
    }
}

fn ordinal(number: u32) -> String {
    let ending = match (number % 10, number % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{number}{ending}")
}
