//! The run itself: starts the workers, lets the faults come, brings all to rest, ends it.
//!
//! The driver is no member of the group. It knows its workers by their processes: what they say, and how they end. Whatever it waits
//! for in vain it notes as a hang, and goes on, so that there is always something to check.

use std::time::Duration;

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::faults::{Afterwards, Faults};
use super::group::{Group, Happening, Member, Process, Setup};
use super::history::{self, Event, Life};
use super::interrupts::Interrupts;
use super::plan::{Fault, recovery};
use super::worker::{EVICTED, IN_MINORITY, Order};
use farref_progress::Progress;

/// How often the driver looks whether it has been kept from running, at least.
const TICK: Duration = Duration::from_millis(100);
/// How long workers may take to start and to join.
const JOINING: Duration = Duration::from_secs(90);
/// How long their calls may take to end: they have limits, a step of training three of 30 s (CK-4 is about each of them).
const CALMING: Duration = Duration::from_secs(100);
/// How long what they have let go may take to be freed; they themselves give up before.
const SETTLING: Duration = Duration::from_secs(60);
/// How long the shutdown may take.
const ENDING: Duration = Duration::from_secs(90);
/// How long a worker is away that has ended by itself.
const AWAY: Duration = Duration::from_millis(500);
/// So many bad ends are enough to know that something is wrong: the load ends then, and nobody is started again.
const ENOUGH: u32 = 8;

/// What has become of a run, besides what is in the histories.
#[derive(Clone, Copy, Debug)]
pub(super) struct Outcome {
    /// Faults whose worker was not there when they were to come.
    pub(super) skipped: u32,
    /// Connections that were cut.
    pub(super) cuts: u64,
    /// How long the load was.
    pub(super) load: Duration,
    /// Why it ended before its time.
    pub(super) early: Option<Early>,
}

/// Why a run ends before its time. What has happened is checked all the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Early {
    /// It was asked to, by a signal.
    Interrupted,
    /// Workers ended badly again and again.
    BadEnds,
}

/// What all are to do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Phase {
    Load,
    Quiet,
    LetGo,
    End,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Quiet => "quiet",
            Self::LetGo => "let go",
            Self::End => history::END,
        }
    }

    /// What a worker is to be told that comes now.
    fn orders(self) -> &'static [Order] {
        match self {
            Self::Load => &[],
            Self::Quiet => &[Order::Quiet],
            Self::LetGo => &[Order::Quiet, Order::LetGo],
            Self::End => &[Order::Quiet, Order::LetGo, Order::End],
        }
    }
}

/// Something that is to be done at a moment.
#[derive(Clone, Copy, Debug)]
enum Due {
    Undo(u32),
    /// With the fault that it was away for.
    Start(usize, Option<u32>),
}

struct Driver {
    group: Group,
    happenings: mpsc::UnboundedReceiver<Happening>,
    faults: Faults,
    peer_timeout: Duration,
    phase: Phase,
    due: Vec<(Instant, Due)>,
    /// When it looked at the clock last.
    looked: Instant,
    cuts: u64,
    bad_ends: u32,
    interrupts: Interrupts,
    /// Whether it was asked to end.
    interrupted: bool,
    /// Whether all have come together.
    met: bool,
    early: Option<Early>,
}

/// Runs a plan.
pub(super) async fn run(
    setup: Setup,
    plan: &[Fault],
    length: Duration,
    progress: &Progress,
) -> anyhow::Result<Outcome> {
    let peer_timeout = setup.peer_timeout;
    // Before the first process, so that no signal ends the driver alone.
    let interrupts = Interrupts::listen().context("cannot listen for signals")?;
    let (group, happenings) = Group::prepare(setup).await?;
    let mut driver = Driver {
        group,
        happenings,
        faults: Faults::default(),
        peer_timeout,
        phase: Phase::Load,
        due: Vec::new(),
        looked: Instant::now(),
        cuts: 0,
        bad_ends: 0,
        interrupts,
        interrupted: false,
        met: false,
        early: None,
    };
    driver.begin(progress).await?;
    let began = Instant::now();
    driver.load(plan, length, progress).await?;
    let load = began.elapsed();
    driver.come_to_rest(progress).await?;
    Ok(Outcome {
        skipped: driver.faults.skipped,
        cuts: driver.cuts,
        load,
        early: driver.early,
    })
}

impl Driver {
    async fn begin(&mut self, progress: &Progress) -> anyhow::Result<()> {
        progress.say("the workers meet");
        self.enter(Phase::Load);
        for index in 0..self.group.members.len() {
            self.group.start(index)?;
        }
        let all = self.until(JOINING, |process| process.joined).await?;
        if !all {
            bail!(
                "the workers did not come together: see what they wrote, in the folder of their histories"
            );
        }
        self.met = true;
        Ok(())
    }

    /// Lets the faults come.
    async fn load(
        &mut self,
        plan: &[Fault],
        length: Duration,
        progress: &Progress,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        let mut to_come = plan.iter().peekable();
        let mut seconds = 0;
        while began.elapsed() < length {
            if self.interrupted {
                self.early.get_or_insert(Early::Interrupted);
                progress.note(
                    "asked to end: all come to rest and are checked; the same again ends at once",
                );
            }
            if self.early.is_some() {
                break;
            }
            while let Some(fault) = to_come.next_if(|fault| fault.at <= began.elapsed()) {
                let (group, peer_timeout) = (&mut self.group, self.peer_timeout);
                let afterwards = self.faults.inject(fault, group, peer_timeout).await;
                if let Some(Afterwards::Undo { number, after }) = afterwards {
                    self.due.push((Instant::now() + after, Due::Undo(number)));
                }
            }
            let next = to_come.peek().map_or(length, |fault| fault.at.min(length));
            self.step(began + next).await?;
            while seconds < began.elapsed().min(length).as_secs() {
                seconds += 1;
                progress.step(&format!(
                    "{} faults, {} of {} workers are there",
                    self.faults.count(),
                    self.group.present(),
                    self.group.members.len()
                ));
            }
        }
        Ok(())
    }

    /// No more faults; all let go of everything, and end.
    async fn come_to_rest(&mut self, progress: &Progress) -> anyhow::Result<()> {
        progress.say("the faults are over: all come back");
        self.faults.undo_all(&self.group);
        // Who is out of the group finds out and comes back.
        let recovered = Instant::now() + recovery(self.peer_timeout);
        while Instant::now() < recovered {
            self.step(recovered).await?;
        }
        self.in_time(JOINING, "did not come back", |process| process.joined)
            .await?;

        progress.say("the last calls");
        self.tell_all(Phase::Quiet).await;
        self.in_time(CALMING, "waits for calls that should be over", |process| {
            process.quiet
        })
        .await?;

        progress.say("everything is let go");
        self.tell_all(Phase::LetGo).await;
        self.in_time(SETTLING, "does not say what it has left", |process| {
            process.settled
        })
        .await?;

        progress.say("the end");
        self.tell_all(Phase::End).await;
        // No process is there that has not ended.
        self.in_time(ENDING, "does not end", |_| false).await?;
        for index in 0..self.group.members.len() {
            self.group.signal(index, Signal::KILL);
        }
        Ok(())
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        let name = phase.name().to_owned();
        history::note(Event::Phase { name });
    }

    async fn tell_all(&mut self, phase: Phase) {
        self.enter(phase);
        let Some(order) = phase.orders().last() else {
            return;
        };
        for index in 0..self.group.members.len() {
            let process = self.group.members[index].process.as_ref();
            // Who has not joined is told when it has.
            if process.is_some_and(|process| process.joined) {
                self.group.tell(index, *order).await;
            }
        }
    }

    /// Waits until all have done something. Who has not in time is noted.
    async fn in_time(
        &mut self,
        limit: Duration,
        complaint: &str,
        is_done: impl Fn(&Process) -> bool,
    ) -> anyhow::Result<()> {
        if self.until(limit, &is_done).await? {
            return Ok(());
        }
        for member in &self.group.members {
            let is_late = |process: &&Process| !is_done(process);
            if let Some(process) = member.process.as_ref().filter(is_late) {
                history::note(Event::Hung {
                    life: process.life,
                    what: format!("{} {complaint}, after {limit:?}", member.name),
                });
            }
        }
        Ok(())
    }

    /// Waits until all workers have done something, or in the end are gone. Whether they have in time.
    async fn until(
        &mut self,
        limit: Duration,
        is_done: impl Fn(&Process) -> bool,
    ) -> anyhow::Result<bool> {
        let deadline = Instant::now() + limit;
        loop {
            let ends = self.phase == Phase::End || self.gave_up();
            let is_done = |member: &Member| match &member.process {
                Some(process) => is_done(process),
                None => ends,
            };
            if self.group.members.iter().all(is_done) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            self.step(deadline).await?;
        }
    }

    /// Takes up what comes, at the latest until something is due.
    async fn step(&mut self, until: Instant) -> anyhow::Result<()> {
        let next = self.due.iter().map(|(at, _)| *at).min();
        let until = until.min(Instant::now() + TICK);
        let until = next.map_or(until, |next| next.min(until));
        tokio::select! {
            happening = self.happenings.recv() => {
                let happening = happening.context("the workers are not heard any more")?;
                self.take_up(happening).await?;
            }
            () = self.interrupts.next() => {
                if self.interrupted {
                    bail!("asked to end a second time: nothing was checked");
                }
                self.interrupted = true;
            }
            () = tokio::time::sleep_until(until) => {}
        }
        self.look_at_clock();
        self.do_what_is_due()
    }

    /// Whether those who are not there are not to come back.
    fn gave_up(&self) -> bool {
        self.early == Some(Early::BadEnds)
    }

    /// Workers are no better off than the driver: if it did not get to run, they may have seemed dead to each other.
    fn look_at_clock(&mut self) {
        let now = Instant::now();
        let since = now - std::mem::replace(&mut self.looked, now);
        if since > self.peer_timeout / 4 {
            let micros = since.as_micros() as u64;
            history::note(Event::Stalled { micros });
        }
    }

    fn do_what_is_due(&mut self) -> anyhow::Result<()> {
        let now = Instant::now();
        let all = std::mem::take(&mut self.due).into_iter();
        let (due, later): (Vec<_>, Vec<_>) = all.partition(|(at, _)| *at <= now);
        self.due = later;
        for (_, due) in due {
            match due {
                Due::Undo(number) => self.faults.undo(number, &self.group),
                Due::Start(index, fault) => {
                    if !self.gave_up() {
                        self.group.start(index)?;
                    }
                    if let Some(number) = fault {
                        self.faults.undo(number, &self.group);
                    }
                }
            }
        }
        Ok(())
    }

    async fn take_up(&mut self, happening: Happening) -> anyhow::Result<()> {
        match happening {
            Happening::Said { life, word } => {
                let Some(index) = self.group.find(life) else {
                    return Ok(());
                };
                let Some(process) = &mut self.group.members[index].process else {
                    return Ok(());
                };
                let had_joined = process.joined;
                process.said(&word);
                if process.joined && !had_joined {
                    for order in self.phase.orders() {
                        self.group.tell(index, *order).await;
                    }
                }
            }
            Happening::Gone { life, code } => self.take_up_end(life, code)?,
        }
        Ok(())
    }

    fn take_up_end(&mut self, life: Life, code: Option<i32>) -> anyhow::Result<()> {
        let Some(index) = self.group.find(life) else {
            return Ok(());
        };
        let Some(process) = self.group.members[index].process.take() else {
            return Ok(());
        };
        let killed = process.killed;
        history::note(Event::Gone { life, killed, code });
        self.cuts += process.door.as_ref().map_or(0, |door| door.cuts());
        // Nobody listens there any more.
        drop(process);
        let is_bad = !killed && !matches!(code, Some(0 | EVICTED | IN_MINORITY));
        if is_bad {
            self.bad_ends += 1;
            if self.bad_ends >= ENOUGH && !self.met {
                bail!(
                    "workers end badly again and again: see what they wrote, in the folder of their histories"
                );
            }
            if self.bad_ends >= ENOUGH {
                self.early = Some(Early::BadEnds);
            }
        }
        if self.phase == Phase::End {
            return Ok(());
        }
        let (fault, away) = match self.faults.ended_by(life) {
            Some((number, away)) => (Some(number), away),
            None => (None, AWAY),
        };
        let again = Due::Start(index, fault);
        self.due.push((Instant::now() + away, again));
        Ok(())
    }
}
