//! Who is in the group: joins, leaves, deaths, returns; and what everybody is known to know.
//!
//! There is no consensus. Views merge ([`View`]). Whoever learns something tells its *leader*, the lowest-numbered member that
//! it does not suspect; the leader tells everybody, and asks who knows exactly what it knows ([`settling`]). When all do, the
//! leader says so, and what they knew is *settled*. Who leads is a matter of cost: whoever has the word of all on one view
//! may say that it is settled, and there may be two who do.
//!
//! A suspicion is first brought to the leader, too, and one of a lower-numbered node is confirmed by a third, so that one bad
//! link costs the group one member and not two.
//!
//! # Invariants
//!
//! - **ME-1** A standing is never lowered: nobody comes back from the dead but as a new incarnation.
//! - **ME-2** A node takes no frame from a node that is gone in its view.
//! - **ME-3** A member says that it knows a view only when its tables have installed it, and when the owners of all that it
//!   was handed by those who are gone in it have answered its registrations. So when a view is settled, every hand-off of
//!   the departed has been registered with its owner or never happened. Whomever a node tells something *because of* a
//!   departure it tells of the departure first.
//! - **ME-4** A newcomer is *joining* until every member knows it; only then it is welcomed and tells
//!   everyone that it is *alive*, and only then it is called. So nobody can have handed it anything
//!   that some owner's settling did not wait for. Those who are joining are asked as well: they say that they know what
//!   is not settled, and take in no frame of those who are gone in it when they are in.
//! - **ME-5** A view is settled by the word of all who are in it and live, on that view and no other. When one of them
//!   departs, that is another view, and all are asked again. A chain of hand-offs through several departed nodes is
//!   therefore as safe as one. What a newcomer was welcomed with counts as settled only when all have said so again.
//! - **ME-6** A suspicion ends when the suspect is heard, and is not brought to anybody afterwards.
//! - **ME-7** A member that ranks before the judge, and that the judge can reach, is not declared dead:
//!   it is told who accuses it. One that the judge alone cannot reach is not either, while there is
//!   another to ask. What one message says is known as a whole before anybody is declared dead. One that was let in goes itself,
//!   whatever its number, if it is accused by a member that was there before and that it has never heard.
//! - **ME-8** A member tells a leader that it has never heard all that it knows, and not only what is open. A leader shows all it
//!   knows to whoever knows something else, and is shown the same. So groups that a split has made of one come to know the
//!   same when they meet, through a newcomer that both have heard of. Whoever says what only members say is in, and a second
//!   welcome is heard, too.
//! - **ME-9** Whoever says of a worker what this member knows to be outdated is told what it knows, unless that is not
//!   settled: then all are being told.
//! - **ME-10** A peer misbehaves that tells of more lives than a group can have, or of more changes than are ever open at
//!   one time ([`tellers`]).
//! - **ME-11** A leader tells each what is open once, and a life that it has never heard little: one short question, and the rest
//!   when that one is heard. To the short question no answer counts as the word of whoever gives it.

mod leaving;
mod majority;
mod quiesce;
mod settling;
mod suspicion;
mod tellers;
#[cfg(test)]
mod tests;
mod view;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use majority::Majority;
pub use majority::TooFew;
pub use quiesce::Quiescence;
pub(crate) use tellers::Limits;
pub use view::View;

use crate::error::PeerMisbehaved;
use crate::ids::{Incarnation, NodeId, WorkerId};
use crate::limits::{MAX_BATCH, MAX_LIVES, MAX_MEMBERS, MAX_UNHEARD, MAX_WORKERS};
use crate::message::Control;
use crate::mutation::{Mutant, mutated};
use crate::standing::{Departure, Digest, Phase, Standing, Status};
use settling::{Asked, Open, Round};
use tellers::Tellers;

/// Something that the tables and the program have to know.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Change {
    Joined(NodeId),
    Gone(NodeId, Departure),
    /// This life and those before it are over, and this node never met it: it was gone before this
    /// node joined, or it was never let in (ME-4).
    NeverMet(NodeId),
    Settled(NodeId),
    /// This member lets nobody in: the group has so many lives.
    NoRoom(NodeId, u32),
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

/// One node's membership.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Membership {
    me: NodeId,
    phase: Phase,
    view: View,
    /// What has changed since all were last known to know all that this node knows.
    open: BTreeMap<WorkerId, Open>,
    /// Gone, but not settled.
    departed: Vec<NodeId>,
    /// Let in by this node, to be welcomed when their joining is settled.
    newcomers: BTreeSet<NodeId>,
    suspects: BTreeSet<NodeId>,
    /// Those who live, as others say, and have never said a word to this node (ME-11).
    unheard: BTreeSet<NodeId>,
    /// Of those, the members that were there when this node was let in (ME-7).
    elders: BTreeSet<NodeId>,
    /// Whether there are suspects from before this node was let in, which nobody has been told of.
    has_early_suspects: bool,
    /// To whom the suspects were reported.
    reported_to: Option<NodeId>,
    /// The leader that has been told what is open.
    told: Option<NodeId>,
    /// What this node, as the leader, asks the others.
    round: Option<Round>,
    /// What others ask this node.
    asked: BTreeMap<NodeId, Asked>,
    /// Who has not said farewell to this node yet, if it is leaving.
    farewells: BTreeSet<NodeId>,
    tellers: Tellers,
    limits: Limits,
    pub(crate) mutant: Mutant,
}

impl Membership {
    /// A member of a group whose members, itself among them, are known from the start.
    pub fn founding(me: NodeId, members: impl IntoIterator<Item = NodeId>) -> Self {
        Self::founded(me, View::of(members))
    }

    /// As [`founding`](Self::founding), with a view that was made before: copies of it share their memory until one of
    /// them changes.
    pub fn founded(me: NodeId, mut view: View) -> Self {
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
            open: BTreeMap::new(),
            departed: Vec::new(),
            newcomers: BTreeSet::new(),
            suspects: BTreeSet::new(),
            unheard: BTreeSet::new(),
            elders: BTreeSet::new(),
            has_early_suspects: false,
            reported_to: None,
            told: None,
            round: None,
            asked: BTreeMap::new(),
            farewells: BTreeSet::new(),
            tellers: Tellers::default(),
            limits: Limits {
                members: MAX_MEMBERS,
                lives: MAX_LIVES,
                unsettled: MAX_MEMBERS,
                unheard: MAX_UNHEARD,
            },
            mutant: Mutant::default(),
        }
    }

    /// How much this node takes in of what others say.
    pub(crate) fn limit(&mut self, limits: Limits) {
        self.limits = limits;
    }

    #[cfg(feature = "mutations")]
    pub(crate) fn mutate(&mut self, mutation: crate::mutation::Mutation) {
        self.mutant.broken = Some(mutation);
        self.tellers.mutant.broken = Some(mutation);
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
        self.open.is_empty() && self.departed.is_empty()
    }

    /// Whose word is awaited: by a leader before the present changes are settled, by others the leader's, by one that leaves
    /// that of those who have not said farewell.
    pub fn awaited(&self) -> BTreeSet<NodeId> {
        match (&self.round, self.phase) {
            (_, Phase::Leaving) => self.farewells.clone(),
            // It has gone, and nobody tells it anything any more.
            (_, Phase::Departed | Phase::Evicted) => BTreeSet::new(),
            (Some(round), _) => round.waiting().clone(),
            _ if self.open.is_empty() => BTreeSet::new(),
            _ => BTreeSet::from([self.leader()]),
        }
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
        if let Some(node) = self.unheard.iter().find(|node| !self.view.is_live(**node)) {
            return Some(format!("{node} is waited for to say a word, and gone"));
        }
        if let Some(node) = self.elders.iter().find(gone) {
            return Some(format!("{node} was there before, and is gone"));
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

    /// Somebody else keeps the list of members and has put this node on it: nobody is told.
    pub(crate) fn admit(&mut self, node: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        self.install(node.worker, Standing::of(node, Status::Alive), &mut outcome);
        self.settle_departed(|_| true, &mut outcome);
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
        self.settle_departed(|_| true, &mut outcome);
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
            tell(from, entries, None, &mut outcome);
            return outcome;
        }
        if let Some(limit) = self.is_full_for(from) {
            outcome.messages.push((from, Control::NoRoom { limit }));
            return outcome;
        }
        if !self.view.is_member(from) {
            self.newcomers.insert(from);
            let joining = Standing::of(from, Status::Joining);
            self.learn(&[(from.worker, joining)], None, &mut outcome);
        }
        outcome
    }

    /// D5: whether there is no room for one more, and for how many there is.
    fn is_full_for(&self, node: NodeId) -> Option<u32> {
        let before = self.view.standing(node.worker);
        // A former life makes room for it.
        let is_one_more = !before.is_some_and(Standing::is_live);
        let limit = if before.is_none() && self.view.len() >= MAX_WORKERS {
            MAX_WORKERS
        } else if is_one_more && self.view.live_count() >= self.limits.members {
            self.limits.members
        } else {
            return None;
        };
        Some(u32::try_from(limit).unwrap_or(u32::MAX))
    }

    /// A member lets this node in no more than anybody else: there are enough. Another group may have room.
    pub(crate) fn on_no_room(&self, from: NodeId, limit: u32) -> Outcome {
        let mut outcome = Outcome::default();
        if self.phase == Phase::Joining {
            outcome.changes.push(Change::NoRoom(from, limit));
        }
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
            }
            return outcome;
        }
        for (worker, standing) in entries {
            if self.install(worker, standing, &mut outcome)
                && !mutated!(self.mutant, WelcomedKnowsAll)
            {
                // ME-5: some of it may have died with the one who told it. Whoever lacks it says so when asked.
                self.open.insert(worker, Open::untold(standing));
            }
        }
        if self.phase == Phase::Joining {
            self.phase = Phase::Member;
            outcome.changes.push(Change::Welcomed);
            let unheard = |node: &NodeId| self.unheard.contains(node);
            self.elders = self.view.members().filter(unheard).collect();
            let alive = Standing::of(self.me, Status::Alive);
            self.view.raise(self.me.worker, alive);
            self.open.insert(self.me.worker, Open::news(alive));
            self.has_early_suspects = !self.suspects.is_empty();
            if self.has_early_suspects && mutated!(self.mutant, ResignAccusing) {
                self.report_suspects(None, &mut outcome);
            }
        }
        outcome
    }

    /// Whether a list of standings can be what a correct node knows (ME-10). It is remembered who has told so much.
    pub(crate) fn check_entries(
        &mut self,
        from: NodeId,
        entries: &[(WorkerId, Standing)],
    ) -> Result<(), PeerMisbehaved> {
        if entries.len() > MAX_BATCH {
            return Err(PeerMisbehaved::BatchTooLong { len: entries.len() });
        }
        let is_joining = self.phase == Phase::Joining;
        let [mut unknown, mut live, mut changes] = [0; 3];
        for &(worker, standing) in entries {
            let known = self.view.standing(worker);
            if worker == self.me.worker || known >= Some(standing) {
                continue;
            }
            unknown += usize::from(known.is_none());
            let was_live = known.is_some_and(Standing::is_live);
            live += usize::from(standing.is_live() && !was_live);
            // A newcomer is told of all who ever were.
            changes += usize::from(known.is_some() || !is_joining);
        }
        let known = self.view.len();
        if known + unknown > MAX_WORKERS {
            return Err(PeerMisbehaved::TooManyWorkers { known });
        }
        let limit = self.limits.lives;
        if live > 0 && self.view.live_count() + live > limit {
            return Err(PeerMisbehaved::TooManyLives { limit });
        }
        let limit = self.limits.unsettled_of(from, self.leader(), self.me);
        if changes > 0 && self.tellers.told_by(from) + changes > limit {
            return Err(PeerMisbehaved::TooMuchUnsettled { limit });
        }
        self.tellers.add(from, changes);
        Ok(())
    }

    /// The same of what a suspicion may lead to.
    pub(crate) fn check_suspicion(
        &mut self,
        from: NodeId,
        of: NodeId,
    ) -> Result<(), PeerMisbehaved> {
        self.check_entries(from, &[(of.worker, Standing::of(of, Status::Dead))])
    }

    /// ME-8: another node says what only members say. This node may not have heard that it is one.
    pub(crate) fn on_word_of_member(&mut self, from: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        let unknown = self.view.standing(from.worker).is_none();
        if self.phase > Phase::Member
            || from == self.me
            || self.view.is_member(from)
            || unknown && self.view.len() >= MAX_WORKERS
            || self.view.live_count() >= self.limits.lives
            || mutated!(self.mutant, MembersUnmet)
        {
            return outcome;
        }
        let alive = Standing::of(from, Status::Alive);
        self.learn(&[(from.worker, alive)], None, &mut outcome);
        outcome
    }

    /// Another node tells what it knows, and perhaps asks.
    pub(crate) fn on_view(
        &mut self,
        from: NodeId,
        entries: Vec<(WorkerId, Standing)>,
        ask: Option<Digest>,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        self.learn(&entries, Some(from), &mut outcome);
        match ask {
            Some(digest) => self.on_question(from, digest),
            None => self.correct(from, &entries, &mut outcome),
        }
        outcome
    }

    /// ME-9: tells another node what it should know, where it has said something else.
    fn correct(&self, from: NodeId, said: &[(WorkerId, Standing)], outcome: &mut Outcome) {
        if self.phase != Phase::Member || mutated!(self.mutant, OutdatedUncorrected) {
            return;
        }
        let newer = said.iter().filter_map(|&(worker, said)| {
            self.entry(worker)
                .filter(|&(_, known)| known > said && !self.open.contains_key(&worker))
        });
        let entries: Vec<_> = newer.collect();
        if !entries.is_empty() {
            tell(from, entries, None, outcome);
        }
    }

    /// What is known of a worker.
    pub(crate) fn entry(&self, worker: WorkerId) -> Option<(WorkerId, Standing)> {
        self.view
            .standing(worker)
            .map(|standing| (worker, standing))
    }

    /// Takes in what `from` said of some workers, to be passed on unless the leader has said it.
    fn learn(
        &mut self,
        entries: &[(WorkerId, Standing)],
        from: Option<NodeId>,
        outcome: &mut Outcome,
    ) {
        let mut news = false;
        let nothing_open = self.open.is_empty();
        let departed = self.departed.len();
        for &(worker, standing) in entries {
            if self.install(worker, standing, outcome) {
                news = true;
                self.open.insert(worker, Open::news(standing));
            }
        }
        // The one who was asked may be gone. Whom to ask now is known only when all entries are: one that
        // comes after the departure may tell of somebody (ME-7).
        let somebody_left = self.departed.len() > departed;
        if somebody_left && !self.suspects.is_empty() && self.phase == Phase::Member {
            self.report_suspects(None, outcome);
        }
        // What the leader has said it need not be told.
        let leader = self.leader();
        if news && from == Some(leader) {
            if nothing_open {
                self.told = Some(leader);
            }
            self.leader_knows(entries);
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
        let incarnation = standing.incarnation;
        let life = NodeId {
            worker,
            incarnation,
        };
        let is_new = before.is_none_or(|before| before.incarnation < incarnation);
        if is_new && standing.is_live() {
            self.unheard.insert(life);
        }
        if standing.status == Status::Alive {
            outcome.changes.push(Change::Joined(life));
        }
        true
    }

    fn remove(&mut self, node: NodeId, departure: Departure, outcome: &mut Outcome) {
        outcome.changes.push(Change::Gone(node, departure));
        self.departed.push(node);
        self.newcomers.remove(&node);
        self.suspects.remove(&node);
        self.unheard.remove(&node);
        self.elders.remove(&node);
        self.asked.remove(&node);
        self.farewells.remove(&node);
        self.tellers.forget(node);
    }

    /// Tells a node all that this one knows.
    fn tell_all_known(&self, node: NodeId, ask: Option<Digest>, outcome: &mut Outcome) {
        tell(node, self.view.standings().collect(), ask, outcome);
    }
}

/// Tells a node some standings, in messages that are not too long. If it is asked something, then with the last of them.
fn tell(
    node: NodeId,
    mut entries: Vec<(WorkerId, Standing)>,
    ask: Option<Digest>,
    outcome: &mut Outcome,
) {
    while entries.len() > MAX_BATCH {
        let rest = entries.split_off(MAX_BATCH);
        let entries = std::mem::replace(&mut entries, rest);
        let ask = None;
        outcome
            .messages
            .push((node, Control::View { entries, ask }));
    }
    outcome
        .messages
        .push((node, Control::View { entries, ask }));
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
