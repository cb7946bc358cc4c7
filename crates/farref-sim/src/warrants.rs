//! What the oracle has to say about membership: was an eviction warranted, does a settled departure
//! deserve the name, was a newcomer welcomed too early, was an evicted worker told everything.

use farref_proto::{Control, Departure, NodeId, Phase, Standing, Status, Time};

use crate::oracle::Handling;
use crate::process::{Packet, Process};
use crate::world::World;

impl World {
    /// A worker hears from another: it can be reached after all.
    pub(crate) fn heard(&mut self, from: NodeId, to: NodeId, packet: &Packet) {
        let now = self.now;
        let Some(process) = self.process(to) else {
            return;
        };
        let membership = process.node.membership();
        let counts = match packet {
            Packet::Control(_) => true,
            Packet::Call(..) | Packet::Answer(..) => {
                membership.phase() != Phase::Joining && !membership.view().is_gone(from)
            }
            Packet::Cancel(_) => false,
        };
        if counts && self.oracle.suspicions.remove(&(to, from)) {
            self.oracle.withdrawn.insert((to, from), now);
        }
    }

    /// What must not be sent, or not after something else. It was said at some moment since then.
    pub(crate) fn check_order(&mut self, node: NodeId, control: &Control, since: Time) {
        match control {
            Control::Suspect(accused) => self.check_report(node, *accused, since),
            Control::Release(list) => {
                for share in list {
                    let held = self.oracle.forks.get_mut(&(node, share.rref));
                    if let Some((fork, released)) = held {
                        *released |= *fork == share.fork;
                    }
                }
            }
            // R4: whoever adopts keeps its own until it has.
            Control::Adopt(list) => {
                for adoption in list {
                    let rref = adoption.share.rref;
                    if let Some((_, true)) = self.oracle.forks.get(&(node, rref)) {
                        let what = format!("{node} let {rref} go before it adopted {adoption:?}");
                        self.oracle.violated("R4", self.now, what);
                    }
                }
            }
            _ => {}
        }
    }

    /// F2: nobody reports a worker that it has heard from since.
    fn check_report(&mut self, by: NodeId, accused: NodeId, since: Time) {
        let pair = (by, accused);
        // It may have been heard after the report was made and before it is sent.
        let withdrawn = self.oracle.withdrawn.get(&pair);
        let just_now = withdrawn.is_some_and(|&at| at >= since);
        if !self.oracle.suspicions.contains(&pair) && !just_now {
            let what = format!("{by} reports {accused}, which it can reach");
            self.oracle.violated("F2", self.now, what);
        }
    }

    /// F2: whoever is the first to count a running worker as dead has a reason, and has asked those
    /// whom it has to ask. Answers whether it was the first.
    pub(crate) fn check_departure(
        &mut self,
        by: NodeId,
        node: NodeId,
        departure: Departure,
    ) -> bool {
        let first = self.oracle.departed.insert(node);
        let member = |process: &mut Process| process.node.membership().phase() <= Phase::Member;
        if !first || departure == Departure::Left || !self.process(node).is_some_and(member) {
            return first;
        }
        self.oracle.split = true;
        self.check_unfit(by, node);
        let suspected = self.oracle.suspicions.contains(&(by, node));
        let handling = self.oracle.handling.clone();
        let unasked = match handling.map(|handling| (handling.control, handling.knew)) {
            // It is asked first if it ranks before the judge, who can reach it.
            Some((Control::Suspect(accused), knew)) if accused == node => {
                // What it knew may be of an earlier life.
                let member = knew == Some(Standing::of(node, Status::Alive));
                node < by && member && !suspected
            }
            // The lower number stays.
            Some((Control::Accused(accuser), _)) if accuser == node => node < by,
            _ if !suspected => true,
            // Another member has to have come to the same conclusion.
            _ => node < by && self.confirmer(by).is_some(),
        };
        if unasked {
            let handling = &self.oracle.handling;
            let what =
                format!("{by} declares {node} dead without a reason, acting on {handling:?}");
            self.oracle.violated("F2", self.now, what);
        }
        first
    }

    /// A member that this one can ask before it declares somebody dead.
    fn confirmer(&mut self, by: NodeId) -> Option<NodeId> {
        let members: Vec<NodeId> = self
            .process(by)?
            .node
            .membership()
            .view()
            .members()
            .collect();
        let suspicions = &self.oracle.suspicions;
        members
            .into_iter()
            .find(|&node| node != by && !suspicions.contains(&(by, node)))
    }

    /// Notes what a worker is about to act on.
    pub(crate) fn begin_handling(&mut self, from: NodeId, to: NodeId, control: &Control) {
        let accused = match *control {
            Control::Suspect(accused) => Some(accused),
            _ => None,
        };
        let knew = accused.and_then(|accused| {
            let view = self.process(to)?.node.membership().view();
            view.standing(accused.worker)
        });
        let control = control.clone();
        self.oracle.handling = Some(Handling {
            from,
            control,
            knew,
        });
    }

    /// The running members that a worker counts among the living and that count it so, too.
    fn companions(&mut self, node: NodeId) -> Vec<NodeId> {
        let mut members = self.members();
        members
            .retain(|&other| other != node && self.counts(node, other) && self.counts(other, node));
        members
    }

    /// Whether a worker counts another among the living.
    pub(crate) fn counts(&mut self, node: NodeId, other: NodeId) -> bool {
        self.process(node)
            .is_some_and(|p| p.node.membership().view().is_live(other))
    }

    /// Whether a worker counts another among the members, and not only among those that are joining.
    pub(crate) fn has_for_member(&mut self, node: NodeId, other: NodeId) -> bool {
        self.process(node).is_some_and(|p| {
            let standing = p.node.membership().view().standing(other.worker);
            standing == Some(Standing::of(other, Status::Alive))
        })
    }

    /// R4: a departure is settled when every member refuses the departed one's frames.
    pub(crate) fn check_settled(&mut self, node: NodeId, departed: NodeId) {
        // A newcomer owns nothing and asks nobody.
        if self.oracle.split || !self.members().contains(&node) {
            return;
        }
        self.oracle
            .settled
            .entry(node)
            .or_default()
            .insert(departed);
        for other in self.companions(node) {
            let knows = self
                .process(other)
                .is_some_and(|p| p.node.membership().view().is_gone(departed));
            if !knows {
                let what = format!("{departed} is settled on {node}, and {other} listens to it");
                self.oracle.violated("R4", self.now, what);
            }
        }
    }

    /// S3, R4: when a newcomer is let in every member knows it, and it knows of every departure that a
    /// member has settled without it.
    pub(crate) fn check_welcomed(&mut self, node: NodeId) {
        if self.oracle.split {
            return;
        }
        let mut members = self.members();
        members.retain(|&other| other != node && self.counts(node, other));
        for other in members {
            let stranger = self.process(other).is_some_and(|p| {
                let view = p.node.membership().view();
                !view.is_live(node) && !view.is_gone(node)
            });
            if stranger {
                let what = format!("{node} was welcomed, and {other} has not heard of it");
                self.oracle.violated("S3", self.now, what);
            }
            let settled = self.oracle.settled.get(&other).cloned().unwrap_or_default();
            let unknown = settled.into_iter().find(|&departed| {
                self.process(node)
                    .is_some_and(|p| !p.node.membership().view().is_gone(departed))
            });
            if let Some(departed) = unknown {
                let what =
                    format!("{node} was welcomed and listens to {departed}, settled on {other}");
                self.oracle.violated("R4", self.now, what);
            }
        }
    }

    /// F2: on an evicted worker nobody goes on waiting.
    pub(crate) fn check_evicted(&mut self, node: NodeId) {
        let Some(process) = self.process(node) else {
            return;
        };
        let program = &process.program;
        let unconfirmed: Vec<_> = program
            .unconfirmed
            .iter()
            .filter(|rref| program.holds(**rref))
            .collect();
        let waits = !program.outstanding.is_empty()
            || !program.releases.is_empty()
            || !unconfirmed.is_empty();
        if waits || !process.node.is_empty() {
            let (calls, releases) = (&program.outstanding, &program.releases);
            let what =
                format!("{node} was evicted and waits for {calls:?} {releases:?} {unconfirmed:?}");
            self.oracle.violated("F2", self.now, what);
        }
    }

    /// D5: what a worker keeps for others is bounded, and nothing is kept of lives that are over.
    pub(crate) fn check_memory(&mut self, node: NodeId) {
        if !self.stats.messages.is_multiple_of(16) {
            return;
        }
        let quota = self.conditions.pending_quota;
        let Some(process) = self.process(node) else {
            return;
        };
        if let Some(what) = process.node.inconsistency() {
            let what = format!("{node} contradicts itself: {what}");
            return self.oracle.violated("R2", self.now, what);
        }
        let departed: Vec<NodeId> = self.oracle.departed.iter().copied().collect();
        let Some(process) = self.process(node) else {
            return;
        };
        let view = process.node.membership().view();
        // Nobody was ever life 0, and whoever comes back was let in when nothing of its own was left.
        let concerns = |gone: &NodeId| gone.incarnation.0 > 0 && gone.worker != node.worker;
        let uninstalled = departed
            .into_iter()
            .filter(concerns)
            .find(|&gone| view.is_gone(gone) && !process.node.tables_know_departure_of(gone));
        if let Some(gone) = uninstalled {
            let what = format!("{node} counts {gone} as gone, and its tables do not");
            return self.oracle.violated("F2", self.now, what);
        }
        let remembered = process.node.closed_origins();
        let stale = remembered.into_iter().find(|&origin| view.is_gone(origin));
        let pending = process.node.most_pending_of_one_peer();
        // What the program itself was handed, and may have handed on, is its own business. What creators adopt is theirs.
        let beyond = process.program.handed_over + process.program.adopted;
        if let Some(origin) = stale {
            let what = format!("{node} remembers contexts of {origin}, which is gone");
            self.oracle.violated("D5", self.now, what);
        }
        if quota.is_some_and(|quota| pending > quota + beyond) {
            let what =
                format!("{node} keeps {pending} values not yet created for one of its peers");
            self.oracle.violated("D5", self.now, what);
        }
    }
}
