//! Graceful shutdown: finding out that every worker is at rest.
//!
//! The leader asks all members for what they have left and for a counter that changes whenever a
//! node does anything. Every message in flight is remembered by somebody's table (a registration by
//! its pending user, a release by the fork on the owner, a call by its caller), so the group is at
//! rest when all tables are empty *at one moment*.
//!
//! A worker that only serves has nothing against the shutdown and does not ask for one: somebody else
//! has to. The leader also finds out whether *all* want it by now, and says so: until then some of them
//! work, and however long that takes is no fault of the shutdown.
//!
//! # Invariants
//!
//! - **QU-1** Shutdown is complete only after two successive rounds, with the same view, in which every
//!   live member had nothing left and no member's counter moved: all were idle from their first report
//!   to their second, and those spans share a moment.
//! - **QU-2** Departed members are not waited for.
//! - **QU-3** A node takes the wish for unanimous only while the leader knows of every live member that it
//!   wants the shutdown or only serves.
//! - **QU-4** Where all only serve nobody is asked and nothing completes. A wish that any of them was
//!   asked about outlives whoever had it.
//! - **QU-5** A group at rest lets nobody in. A newcomer takes the leader's word to be let in, which follows
//!   behind the leader's word that all is done; so nobody has let it in before that.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Membership;
use crate::ids::NodeId;
use crate::message::Control;
use crate::mutation::{Mutant, mutated};
use crate::residue::Residue;
use crate::time::Time;

/// How many laggards a probe names.
const MAX_NAMED: usize = 16;

/// How many times the interval may pass between two questions while somebody works: that may be for
/// hours, and those who are done say so unasked.
const LONGEST_PAUSE: u32 = 16;

/// How many members are asked anew in each interval. A leader of more waits longer before it asks them all again, but no more
/// than [`LONGEST_PAUSE`].
const ASKED_AT_ONCE: usize = 64;

/// One node's part in a graceful shutdown.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Quiescence {
    wants_shutdown: bool,
    complete: bool,
    /// Whether anyone is known to want the shutdown: then the leader asks around.
    called_for: bool,
    /// Whom this node has told that it wants the shutdown.
    told: Option<NodeId>,
    interval: Duration,
    /// How long after the last look the next one is.
    pause: Duration,
    next_probe: Time,
    /// When the leader of a large group asks all members again, unless there is something to tell them or all are idle.
    next_round: Time,
    /// Whether those who were asked last were told that all want it.
    told_all_willing: bool,
    round: u64,
    /// Who was asked in this round.
    asked: BTreeSet<NodeId>,
    reports: BTreeMap<NodeId, (u64, Residue)>,
    /// Who is known to want the shutdown. Nobody takes that back.
    willing: BTreeSet<NodeId>,
    all_willing: bool,
    /// The number of the view and the counters of the last round, if everybody was idle in it.
    idle_before: Option<(u64, BTreeMap<NodeId, u64>)>,
    waiting_for: Vec<(NodeId, Residue)>,
    pub(crate) mutant: Mutant,
}

impl Quiescence {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            wants_shutdown: false,
            complete: false,
            called_for: false,
            told: None,
            interval,
            pause: interval,
            next_probe: Time::ZERO,
            next_round: Time::ZERO,
            told_all_willing: false,
            round: 0,
            asked: BTreeSet::new(),
            reports: BTreeMap::new(),
            willing: BTreeSet::new(),
            all_willing: false,
            idle_before: None,
            waiting_for: Vec::new(),
            mutant: Mutant::default(),
        }
    }

    /// The program wants to shut down.
    pub(crate) fn start(&mut self) {
        self.wants_shutdown = true;
        self.called_for = true;
        self.look_soon();
    }

    /// The program only serves, and ends with the others.
    pub(crate) fn serve(&mut self) {
        self.wants_shutdown = true;
        self.look_soon();
    }

    /// Whether the program wants to shut down, or only serves.
    pub fn wants_shutdown(&self) -> bool {
        self.wants_shutdown
    }

    /// Whether every live member wants to shut down, or only serves, as far as this node was told.
    pub fn all_willing(&self) -> bool {
        self.all_willing
    }

    /// Whether everyone was found at rest.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// Who keeps the shutdown waiting, and with what, as far as this node was told.
    pub fn waiting_for(&self) -> &[(NodeId, Residue)] {
        &self.waiting_for
    }

    /// Whether those are all, and not only the first of them. Whoever has more left than references is
    /// named before those who have not.
    pub fn names_all(&self) -> bool {
        self.waiting_for.len() < MAX_NAMED
    }

    /// When [`poll`](Self::poll) has something to do.
    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        (self.called_for && !self.complete).then_some(self.next_probe)
    }

    /// Asks around if this node is the leader; tells the leader if it is not.
    pub(crate) fn poll(
        &mut self,
        now: Time,
        me: NodeId,
        membership: &Membership,
        mine: (u64, Residue),
    ) -> Vec<(NodeId, Control)> {
        if !self.called_for || self.complete || now < self.next_probe {
            return Vec::new();
        }
        let leader = membership.leader();
        if leader != me {
            if self.told == Some(leader) || !self.wants_shutdown {
                self.wait_longer(now);
                return Vec::new();
            }
            self.told = Some(leader);
            self.next_probe = now + self.interval;
            let (activity, residue) = mine;
            let round = 0;
            return vec![(
                leader,
                Control::Report {
                    round,
                    activity,
                    residue,
                },
            )];
        }
        let live = || membership.view().live();
        self.willing.retain(|&node| membership.view().is_live(node));
        if mine.1.wants_shutdown {
            self.willing.insert(me);
        }
        self.all_willing = live().all(|node| self.willing.contains(&node));
        if self.evaluate(me, membership, mine) {
            self.complete = true;
            let others = live().filter(|&node| node != me);
            return others.map(|node| (node, Control::Finish)).collect();
        }
        // A round lasts until all have answered, however long that takes.
        let answered = live().all(|node| self.reports.contains_key(&node));
        match self.all_willing {
            false if answered && self.round > 0 => self.wait_longer(now),
            _ => self.wait_shortly(now),
        }
        let crowd = u32::try_from(live().count() / ASKED_AT_ONCE).unwrap_or(LONGEST_PAUSE);
        let is_due = crowd <= 1
            || now >= self.next_round
            || self.idle_before.is_some()
            || self.all_willing != self.told_all_willing;
        if answered && is_due || self.round == 0 {
            self.next_round = now + self.interval * crowd.min(LONGEST_PAUSE);
            self.told_all_willing = self.all_willing;
            self.round += 1;
            self.reports = BTreeMap::from([(me, mine)]);
            self.asked = BTreeSet::from([me]);
        }
        let probe = Control::Probe {
            round: self.round,
            all_willing: self.all_willing,
            waiting_for: self.waiting_for.clone(),
        };
        // Those who are joining are waited for, and asked as soon as they know whom they answer.
        let members = membership.view().members();
        let unasked: Vec<NodeId> = members.filter(|&node| self.asked.insert(node)).collect();
        unasked
            .into_iter()
            .map(|node| (node, probe.clone()))
            .collect()
    }

    /// The leader asks.
    pub(crate) fn on_probe(
        &mut self,
        from: NodeId,
        round: u64,
        told: (bool, Vec<(NodeId, Residue)>),
        mine: (u64, Residue),
    ) -> (NodeId, Control) {
        // QU-4: this node may be the next leader.
        self.called_for = true;
        (self.all_willing, self.waiting_for) = told;
        let (activity, residue) = mine;
        (
            from,
            Control::Report {
                round,
                activity,
                residue,
            },
        )
    }

    /// A member answers.
    pub(crate) fn on_report(&mut self, from: NodeId, round: u64, report: (u64, Residue)) {
        if report.1.wants_shutdown {
            self.called_for = true;
            if self.willing.insert(from) {
                self.look_soon();
            }
        }
        if round == self.round && round > 0 {
            self.reports.insert(from, report);
        }
    }

    /// The leader has found everyone at rest.
    pub(crate) fn on_finish(&mut self) -> bool {
        !std::mem::replace(&mut self.complete, true)
    }

    fn look_soon(&mut self) {
        self.pause = self.interval;
        self.next_probe = Time::ZERO;
    }

    fn wait_shortly(&mut self, now: Time) {
        self.pause = self.interval;
        self.next_probe = now + self.pause;
    }

    fn wait_longer(&mut self, now: Time) {
        self.next_probe = now + self.pause;
        self.pause = (self.pause * 2).min(self.interval * LONGEST_PAUSE);
    }

    /// Looks at the round, if it is over: is everyone at rest, as in the round before?
    ///
    /// What the leader says of itself is as of now. So all were at rest at the moment of the look
    /// before, which the others' spans from report to report have in common. Whoever came or went
    /// since then may have left work behind: then it takes two more rounds.
    fn evaluate(&mut self, me: NodeId, membership: &Membership, mine: (u64, Residue)) -> bool {
        if self.round == 0 {
            return false;
        }
        self.reports.insert(me, mine);
        let mut waiting_for = Vec::new();
        let mut counters = BTreeMap::new();
        let mut all_answered = true;
        for node in membership.view().live() {
            match self.reports.get(&node) {
                Some((activity, residue)) if residue.is_idle() => {
                    counters.insert(node, *activity);
                }
                Some((_, residue)) => waiting_for.push((node, *residue)),
                None => {
                    all_answered = false;
                    let residue = Residue {
                        wants_shutdown: self.willing.contains(&node),
                        ..Residue::default()
                    };
                    waiting_for.push((node, residue));
                }
            }
        }
        // First whoever works, then those who have calls open, then those who only hold references.
        waiting_for.sort_by_key(|(_, residue)| (residue.wants_shutdown, residue.only_references()));
        waiting_for.truncate(MAX_NAMED);
        self.waiting_for = waiting_for;
        if !all_answered {
            return false;
        }
        let everyone_idle = self.waiting_for.is_empty();
        let number = match mutated!(self.mutant, ShutdownIgnoresView) {
            true => 0,
            false => membership.view().number(),
        };
        let idle_now = everyone_idle.then_some((number, counters));
        let at_rest = everyone_idle
            && (idle_now == self.idle_before || mutated!(self.mutant, ShutdownAfterOneRound));
        self.idle_before = idle_now;
        at_rest
    }
}
