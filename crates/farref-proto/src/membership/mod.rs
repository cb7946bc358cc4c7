//! Who is in the group: joins, leaves, deaths, returns; and who everybody knows to be gone.
//!
//! There is no consensus and no fixed coordinator. Views merge ([`View`]); every node passes news on
//! to every member and waits for all of them to say it back. A change that all have said back is
//! *settled*. A suspicion is first brought to the lowest-numbered member that the suspecting node
//! can reach, and one of a lower-numbered node is confirmed by a third, so that one bad link costs the
//! group one member and not two.
//!
//! # Invariants
//!
//! - **ME-1** A standing is never lowered: nobody comes back from the dead but as a new incarnation.
//! - **ME-2** A node takes no frame from a node that is gone in its view.
//! - **ME-3** A node says a departure back only after its tables have installed it, on the same
//!   first-in-first-out lane as the registrations that it sent before. So when a departure is
//!   settled, every hand-off the departed made has been registered with its owner or never happened.
//!   What the tables say *because of* the departure follows after it.
//! - **ME-4** A newcomer is *joining* until every member knows it; only then it is welcomed and tells
//!   everyone that it is *alive*, and only then it is called. So nobody can have handed it anything
//!   that some owner's settling did not wait for.
//! - **ME-5** Departures settle together: while one is unsettled, none is released. A chain of
//!   hand-offs through several departed nodes is therefore as safe as one. What a newcomer was
//!   welcomed with it passes on, so that nothing it counts as settled is unknown to a member.
//! - **ME-6** A suspicion ends when the suspect is heard, and is not brought to anybody afterwards.
//! - **ME-7** A member that ranks before the judge, and that the judge can reach, is not declared dead:
//!   it is told who accuses it. One that the judge alone cannot reach is not either, while there is
//!   another to ask. What one message says is known as a whole before anybody is declared dead.
//! - **ME-8** A member that hears of another that is in, and has not heard that it was joining, tells it all
//!   that it knows. By ME-4 this happens only where two groups meet that a split has made of one, through a
//!   newcomer that both have heard of; each tells the other whom it has seen come and go. Whoever says what
//!   only members say is in, and a second welcome is heard, too.
//! - **ME-9** Whoever says of a worker what this member knows to be outdated is told what it knows, unless its
//!   word on that is awaited: then it has been told. News goes to everyone, and newcomers are welcomed with it,
//!   so where no group was split nobody has to be told, but for two whose first words as members cross.

mod quiesce;
mod suspicion;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};

pub use quiesce::Quiescence;
pub use view::View;

use crate::error::PeerMisbehaved;
use crate::ids::{Incarnation, NodeId, WorkerId};
use crate::limits::{MAX_BATCH, MAX_WORKERS};
use crate::message::Control;
use crate::mutation::{Mutant, mutated};
use crate::standing::{Departure, Phase, Standing, Status};

/// Something that the tables and the program have to know.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Change {
    Joined(NodeId),
    Gone(NodeId, Departure),
    /// This life and those before it are over, and this node never met it: it was gone before this
    /// node joined, or it was never let in (ME-4).
    NeverMet(NodeId),
    Settled(NodeId),
    Welcomed,
    Departed,
    Evicted,
}

/// What an input led to. The changes are for this node's own tables and come first; the messages
/// may leave only after the tables have installed them (ME-3).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) changes: Vec<Change>,
    pub(crate) messages: Vec<(NodeId, Control)>,
}

/// A standing that not everyone has said back yet.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Unsettled {
    standing: Standing,
    waiting: BTreeSet<NodeId>,
}

/// One node's membership.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Membership {
    me: NodeId,
    phase: Phase,
    view: View,
    unsettled: BTreeMap<WorkerId, Unsettled>,
    /// Gone, but not settled.
    departed: Vec<NodeId>,
    /// Let in by this node, to be welcomed when their joining is settled.
    newcomers: BTreeSet<NodeId>,
    suspects: BTreeSet<NodeId>,
    /// To whom the suspects were reported.
    reported_to: Option<NodeId>,
    pub(crate) mutant: Mutant,
}

impl Membership {
    /// A member of a group whose members, itself among them, are known from the start.
    pub fn founding(me: NodeId, members: impl IntoIterator<Item = NodeId>) -> Self {
        let mut view = View::of(members);
        view.raise(me.worker, Standing::of(me, Status::Alive));
        Self::new(me, Phase::Member, view)
    }

    /// A node that wants to join a running group.
    pub fn joining(me: NodeId) -> Self {
        let mut view = View::default();
        view.raise(me.worker, Standing::of(me, Status::Joining));
        Self::new(me, Phase::Joining, view)
    }

    fn new(me: NodeId, phase: Phase, view: View) -> Self {
        Self {
            me,
            phase,
            view,
            unsettled: BTreeMap::new(),
            departed: Vec::new(),
            newcomers: BTreeSet::new(),
            suspects: BTreeSet::new(),
            reported_to: None,
            mutant: Mutant::default(),
        }
    }

    /// Whose membership this is.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// What this node knows of its group.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Where this node is in its own membership.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Whether every change is known to all.
    pub fn is_settled(&self) -> bool {
        self.unsettled.is_empty() && self.departed.is_empty()
    }

    /// Whose word is awaited before the present changes are settled.
    pub fn awaited(&self) -> BTreeSet<NodeId> {
        self.unsettled
            .values()
            .flat_map(|entry| entry.waiting.iter().copied())
            .collect()
    }

    /// What contradicts itself, if anything does. For tests and simulators.
    pub(crate) fn inconsistency(&self) -> Option<String> {
        let gone = |node: &&NodeId| self.view.is_gone(**node);
        if let Some(node) = self.awaited().iter().find(gone) {
            return Some(format!("the word of {node} is awaited, which is gone"));
        }
        if let Some(node) = self.suspects.iter().chain(&self.newcomers).find(gone) {
            return Some(format!("{node} is a matter of concern, and gone"));
        }
        let lives = self.departed.iter().find(|node| !self.view.is_gone(**node));
        lives.map(|node| format!("{node} is counted as departed, and lives"))
    }

    /// Asks `sponsor`, any member, to let this node in. Ask another if it departs meanwhile.
    pub(crate) fn join(&self, sponsor: NodeId) -> Outcome {
        Outcome {
            changes: Vec::new(),
            messages: vec![(sponsor, Control::Join)],
        }
    }

    /// Begins to say good-bye.
    pub(crate) fn leave(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        if self.phase == Phase::Member {
            self.phase = Phase::Leaving;
            let left = Standing::of(self.me, Status::Left);
            self.view.raise(self.me.worker, left);
            self.announce(&[(self.me.worker, left)], None, &mut outcome);
            if let Some(entry) = self.unsettled.get_mut(&self.me.worker) {
                entry.waiting.retain(|node| !self.suspects.contains(node));
            }
            self.settle(&mut outcome);
        }
        outcome
    }

    /// Somebody else keeps the list of members and has put this node on it: nobody is told.
    pub(crate) fn admit(&mut self, node: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        self.install(node.worker, Standing::of(node, Status::Alive), &mut outcome);
        self.settle(&mut outcome);
        outcome
    }

    /// Somebody else keeps the list of members and has taken this node off it. All learn of it from
    /// there, so it is settled at once. A life that is not on the list changes nothing: it may still come.
    pub(crate) fn dismiss(&mut self, node: NodeId, departure: Departure) -> Outcome {
        let mut outcome = Outcome::default();
        if !self.view.is_live(node) {
            return outcome;
        }
        let status = match departure {
            Departure::Left => Status::Left,
            Departure::Died => Status::Dead,
        };
        self.install(node.worker, Standing::of(node, status), &mut outcome);
        self.settle(&mut outcome);
        outcome
    }

    /// A newcomer asks to be let in.
    pub(crate) fn on_join(&mut self, from: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        if self.phase != Phase::Member {
            return outcome;
        }
        if self.view.is_gone(from) {
            let entries = self.entry(from.worker).into_iter().collect();
            let echo = false;
            outcome
                .messages
                .push((from, Control::View { entries, echo }));
            return outcome;
        }
        // D5: there is no room for one more, and there never will be.
        if self.view.standing(from.worker).is_none() && self.view.len() >= MAX_WORKERS {
            return outcome;
        }
        if !self.view.is_member(from) {
            self.newcomers.insert(from);
            let joining = Standing::of(from, Status::Joining);
            self.learn(&[(from.worker, joining)], Some(from), &mut outcome);
            // This node may know the newcomer only from its own welcome, whose sender can have died
            // before it told the others: ask around anew.
            if !self.unsettled.contains_key(&from.worker)
                && !mutated!(self.mutant, WelcomeUnannounced)
            {
                self.announce(&[(from.worker, joining)], Some(from), &mut outcome);
            }
        }
        self.settle(&mut outcome);
        outcome
    }

    /// QU-5: the group is at rest, and whoever has asked to be let in is not.
    pub(crate) fn let_nobody_in(&mut self) {
        if !mutated!(self.mutant, LetInAtRest) {
            self.newcomers.clear();
        }
    }

    /// A sponsor lets this node in.
    pub(crate) fn on_welcome(
        &mut self,
        from: NodeId,
        entries: Vec<(WorkerId, Standing)>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        if self.phase != Phase::Joining {
            // ME-8: it has asked several, and they need not be of one group.
            if self.phase == Phase::Member && !mutated!(self.mutant, MembersUnmet) {
                self.learn(&entries, Some(from), &mut outcome);
                self.settle(&mut outcome);
            }
            return outcome;
        }
        for (worker, standing) in entries {
            self.install(worker, standing, &mut outcome);
        }
        if self.phase == Phase::Joining {
            self.phase = Phase::Member;
            outcome.changes.push(Change::Welcomed);
            let alive = Standing::of(self.me, Status::Alive);
            self.view.raise(self.me.worker, alive);
            // Some of it may have died with the one who told it. What follows behind it is said back.
            let others = self.view.live().filter(|&node| node != self.me);
            for node in others.filter(|_| !mutated!(self.mutant, NewcomerTellsOnlyItself)) {
                self.tell_all_known(node, &mut outcome);
            }
            self.announce(&[(self.me.worker, alive)], None, &mut outcome);
            if !self.suspects.is_empty() {
                self.report_suspects(None, &mut outcome);
            }
            self.settle(&mut outcome);
        }
        outcome
    }

    /// Whether a list of standings can be what a correct node knows.
    pub(crate) fn check_entries(
        &self,
        entries: &[(WorkerId, Standing)],
    ) -> Result<(), PeerMisbehaved> {
        if entries.len() > MAX_BATCH {
            return Err(PeerMisbehaved::BatchTooLong { len: entries.len() });
        }
        let unknown = |(worker, _): &&(WorkerId, Standing)| self.view.standing(*worker).is_none();
        let known = self.view.len();
        if known + entries.iter().filter(unknown).count() > MAX_WORKERS {
            return Err(PeerMisbehaved::TooManyWorkers { known });
        }
        Ok(())
    }

    /// ME-8: another node says what only members say. This node may not have heard that it is one.
    pub(crate) fn on_word_of_member(&mut self, from: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        let unknown = self.view.standing(from.worker).is_none();
        if self.phase > Phase::Member
            || from == self.me
            || self.view.is_member(from)
            || unknown && self.view.len() >= MAX_WORKERS
            || mutated!(self.mutant, MembersUnmet)
        {
            return outcome;
        }
        let alive = Standing::of(from, Status::Alive);
        self.learn(&[(from.worker, alive)], Some(from), &mut outcome);
        self.settle(&mut outcome);
        outcome
    }

    /// Another node tells what it knows.
    pub(crate) fn on_view(
        &mut self,
        from: NodeId,
        entries: Vec<(WorkerId, Standing)>,
        echo: bool,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        self.learn(&entries, Some(from), &mut outcome);
        if echo {
            let known = entries.iter().filter_map(|(worker, _)| self.entry(*worker));
            let reply = Control::View {
                entries: known.collect(),
                echo: false,
            };
            outcome.messages.push((from, reply));
        } else {
            self.correct(from, &entries, &mut outcome);
        }
        self.settle(&mut outcome);
        outcome
    }

    /// ME-9: tells another node what it should know, where it has said something else.
    fn correct(&self, from: NodeId, said: &[(WorkerId, Standing)], outcome: &mut Outcome) {
        if self.phase != Phase::Member || mutated!(self.mutant, OutdatedUncorrected) {
            return;
        }
        let being_told = |worker: WorkerId| {
            let entry = self.unsettled.get(&worker);
            entry.is_some_and(|entry| entry.waiting.contains(&from))
        };
        let newer = said.iter().filter_map(|&(worker, said)| {
            self.entry(worker)
                .filter(|&(_, known)| known > said && !being_told(worker))
        });
        let entries: Vec<_> = newer.collect();
        if !entries.is_empty() {
            let echo = false;
            outcome
                .messages
                .push((from, Control::View { entries, echo }));
        }
    }

    /// A node that is no member any more asks for its good-bye to be said back: news of it may have
    /// come from others before.
    pub(crate) fn on_view_of_leaver(
        &self,
        from: NodeId,
        entries: Vec<(WorkerId, Standing)>,
        echo: bool,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let left = Standing::of(from, Status::Left);
        if echo && entries == [(from.worker, left)] && self.view.is_gone(from) {
            let reply = Control::View {
                entries,
                echo: false,
            };
            outcome.messages.push((from, reply));
        }
        outcome
    }

    /// Another node refused this one's connection because it is gone in that node's view. For a node
    /// that is leaving that is as good as an answer; for any other it is the end.
    pub(crate) fn on_refused(&mut self, by: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        match self.phase {
            Phase::Leaving => return self.said_good_bye(by),
            Phase::Joining | Phase::Member => {
                self.phase = Phase::Evicted;
                outcome.changes.push(Change::Evicted);
            }
            Phase::Departed | Phase::Evicted => {}
        }
        outcome
    }

    /// A leaver need not wait for this node's answer any more.
    fn said_good_bye(&mut self, to: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(entry) = self.unsettled.get_mut(&self.me.worker) {
            entry.waiting.remove(&to);
        }
        self.settle(&mut outcome);
        outcome
    }

    fn entry(&self, worker: WorkerId) -> Option<(WorkerId, Standing)> {
        self.view
            .standing(worker)
            .map(|standing| (worker, standing))
    }

    /// Takes in what `from` said of some workers, passes news on, and counts what was said back.
    fn learn(
        &mut self,
        entries: &[(WorkerId, Standing)],
        from: Option<NodeId>,
        outcome: &mut Outcome,
    ) {
        let mut news = Vec::new();
        let mut strangers = Vec::new();
        let departed = self.departed.len();
        for &(worker, standing) in entries {
            let incarnation = standing.incarnation;
            let node = NodeId {
                worker,
                incarnation,
            };
            let known = self.view.is_live(node);
            if self.install(worker, standing, outcome) {
                news.push((worker, standing));
                if !known && standing.status == Status::Alive {
                    strangers.push(node);
                }
            } else if let Some(from) = from
                && let Some(entry) = self.unsettled.get_mut(&worker)
                && (entry.standing <= standing || mutated!(self.mutant, OldEchoSettles))
            {
                entry.waiting.remove(&from);
            }
        }
        // The one who was asked may be gone. Whom to ask now is known only when all entries are: one that
        // comes after the departure may tell of somebody (ME-7).
        let somebody_left = self.departed.len() > departed;
        if somebody_left && !self.suspects.is_empty() && self.phase == Phase::Member {
            self.report_suspects(None, outcome);
            // One of them may be declared dead by this, which all are told, `from` as well: what `from` has said
            // of it is no news any more, and would take its word for granted (ME-3).
            news.retain(|&(worker, standing)| self.view.standing(worker) == Some(standing));
        }
        // A newcomer holds and owns nothing yet, and not everyone would answer it.
        if !news.is_empty() && self.phase != Phase::Joining {
            self.announce(&news, from, outcome);
            // ME-8: it is a member of another group, which this one has been split from.
            let told = !mutated!(self.mutant, StrangersToldNothing);
            strangers.retain(|&node| told && self.view.is_live(node));
            for node in strangers {
                self.tell_all_known(node, outcome);
            }
        }
    }

    /// Puts a standing into the view. Answers whether it was news worth passing on.
    fn install(&mut self, worker: WorkerId, standing: Standing, outcome: &mut Outcome) -> bool {
        if worker == self.me.worker {
            let leaving = matches!(self.phase, Phase::Leaving | Phase::Departed)
                && standing.incarnation == self.me.incarnation;
            let over = standing > Standing::of(self.me, Status::Alive);
            if over && !leaving && self.phase != Phase::Evicted {
                self.phase = Phase::Evicted;
                outcome.changes.push(Change::Evicted);
            }
            return false;
        }
        let Some(before) = self.view.raise(worker, standing) else {
            return false;
        };
        if let Some(before) = before
            && before.status <= Status::Alive
            && standing
                > (Standing {
                    status: Status::Alive,
                    ..before
                })
        {
            let node = NodeId {
                worker,
                incarnation: before.incarnation,
            };
            let left = standing == Standing::of(node, Status::Left);
            let departure = if left {
                Departure::Left
            } else {
                Departure::Died
            };
            self.remove(node, departure, outcome);
        }
        self.suspects
            .retain(|node| node.worker != worker || !self.view.is_gone(*node));
        if let Some(never_met) = last_never_met(worker, before, standing)
            && !mutated!(self.mutant, ForgetNeverMet)
        {
            outcome.changes.push(Change::NeverMet(never_met));
            // It settles with all others: an earlier life of the same worker may not be settled yet.
            self.departed.push(never_met);
        }
        if standing.status == Status::Alive {
            let incarnation = standing.incarnation;
            outcome.changes.push(Change::Joined(NodeId {
                worker,
                incarnation,
            }));
        }
        true
    }

    fn remove(&mut self, node: NodeId, departure: Departure, outcome: &mut Outcome) {
        outcome.changes.push(Change::Gone(node, departure));
        self.departed.push(node);
        self.newcomers.remove(&node);
        self.suspects.remove(&node);
        for entry in self.unsettled.values_mut() {
            entry.waiting.remove(&node);
        }
    }

    /// Tells every member, all in one message, and notes whose word is awaited.
    fn announce(
        &mut self,
        news: &[(WorkerId, Standing)],
        from: Option<NodeId>,
        outcome: &mut Outcome,
    ) {
        let told = |node: &NodeId| *node != self.me && Some(*node) != from;
        let listeners: Vec<NodeId> = self.view.live().filter(told).collect();
        for &node in &listeners {
            // Nobody is told of itself.
            let of_others = news.iter().filter(|(worker, _)| *worker != node.worker);
            let entries: Vec<_> = of_others.copied().collect();
            if !entries.is_empty() {
                let echo = true;
                outcome
                    .messages
                    .push((node, Control::View { entries, echo }));
            }
        }
        for &(worker, standing) in news {
            let members_only = mutated!(self.mutant, JoiningNotAwaited);
            let awaited = |node: &&NodeId| {
                node.worker != worker && (self.view.is_member(**node) || !members_only)
            };
            let waiting = listeners.iter().filter(awaited).copied().collect();
            self.unsettled
                .insert(worker, Unsettled { standing, waiting });
        }
    }

    /// Tells a node all that this one knows. It need not be said back.
    fn tell_all_known(&self, node: NodeId, outcome: &mut Outcome) {
        let views = self.batches().into_iter().map(|entries| Control::View {
            entries,
            echo: false,
        });
        outcome.messages.extend(views.map(|view| (node, view)));
    }

    /// All standings, in lists that one message may have.
    fn batches(&self) -> Vec<Vec<(WorkerId, Standing)>> {
        let all: Vec<_> = self.view.standings().collect();
        all.chunks(MAX_BATCH).map(<[_]>::to_vec).collect()
    }

    /// Finds out what has been said back by all.
    fn settle(&mut self, outcome: &mut Outcome) {
        if self.phase == Phase::Evicted {
            return;
        }
        self.unsettled.retain(|_, entry| !entry.waiting.is_empty());
        let unsettled = &self.unsettled;
        let early = mutated!(self.mutant, WelcomeEarly);
        let ready: Vec<NodeId> = self
            .newcomers
            .iter()
            .copied()
            .filter(|node| early || !unsettled.contains_key(&node.worker))
            .collect();
        for node in ready {
            self.newcomers.remove(&node);
            let mut batches = self.batches();
            let last = batches.pop().unwrap_or_default();
            for entries in batches {
                let echo = false;
                outcome
                    .messages
                    .push((node, Control::View { entries, echo }));
            }
            outcome.messages.push((node, Control::Welcome(last)));
        }
        let one_by_one = mutated!(self.mutant, SettleOneByOne);
        let open = |node: &mut NodeId| one_by_one && !unsettled.contains_key(&node.worker);
        let settled = match unsettled.is_empty() {
            true => std::mem::take(&mut self.departed),
            false => self.departed.extract_if(.., open).collect(),
        };
        let settled = settled.into_iter().map(Change::Settled);
        outcome.changes.extend(settled);
        // For a leaver it is enough that all know of its leave; nobody answers its other questions.
        if self.phase == Phase::Leaving && !self.unsettled.contains_key(&self.me.worker) {
            self.phase = Phase::Departed;
            outcome.changes.push(Change::Departed);
        }
    }
}

/// Of the lives that are over, the last that this node never met: after the one it knew, and before
/// the one that it now hears of, or that one itself.
fn last_never_met(worker: WorkerId, before: Option<Standing>, now: Standing) -> Option<NodeId> {
    let incarnation = match now.status > Status::Alive {
        true => now.incarnation,
        false => Incarnation(now.incarnation.0.checked_sub(1)?),
    };
    let met = before.is_some_and(|before| before.incarnation >= incarnation);
    (!met).then_some(NodeId {
        worker,
        incarnation,
    })
}
