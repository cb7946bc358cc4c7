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

    /// Somebody who had connected and never joined is not worth remembering.
    pub(crate) fn unmet(&self, node: NodeId) {
        let mut state = self.lock();
        if state.node.membership().view().is_live(node) {
            return;
        }
        let left = state.peers.remove(&node);
        drop(state);
        drop(left);
        self.unwelcome.forget(node);
        self.rejections.remove(node);
        self.names.remove(node);
        self.unreachable
            .send_if_modified(|nodes| nodes.remove(&node));
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
