//! Starts the ranks, watches them, and decides what follows from an end or a signal.
//!
//! 1. A rank that fails is started again while it may be; otherwise its failure ends the run. One that fails when all
//!    others have ended well is not started again: its group is over.
//! 2. Once the run ends, nobody is started again: all are asked to end, and killed after the grace period
//!    or at the second Ctrl-C.
//! 3. The first failure decides the exit code and has the last word. A signal is no failure: if all ranks of
//!    a node end well after it, so does the launcher, also of a node that learns of it from another.
//! 4. The launcher ends when nothing of any rank is left and all that they printed is written. It does not
//!    wait for ever for what was killed, nor, after a signal, for whoever should read the output.

use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until};

use super::arguments::Restart;
use super::environment::{Attempt, variables};
use super::failure::{Ending, Failure, Spoken, killed_by};
use super::life::{self, DYING, Event, Life};
use super::meeting::{self, Meeting, News, Over};
use super::orphans::Orphans;
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
    orphans: Orphans,
    ranks: Vec<Rank>,
    /// How often all ranks were started again.
    round: u32,
    phase: Phase,
    failure: Option<Failure>,
    /// The signal that ended the run, if one did, and the node that it came to.
    stopped_by: Option<(Signal, u32)>,
    /// This launcher was told to end.
    asked_to_end: bool,
    /// Somebody has pressed Ctrl-C since.
    interrupted: bool,
    /// A rank did not end well after it was asked to end.
    unwell: bool,
    events: (mpsc::Sender<Event>, mpsc::Receiver<Event>),
}

#[derive(Clone, Default, Debug)]
struct Rank {
    /// What watches it, until everything it printed is on its way out.
    watch: Option<AbortHandle>,
    /// The process group, until nothing of it is left.
    group: Option<Pid>,
    /// How often it was started again.
    restarts: u32,
    /// To be started again when its group is gone.
    comes_back: bool,
    /// It has ended well.
    is_done: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Running,
    /// All are asked to end, and killed at this time. Then the run is over, or begins again.
    Stopping {
        killing: Instant,
        again: bool,
    },
    /// All were killed. What is there at this time will stay.
    Killing {
        leaving: Option<Instant>,
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
        orphans: Orphans,
    ) -> Self {
        Self {
            plan,
            program,
            policy,
            meeting,
            output,
            signals,
            orphans,
            ranks: vec![Rank::default(); plan.ranks as usize],
            round: 0,
            phase: Phase::Running,
            failure: None,
            stopped_by: None,
            asked_to_end: false,
            interrupted: false,
            unwell: false,
            events: mpsc::channel(64),
        }
    }

    /// Runs until nothing is left of any rank; returns the exit code.
    pub(super) async fn run(mut self) -> u8 {
        self.start_all().await;
        loop {
            while self.ranks.iter().any(|rank| rank.watch.is_some()) {
                self.step().await;
            }
            match self.phase {
                Phase::Stopping { again: true, .. } | Phase::Killing { again: true, .. } => {
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
        // Whoever reads the output may take as long as they like, unless somebody wants this to end.
        tokio::select! {
            () = self.output.finish() => {}
            _ = until_ended(&mut self.signals) => {}
            () = sleep(self.policy.grace), if self.asked_to_end => {}
        }
        code
    }

    async fn step(&mut self) {
        let alarm = match self.phase {
            Phase::Running => None,
            Phase::Stopping { killing, .. } => Some(killing),
            Phase::Killing { leaving, .. } => leaving,
        };
        let listens = self.failure.is_none() && self.stopped_by.is_none();
        tokio::select! {
            Some(event) = self.events.1.recv() => match event {
                Event::Ended { local, ending, after } => self.ended(local, ending, after).await,
                Event::Empty { local, is_empty } => self.empty(local, is_empty),
                Event::Gone { local } => self.gone(local).await,
            },
            signal = self.signals.next() => self.signalled(signal).await,
            news = self.meeting.news(), if listens => self.heard(news).await,
            () = self.orphans.may_have_ended() => {
                let ranks = &self.ranks;
                self.orphans.reap(|id| ranks.iter().any(|rank| rank.group == Some(id)));
            }
            () = sleep_until(alarm.unwrap_or_else(Instant::now)), if alarm.is_some() => {
                match self.phase {
                    Phase::Killing { .. } => self.leave(),
                    _ => self.lose_patience(),
                }
            }
        }
    }

    /// The grace period is over.
    fn lose_patience(&mut self) {
        let left: Vec<String> = (0..self.plan.ranks)
            .filter(|local| self.is_there(*local))
            .map(|local| self.plan.title(local))
            .collect();
        self.kill();
        if left.is_empty() {
            // All that is left is output that nobody reads.
            return self.leave();
        }
        let grace = Spoken(self.policy.grace);
        let left = left.join(", ");
        self.output
            .say(&format!("still there after {grace}: {left}; killing"));
    }

    /// What was killed and is there nevertheless cannot be ended by anybody; and who wants this to end does
    /// not want to wait for a reader of the output.
    fn leave(&mut self) {
        let mut left = Vec::new();
        for (local, rank) in (0..).zip(&mut self.ranks) {
            let cannot_end = rank.group.take().is_some();
            if cannot_end {
                left.push(self.plan.title(local));
            }
            if (cannot_end || self.asked_to_end)
                && let Some(watch) = rank.watch.take()
            {
                watch.abort();
            }
        }
        let mut again = matches!(self.phase, Phase::Killing { again: true, .. });
        if !left.is_empty() {
            let text = format!("cannot be killed and is left behind: {}", left.join(", "));
            self.output.say(&text);
            self.unwell = true;
            if std::mem::take(&mut again) {
                self.failure.get_or_insert(Failure { code: 1, text });
            }
        }
        let leaving = None;
        self.phase = Phase::Killing { leaving, again };
    }

    /// What the launchers of other nodes have to say.
    async fn heard(&mut self, news: News) {
        match news {
            News::Over(over) => {
                self.is_over(over);
                self.meeting.heard().await;
            }
            News::Lost(error) => {
                let text = "the launcher of node 0 cannot be reached; the ranks here go on";
                self.output.say(&format!("{text} ({error})"));
            }
            News::Found => self.output.say("the launcher of node 0 is there again"),
        }
    }

    /// The run is over, because of another node.
    fn is_over(&mut self, over: Over) {
        let signal = match &over {
            Over::Failed(_) => Signal::TERM,
            Over::Stopped { signal, .. } => *signal,
        };
        self.note(over);
        self.stop(signal, false);
    }

    /// Notes why the run is over.
    fn note(&mut self, over: Over) {
        match over {
            Over::Failed(failure) => _ = self.failure.get_or_insert(failure),
            Over::Stopped { node, signal } => {
                self.unwell |= self.ranks.iter().any(|rank| rank.comes_back);
                self.stopped_by.get_or_insert((signal, node));
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
        rank.is_done = false;
        match Life::begin(self.program, variables) {
            Ok(life) => {
                rank.group = Some(life.group());
                let printers = self
                    .output
                    .printers(&self.plan.label(local), self.plan.rank(local));
                let events = self.events.0.clone();
                let watch = tokio::spawn(life.watch(local, printers, self.policy.grace, events));
                rank.watch = Some(watch.abort_handle());
            }
            Err(error) => {
                let ending = Ending::NotStarted(format!("{error:#}"));
                self.fail(local, &ending, Duration::ZERO).await;
            }
        }
    }

    async fn ended(&mut self, local: u32, ending: Ending, after: Duration) {
        if ending.is_success() {
            if let Some(rank) = self.ranks.get_mut(local as usize) {
                rank.is_done = true;
            }
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
            Restart::Failed if self.others_are_done(local) => {}
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

    /// Whether there were others, and all of them have ended well.
    fn others_are_done(&self, local: u32) -> bool {
        let mut others = (0..).zip(&self.ranks).filter(|(rank, _)| *rank != local);
        let are_all_here = self.plan.world_size() == self.plan.ranks && self.plan.ranks > 1;
        are_all_here && others.all(|(_, rank)| rank.is_done)
    }

    fn empty(&mut self, local: u32, is_empty: bool) {
        if let Some(rank) = self.ranks.get_mut(local as usize) {
            rank.group = None;
        }
        if !is_empty {
            let title = self.plan.title(local);
            let text = format!("{title} has left processes behind that cannot be killed");
            self.output.say(&text);
        }
    }

    async fn gone(&mut self, local: u32) {
        let Some(rank) = self.ranks.get_mut(local as usize) else {
            return;
        };
        rank.watch = None;
        let comes_back = std::mem::take(&mut rank.comes_back);
        if comes_back && self.phase == Phase::Running {
            self.start(local).await;
        }
    }

    async fn signalled(&mut self, signal: Signal) {
        if !signals::ends(signal) {
            return self.signal_all(signal);
        }
        self.asked_to_end = true;
        if signal == Signal::INT && std::mem::replace(&mut self.interrupted, true) {
            return self.kill();
        }
        if let Phase::Killing { leaving: None, .. } = self.phase {
            // Nothing is left but output.
            return self.leave();
        }
        self.stop(signal, false);
        if self.stopped_by.is_none() && self.failure.is_none() {
            let node = self.plan.node;
            let mine = Over::Stopped { node, signal };
            self.note(mine.clone());
            let first = self.meeting.tell(&mine).await;
            self.note(first);
            self.meeting.heard().await;
        }
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
            _ if self.others_are_done(local) => "; all others had ended well",
            _ => "; the others were stopped",
        };
        let spoken = Spoken(after);
        let text = match ending {
            Ending::NotStarted(_) => format!("{title} {ending}{others}"),
            _ => format!("{title} failed first: {ending} after {spoken}{lives}{others}"),
        };
        let code = ending.exit_code();
        self.stop(Signal::TERM, false);
        let mine = Over::Failed(Failure { code, text });
        let first = self.meeting.tell(&mine).await;
        if first != mine {
            self.unwell = true;
        }
        self.note(first);
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
            Phase::Killing {
                leaving,
                again: before,
            } => Phase::Killing {
                leaving,
                again: before && again,
            },
        };
    }

    fn kill(&mut self) {
        self.signal_all(Signal::KILL);
        let leaving = Some(Instant::now() + DYING);
        self.phase = match self.phase {
            Phase::Running => Phase::Killing {
                leaving,
                again: false,
            },
            Phase::Stopping { again, .. } => Phase::Killing { leaving, again },
            killing @ Phase::Killing { .. } => killing,
        };
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
            return self.say_done().await;
        }
        loop {
            tokio::select! {
                () = self.meeting.others_done() => return,
                news = self.meeting.news() => self.heard(news).await,
                signal = until_ended(&mut self.signals) => {
                    self.stopped_by = Some((signal, self.plan.node));
                }
            }
            if self.failure.is_some() || self.stopped_by.is_some() {
                return;
            }
        }
    }

    /// Tells node 0 that the ranks of this node have ended well.
    async fn say_done(&mut self) {
        if self.meeting.say_done(meeting::TELL).await {
            return;
        }
        let patience = Spoken(meeting::PATIENCE);
        self.output.say(&format!(
            "the ranks here have ended well; trying for {patience} to tell the launcher of node 0"
        ));
        tokio::select! {
            told = self.meeting.say_done(meeting::PATIENCE) => if !told {
                self.output.say("the launcher of node 0 could not be told");
            },
            signal = until_ended(&mut self.signals) => {
                self.stopped_by = Some((signal, self.plan.node));
            }
        }
    }

    fn verdict(&self) -> (u8, Option<String>) {
        if let Some(Failure { code, text }) = &self.failure {
            return (*code, Some(text.clone()));
        }
        match self.stopped_by {
            Some((signal, node)) => {
                let mut text = format!("stopped by {}", signals::name(signal));
                if node != self.plan.node {
                    text = format!("{text} on node {node}");
                }
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
