//! Finding out what every member knows.
//!
//! The leader tells all what is *open*, which is what has changed since it last knew that all know everything, and asks each to
//! say when it knows exactly what the leader knows, by a [`Digest`] of the whole view. When all have said so, the leader
//! says that this view is settled. Whoever knows something else says that; if it has not told the leader why, the two
//! show each other all they know. That happens only where a group was split or a sponsor died with what it knew.
//!
//! A member that learns something new after its word has given it for the old view all the same: it remembers what was
//! open then, and that is what is settled by the leader's answer, whatever has come since.
//!
//! For a departure each member gets a question, gives an answer and is told the outcome, however many they are. The leader
//! does that with all of them.

use std::collections::{BTreeMap, BTreeSet};

use super::{Change, Membership, Outcome, tell};
use crate::ids::{NodeId, WorkerId};
use crate::message::Control;
use crate::mutation::mutated;
use crate::standing::{Digest, Phase, Standing, Status};

/// A standing that is not known to be known by all.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Open {
    standing: Standing,
    /// Whether the others are told without having asked. This node was welcomed with the rest, which most of them know.
    is_news: bool,
    /// Whether it was among what this node, as the leader, has told last.
    is_told: bool,
    /// Whether the leader knows it from this node, or this node from the leader.
    is_passed_on: bool,
}

impl Open {
    pub(super) fn news(standing: Standing) -> Self {
        Self {
            standing,
            is_news: true,
            is_told: false,
            is_passed_on: false,
        }
    }

    pub(super) fn untold(standing: Standing) -> Self {
        Self {
            standing,
            is_news: false,
            is_told: false,
            is_passed_on: false,
        }
    }
}

/// What a leader asks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Round {
    digest: Digest,
    /// Who has not said that it knows.
    waiting: BTreeSet<NodeId>,
    /// Who was shown all that the leader knows.
    shown: BTreeSet<NodeId>,
    /// Who was told all that was open, in this round and those that it follows. It is told what has come since.
    told: BTreeSet<NodeId>,
    /// Who has been sent something, was never heard, and is asked when it is (ME-11).
    later: BTreeSet<NodeId>,
    /// Who of those has been heard.
    due: BTreeSet<NodeId>,
}

impl Round {
    pub(super) fn waiting(&self) -> &BTreeSet<NodeId> {
        &self.waiting
    }

    /// How many are remembered.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        [
            &self.waiting,
            &self.shown,
            &self.told,
            &self.later,
            &self.due,
        ]
        .iter()
        .map(|set| set.len())
        .sum()
    }

    /// It has been heard for the first time.
    pub(super) fn heard(&mut self, node: NodeId) {
        if self.later.remove(&node) {
            self.due.insert(node);
        }
    }
}

/// What somebody has asked this node, and how far it has answered.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Asked {
    digest: Digest,
    answer: Answer,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Answer {
    None,
    /// This node knows something else, and has said so.
    Unlike,
    /// It was shown all that the other knows and still knows more.
    UnlikeStill,
    /// It has shown all that it knows.
    Shown,
    /// It has given its word, when this was open.
    Known(BTreeMap<WorkerId, Standing>),
}

impl Membership {
    /// Whether [`proceed`](Self::proceed) may have something to do.
    pub(crate) fn is_busy(&self) -> bool {
        !self.open.is_empty()
            || !self.asked.is_empty()
            || !self.newcomers.is_empty()
            || self.phase == Phase::Leaving
    }

    /// Does what follows from everything so far. `registered` says whether the owners of all that this node was handed by
    /// departed ones have answered its registrations (ME-3).
    pub(crate) fn proceed(&mut self, registered: bool) -> Outcome {
        let registered = registered || mutated!(self.mutant, KnownUnregistered);
        let mut outcome = Outcome::default();
        match self.phase {
            Phase::Joining => self.answer(true, &mut outcome),
            Phase::Member => {
                self.pass_on(&mut outcome);
                self.lead(registered, &mut outcome);
                self.answer(registered, &mut outcome);
                self.welcome(&mut outcome);
            }
            Phase::Leaving => self.depart(&mut outcome),
            Phase::Departed | Phase::Evicted => {}
        }
        outcome
    }

    /// Tells the leader what is open, once.
    pub(super) fn pass_on(&mut self, outcome: &mut Outcome) {
        let leader = self.leader();
        if leader == self.me {
            return;
        }
        let was_told = self.told == Some(leader);
        let news = self.news(|open| open.is_news && !(was_told && open.is_passed_on));
        if news.is_empty() {
            return;
        }
        self.told = Some(leader);
        let open = self.open.values_mut();
        open.for_each(|open| open.is_passed_on = true);
        // ME-8: it may be of another group, and never have heard of this node.
        match self.unheard.contains(&leader) && !mutated!(self.mutant, StrangersToldNothing) {
            true => self.tell_all_known(leader, None, outcome),
            false => tell(leader, news, None, outcome),
        }
    }

    /// What is open of these need not be passed on.
    pub(super) fn leader_knows(&mut self, entries: &[(WorkerId, Standing)]) {
        for (worker, standing) in entries {
            if let Some(open) = self.open.get_mut(worker) {
                open.is_passed_on |= open.standing == *standing;
            }
        }
    }

    fn news(&self, wanted: impl Fn(&Open) -> bool) -> Vec<(WorkerId, Standing)> {
        let open = self.open.iter().filter(|(_, open)| wanted(open));
        open.map(|(&worker, open)| (worker, open.standing))
            .collect()
    }

    /// Asks around if this node leads and something is open.
    fn lead(&mut self, registered: bool, outcome: &mut Outcome) {
        if self.open.is_empty() || self.leader() != self.me {
            self.round = None;
            return;
        }
        let digest = self.view.digest();
        if mutated!(self.mutant, RoundGoesOn)
            && let Some(round) = &mut self.round
        {
            round.waiting.retain(|&node| self.view.is_live(node));
        } else if self
            .round
            .as_ref()
            .is_none_or(|round| round.digest != digest)
        {
            let before = self.round.take().unwrap_or_default();
            self.round = Some(self.ask_all(digest, before, outcome));
            if !mutated!(self.mutant, ToldAgain) {
                self.open.values_mut().for_each(|open| open.is_told = true);
            }
        }
        self.ask_heard(outcome);
        let done = |round: &mut Round| round.waiting.is_empty() && registered;
        if let Some(round) = self.round.take_if(done) {
            let others = self.view.live().filter(|&node| node != self.me);
            let settled = |node| (node, Control::Settled(round.digest));
            outcome.messages.extend(others.map(settled));
            let open = self.open_now();
            self.on_all_know(self.me, &open, outcome);
        }
    }

    /// Tells all that live what is open, and asks each of them.
    fn ask_all(&self, digest: Digest, before: Round, outcome: &mut Outcome) -> Round {
        let members_only = mutated!(self.mutant, JoiningNotAwaited);
        let asked =
            |node: &NodeId| *node != self.me && (self.view.is_member(*node) || !members_only);
        let mut round = Round {
            digest,
            waiting: self.view.live().filter(asked).collect(),
            ..Round::default()
        };
        for &node in &round.waiting {
            let was_told = before.told.contains(&node);
            let entries = self.open_for(node, was_told);
            // ME-11: there may be no such life.
            if self.unheard.contains(&node) {
                let was_asked = was_told || before.later.contains(&node);
                if was_asked || entries.len() > self.limits.unheard {
                    round.later.insert(node);
                    if !was_asked {
                        tell(node, Vec::new(), Some(self.knock(digest)), outcome);
                    }
                    continue;
                }
            }
            tell(node, entries, Some(digest), outcome);
            round.told.insert(node);
        }
        round
    }

    /// ME-11: what is asked of a life that is told nothing. Nobody knows exactly that, and one that is joining, which says that it
    /// knows whatever it is asked, says nothing by it.
    fn knock(&self, digest: Digest) -> Digest {
        match mutated!(self.mutant, KnockCounts) {
            true => digest,
            false => Digest::NOTHING,
        }
    }

    /// ME-11: those who have been heard exist, and are asked like all others.
    fn ask_heard(&mut self, outcome: &mut Outcome) {
        let due = match &mut self.round {
            Some(round) => std::mem::take(&mut round.due),
            None => return,
        };
        if mutated!(self.mutant, HeardUnasked) {
            return;
        }
        for node in due {
            let entries = self.open_for(node, false);
            if let Some(round) = &mut self.round
                && round.waiting.contains(&node)
            {
                round.told.insert(node);
                tell(node, entries, Some(round.digest), outcome);
            }
        }
    }

    /// What a node is told of what is open: all, or what was not told before.
    fn open_for(&self, node: NodeId, was_told: bool) -> Vec<(WorkerId, Standing)> {
        // ME-4: whoever is joining cannot say that it lacks something.
        let is_member = self.view.is_member(node);
        let mut entries =
            self.news(|open| (open.is_news || !is_member) && !(was_told && open.is_told));
        // Nobody is told of itself.
        entries.retain(|(worker, _)| *worker != node.worker);
        entries
    }

    /// Another node asks whether this one knows what it knows.
    pub(super) fn on_question(&mut self, from: NodeId, digest: Digest) {
        let before = self.asked.remove(&from);
        let again =
            before.is_some_and(|before| before.digest == digest && before.answer == Answer::Unlike);
        let answer = if again {
            Answer::UnlikeStill
        } else {
            Answer::None
        };
        if !self.view.is_gone(from) {
            self.asked.insert(from, Asked { digest, answer });
        }
    }

    /// Answers what others have asked, as far as that is possible.
    fn answer(&mut self, registered: bool, outcome: &mut Outcome) {
        let mine = self.view.digest();
        let careless = mutated!(self.mutant, KnownWhatever);
        let mut asked = std::mem::take(&mut self.asked);
        for (&node, asked) in &mut asked {
            let digest = asked.digest;
            let is_known = match self.phase {
                // It has been told what is open, holds nothing and owns nothing.
                Phase::Joining => true,
                _ => mine == digest || careless,
            };
            match asked.answer {
                Answer::Known(_) | Answer::Shown => {}
                _ if is_known => {
                    if registered {
                        outcome.messages.push((node, Control::Known(digest)));
                        let open = match self.phase {
                            Phase::Joining => BTreeMap::new(),
                            _ => self.open_now(),
                        };
                        asked.answer = Answer::Known(open);
                    }
                }
                Answer::None => {
                    let asked_about = digest;
                    let unlike = Control::Unlike {
                        asked: asked_about,
                        mine,
                    };
                    outcome.messages.push((node, unlike));
                    asked.answer = Answer::Unlike;
                }
                Answer::UnlikeStill => {
                    self.tell_all_known(node, None, outcome);
                    asked.answer = Answer::Shown;
                }
                Answer::Unlike => {}
            }
        }
        self.asked = asked;
    }

    fn open_now(&self) -> BTreeMap<WorkerId, Standing> {
        self.news(|_| true).into_iter().collect()
    }

    /// Another node knows what it was asked about.
    pub(crate) fn on_known(&mut self, from: NodeId, digest: Digest) {
        if let Some(round) = &mut self.round
            && (round.digest == digest || mutated!(self.mutant, OldWordSettles))
        {
            round.waiting.remove(&from);
        }
    }

    /// Another node knows something else than it was asked about, and has told this one all that is open there. So it is
    /// shown what there is.
    pub(crate) fn on_unlike(&mut self, from: NodeId, asked: Digest, mine: Digest) -> Outcome {
        let mut outcome = Outcome::default();
        let digest = self.view.digest();
        if let Some(round) = &mut self.round
            && round.digest == asked
            && digest == asked
            && mine != asked
            && round.waiting.contains(&from)
            && round.shown.insert(from)
        {
            self.tell_all_known(from, Some(digest), &mut outcome);
        }
        outcome
    }

    /// Somebody has the word of all on what this node has given its word on.
    pub(crate) fn on_settled(&mut self, from: NodeId, digest: Digest) -> Outcome {
        let mut outcome = Outcome::default();
        if let Some(asked) = self.asked.remove(&from) {
            match asked.answer {
                Answer::Known(open) if asked.digest == digest => {
                    self.on_all_know(from, &open, &mut outcome);
                }
                answer => {
                    let asked = Asked { answer, ..asked };
                    self.asked.insert(from, asked);
                }
            }
        }
        outcome
    }

    /// All know what was open when this node gave its word.
    fn on_all_know(
        &mut self,
        by: NodeId,
        open: &BTreeMap<WorkerId, Standing>,
        outcome: &mut Outcome,
    ) {
        self.tellers.settled(by, self.leader());
        self.open
            .retain(|worker, now| open.get(worker) != Some(&now.standing));
        let all = mutated!(self.mutant, SettleWhatCameSince);
        let settled = |node: NodeId| {
            let known = open.get(&node.worker);
            all || known.is_some_and(|known| *known > Standing::of(node, Status::Alive))
        };
        self.settle_departed(settled, outcome);
    }

    pub(super) fn settle_departed(
        &mut self,
        settled: impl Fn(NodeId) -> bool,
        outcome: &mut Outcome,
    ) {
        let settled = self.departed.extract_if(.., |node| settled(*node));
        outcome.changes.extend(settled.map(Change::Settled));
    }

    /// Lets those in whom all know (ME-4).
    fn welcome(&mut self, outcome: &mut Outcome) {
        let early = mutated!(self.mutant, WelcomeEarly);
        let known = |node: &NodeId| early || !self.open.contains_key(&node.worker);
        let ready: Vec<NodeId> = self.newcomers.iter().copied().filter(known).collect();
        for node in ready {
            self.newcomers.remove(&node);
            self.tell_all_known(node, None, outcome);
            // The last of the messages lets it in.
            if let Some((_, last)) = outcome.messages.last_mut()
                && let Control::View { entries, .. } = last
            {
                *last = Control::Welcome(std::mem::take(entries));
            }
        }
    }
}
