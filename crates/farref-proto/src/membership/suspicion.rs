//! Suspicions: who cannot be reached, who is asked about it, and who is declared dead (ME-6, ME-7).

use super::{Membership, Outcome};
use crate::ids::NodeId;
use crate::message::Control;
use crate::mutation::mutated;
use crate::standing::{Phase, Standing, Status};

impl Membership {
    /// The lowest-numbered member that this node can reach.
    pub fn leader(&self) -> NodeId {
        self.view
            .members()
            .find(|node| !self.suspects.contains(node))
            .unwrap_or(self.me)
    }

    /// This node cannot reach another.
    pub(crate) fn suspect(&mut self, node: NodeId) -> Outcome {
        if self.phase == Phase::Leaving {
            // The group no longer listens to this node; it need not wait for one it cannot reach.
            return self.said_good_bye(node);
        }
        let mut outcome = Outcome::default();
        let news = node != self.me && !self.view.is_gone(node) && self.suspects.insert(node);
        // A newcomer keeps it to itself until it is let in.
        if news && self.phase == Phase::Member {
            self.report_suspects(Some(node), &mut outcome);
        }
        outcome
    }

    /// A node has been heard from: it can be reached after all.
    pub(crate) fn heard(&mut self, node: NodeId) {
        if !mutated!(self.mutant, KeepSuspicion) {
            self.suspects.remove(&node);
        }
        self.elders.remove(&node);
    }

    /// What a node has said is taken in, and was perhaps the first that this one has heard of it or about it.
    pub(crate) fn met(&mut self, node: NodeId) {
        if self.unheard.remove(&node)
            && let Some(round) = &mut self.round
        {
            round.heard(node);
        }
    }

    /// Another node cannot reach `node` and takes this one for the leader. If `node` ranks before
    /// this one, it is asked first: should it be dead, this node will find out soon enough.
    pub(crate) fn on_suspect(&mut self, from: NodeId, node: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        // It may be a newcomer that only the other node has heard of.
        if node == self.me || self.view.is_gone(node) {
            self.taken_for_alive(from, node, &mut outcome);
            return outcome;
        }
        let ranks_before =
            node < self.me && self.view.is_member(node) && !mutated!(self.mutant, CondemnUnasked);
        if ranks_before && !self.suspects.contains(&node) {
            outcome.messages.push((node, Control::Accused(from)));
        } else {
            self.declare_dead(node, &mut outcome);
        }
        outcome
    }

    /// A member cannot reach this node, but another can. Of the two, the one with the lower number
    /// stays; but of two who have never met, the one that was there before.
    pub(crate) fn on_accused(&mut self, from: NodeId, by: NodeId) -> Outcome {
        let mut outcome = Outcome::default();
        if self.view.is_gone(by) {
            self.taken_for_alive(from, by, &mut outcome);
            return outcome;
        }
        if self.elders.contains(&by) && !mutated!(self.mutant, NewcomersStay) {
            return self.resign(by);
        }
        // It always does among members that keep to the rules: a suspicion is brought to somebody who ranks
        // before the accuser, or is of somebody who does, and is passed on only to those who rank before that one.
        let ranks_before = self.me < by || mutated!(self.mutant, AccusedAlwaysStays);
        if self.phase == Phase::Member && ranks_before {
            self.declare_dead(by, &mut outcome);
        }
        outcome
    }

    /// One node takes another for alive; if that one is gone, it has not heard of it (ME-9).
    fn taken_for_alive(&self, by: NodeId, node: NodeId, outcome: &mut Outcome) {
        let alive = Standing::of(node, Status::Alive);
        self.correct(by, &[(node.worker, alive)], outcome);
    }

    fn declare_dead(&mut self, node: NodeId, outcome: &mut Outcome) {
        let dead = Standing::of(node, Status::Dead);
        self.learn(&[(node.worker, dead)], None, outcome);
    }

    pub(crate) fn has_early_suspects(&self) -> bool {
        self.has_early_suspects
    }

    /// Brings the suspicions to the leader that this node has kept to itself until it was let in. That is done at the next
    /// occasion, so that its driver can resign before, if one of them refuses this node.
    pub(crate) fn report_early_suspects(&mut self) -> Outcome {
        let mut outcome = Outcome::default();
        self.has_early_suspects = false;
        if self.phase == Phase::Member && !self.suspects.is_empty() {
            self.report_suspects(None, &mut outcome);
        }
        outcome
    }

    /// Brings suspicions to the leader, all of them when it is a new one; or acts on them.
    ///
    /// A node that is the leader only because it suspects those before it asks another member first:
    /// if they are alive, it is this node that is cut off.
    pub(super) fn report_suspects(&mut self, latest: Option<NodeId>, outcome: &mut Outcome) {
        let mut ask = self.leader();
        if ask == self.me {
            let me = self.me;
            let (before, after) = self
                .suspects
                .iter()
                .partition::<Vec<NodeId>, _>(|&&node| node < me);
            let confirmer = self
                .view
                .members()
                .find(|node| *node != me && !self.suspects.contains(node));
            let condemned = if confirmer.is_some() {
                after
            } else {
                [before, after].concat()
            };
            for node in condemned {
                self.suspects.remove(&node);
                self.declare_dead(node, outcome);
            }
            match confirmer {
                Some(confirmer) if !self.suspects.is_empty() => ask = confirmer,
                _ => return,
            }
        }
        let news: Vec<NodeId> = if self.reported_to == Some(ask) {
            latest
                .into_iter()
                .filter(|node| self.suspects.contains(node))
                .collect()
        } else {
            self.suspects.iter().copied().collect()
        };
        self.reported_to = Some(ask);
        outcome
            .messages
            .extend(news.into_iter().map(|node| (ask, Control::Suspect(node))));
    }
}
