//! Calls that wait because their peer has enough to do, and those who wait for a place among them (FL-4).

use std::sync::Arc;

use farref_proto::NodeId;

use super::outgoing::CallSpec;
use super::work::Work;
use crate::error::{Error, FunctionName};
use crate::runtime::core::{Core, ProtocolState};
use crate::tables::flow_control::Recalled;

impl Core {
    /// Whether a call can be sent or parked (FL-4).
    pub(super) fn has_place(&self, state: &ProtocolState, to: NodeId, call: &CallSpec) -> bool {
        let bytes = call.encoded.payload.len() as u64;
        let most = self.settings.max_parked_calls;
        let peer = state.peers.get(&to);
        to == self.me || peer.is_none_or(|peer| peer.flow.has_place(bytes, most))
    }

    /// Sends what has room now.
    pub(super) fn unpark(&self, state: &mut ProtocolState, to: NodeId, work: &mut Work) {
        let Some(peer) = state.peers.get_mut(&to) else {
            return;
        };
        while let Some(message) = peer.flow.next(|| work.now()) {
            self.send(to, message, work);
        }
        self.recall(state, to, work);
    }

    /// Tells those who found no place that there are some again (FL-4).
    pub(super) fn recall(&self, state: &mut ProtocolState, to: NodeId, work: &mut Work) {
        let Some(peer) = state.peers.get_mut(&to) else {
            return;
        };
        let Recalled { told, gave_up } = peer.flow.recalled(self.settings.max_parked_calls);
        if !gave_up.is_empty() {
            work.woken.push(Box::new(move |_| drop(gave_up)));
        }
        for told in told {
            work.woken.push(Box::new(move |core| {
                if told.send(()).is_err() {
                    core.pass_place_on(to);
                }
            }));
        }
    }

    /// Somebody was told of a place and does not take it: others who wait for one are told (FL-4).
    pub(crate) fn pass_place_on(&self, to: NodeId) {
        loop {
            let most = self.settings.max_parked_calls;
            let Recalled { told, gave_up } = match self.lock().peers.get_mut(&to) {
                Some(peer) => peer.flow.recalled(most),
                None => return,
            };
            drop(gave_up);
            let mut all_listen = true;
            for told in told {
                all_listen &= told.send(()).is_ok();
            }
            // Who did not has been taken out, so this ends.
            if all_listen {
                return;
            }
        }
    }

    /// A call was not made, and cannot wait.
    pub(crate) fn too_many_calls(&self, to: NodeId, function: FunctionName) -> Error {
        Error::TooManyCalls {
            peer: self.name_of(to),
            function,
        }
    }

    /// Of those who have connected and neither are members nor join, nothing is kept if `forget` says so. That is one step under the
    /// lock: whoever joins does so before or after.
    pub(crate) fn unmet(&self, nodes: &[NodeId], forget: &mut dyn FnMut(NodeId) -> bool) {
        let (mut forgotten, mut left) = (Vec::new(), Vec::new());
        let mut state = self.lock();
        for &node in nodes {
            let view = state.node.membership().view();
            // What is kept of those who are gone goes with them, or with a later life.
            if view.is_live(node) || view.is_gone(node) || !forget(node) {
                continue;
            }
            left.extend(state.peers.remove(&node));
            self.names.remove(node);
            forgotten.push(node);
        }
        drop(state);
        drop(left);
        // To a worker that joins itself, members look alike that it has not heard of. Whether they refuse it must not be lost (UW-1).
        let is_member = self.is_member();
        for node in &forgotten {
            if is_member {
                self.rejections.remove(*node);
            }
            self.unreachable
                .send_if_modified(|nodes| nodes.remove(node));
        }
    }

    /// A peer has said how much it accepts.
    pub(crate) fn met(self: &Arc<Self>, node: NodeId, max_calls: u32) {
        let mut state = self.lock();
        if state.node.membership().view().is_gone(node) {
            return;
        }
        self.unwelcome.met(node);
        state.peer(node).flow.raise_limit(max_calls);
        let mut work = Work::new();
        self.unpark(&mut state, node, &mut work);
        self.finish_input(state, work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Cluster;

    /// LT-1: who was never a member is gone with a later life of its number, of which alone the group hears.
    #[tokio::test]
    async fn of_lives_before_one_that_is_over_nothing_is_kept() -> crate::Result<()> {
        let cluster = Cluster::start(2).await?;
        let core = &cluster.worker(0).core;
        let lives = [1, 2, 9].map(|incarnation| NodeId::new(1000, incarnation));
        for life in lives {
            core.names.prove(life, "stranger");
            core.met(life, 7);
            core.unreachable
                .send_if_modified(|nodes| nodes.insert(life));
        }
        core.input(|protocol, out| protocol.suspect(lives[1], out));
        let known = |life| core.lock().peers.contains_key(&life);
        assert_eq!(lives.map(known), [false, false, true]);
        assert_eq!(*core.unreachable.borrow(), [lives[2]].into());
        let not_over = core.names.not_over(|life| lives.contains(life));
        assert_eq!(not_over, [lives[2]].into());
        core.input(|protocol, out| protocol.suspect(lives[2], out));
        assert_eq!(lives.map(known), [false; 3]);
        cluster.shutdown().await
    }

    /// LT-2: only strangers can be forgotten, and of those who are nothing is known any more.
    #[tokio::test]
    async fn whoever_is_forgotten_is_no_member_and_leaves_no_name() -> crate::Result<()> {
        let cluster = Cluster::start(2).await?;
        let core = &cluster.worker(0).core;
        let member = cluster.worker(1).node();
        let stranger = NodeId::new(1000, 1);
        core.names.prove(stranger, "stranger");
        core.met(stranger, 7);
        core.met(member, 7);
        let nodes = [member, stranger];
        let mut asked = Vec::new();
        core.unmet(&nodes, &mut |node| {
            assert!(core.state.try_lock().is_err(), "nobody can join now");
            asked.push(node);
            false
        });
        assert_eq!(asked, [stranger]);
        assert!(core.names.of(stranger).is_some(), "it is not forgotten");
        assert!(core.lock().peers.contains_key(&stranger));

        core.unmet(&nodes, &mut |_| true);
        assert_eq!(core.names.of(stranger), None);
        assert!(!core.lock().peers.contains_key(&stranger));
        assert!(core.names.of(member).is_some());
        assert!(core.lock().peers.contains_key(&member));
        cluster.shutdown().await
    }
}
