//! Saying good-bye: whoever leaves tells every member itself, and goes when all have answered.
//!
//! Whoever hears it from the leaver does not pass it on at once: the leader hears it as well, or will find the leaver dead.

use super::{Change, Membership, Outcome};
use crate::ids::NodeId;
use crate::message::Control;
use crate::mutation::mutated;
use crate::standing::{Phase, Standing, Status};

impl Membership {
    /// Begins to say good-bye.
    pub(crate) fn leave(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        if self.phase != Phase::Member {
            return outcome;
        }
        let left = Standing::of(self.me, Status::Left);
        self.view.raise(self.me.worker, left);
        // What only this node knows would go with it.
        self.pass_on(&mut outcome);
        self.phase = Phase::Leaving;
        self.round = None;
        let others: Vec<NodeId> = self.view.live().collect();
        for &node in &others {
            outcome.messages.push((node, Control::Leaving));
        }
        let reachable = others
            .into_iter()
            .filter(|node| !self.suspects.contains(node));
        self.farewells = reachable.collect();
        outcome
    }

    /// Another node goes. It is answered even if its departure is known already: news of it may have come from others
    /// before.
    pub(crate) fn on_leaving(&mut self, from: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        if !self.view.is_gone(from) {
            let left = (from.worker, Standing::of(from, Status::Left));
            self.learn(&[left], Some(from), &mut outcome);
            if self.told == Some(self.leader()) {
                self.leader_knows(&[left]);
            }
        }
        outcome.messages.push((from, Control::Farewell));
        outcome
    }

    /// Another node knows that this one goes, or has refused it as gone, or cannot be reached.
    pub(crate) fn said_good_bye(&mut self, to: NodeId) -> Outcome {
        self.farewells.remove(&to);
        Outcome::default()
    }

    /// Goes if nobody is waited for any more.
    pub(super) fn depart(&mut self, outcome: &mut Outcome) {
        if self.farewells.is_empty() {
            self.phase = Phase::Departed;
            outcome.changes.push(Change::Departed);
        }
    }

    /// Gives the group up because a member does not talk to this node. The others are told that it has left, and nobody is
    /// waited for: to this node it is the end. They pass it on, for the one that does not hear it may be the leader.
    pub(crate) fn resign(&mut self, refused_by: NodeId) -> Outcome {
        match self.phase {
            Phase::Member => {}
            // It goes already, and need not wait for that one.
            Phase::Leaving => return self.said_good_bye(refused_by),
            Phase::Joining | Phase::Departed | Phase::Evicted => return Outcome::default(),
        }
        let leader = self.leader();
        // It is not the one to hear what only this node knows.
        self.suspects.insert(refused_by);
        let mut outcome = self.leave();
        outcome.messages.retain(|(to, _)| *to != refused_by);
        if mutated!(self.mutant, ResignUntold) {
            outcome.messages.clear();
        }
        if mutated!(self.mutant, ResignToLeader) {
            outcome.messages.retain(|(to, _)| *to == leader);
        }
        for (_, control) in &mut outcome.messages {
            if let Control::Leaving = control {
                let left = Standing::of(self.me, Status::Left);
                let entries = vec![(self.me.worker, left)];
                *control = Control::View { entries, ask: None };
            }
        }
        self.farewells.clear();
        self.phase = Phase::Evicted;
        outcome.changes.push(Change::Evicted);
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
}
