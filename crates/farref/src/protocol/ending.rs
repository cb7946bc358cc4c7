//! What a worker that leaves owes its peers: the answers to their calls.

use std::collections::BTreeSet;

use farref_proto::{MessageId, NodeId};

use super::{Core, Held};

impl Core {
    /// The calls of peers that are not answered. Those whose results stay are not among them: they are
    /// lost with a worker that leaves, be they made or not.
    pub(crate) fn unanswered(&self) -> BTreeSet<(NodeId, MessageId)> {
        let state = self.lock();
        let peers = state.peers.iter().filter(|(node, _)| **node != self.me);
        let calls = peers.flat_map(|(&node, peer)| {
            let waiting = peer.waiting.iter();
            let waiting = waiting.filter(|(_, held)| matches!(held, (Held::Call(_), _)));
            let requests = peer
                .running
                .keys()
                .chain(waiting.map(|(request, _)| request));
            requests.map(move |&request| (node, request))
        });
        calls.collect()
    }

    /// From now on peers are told that this worker is going, and their new calls do not run.
    pub(crate) fn refuse_calls(&self) {
        self.lock().refuses = true;
    }

    /// Members that have not acknowledged all they were told, the answers to their calls among it.
    pub(crate) fn unacknowledged(&self) -> Vec<NodeId> {
        let links = self.agent().links();
        let open = links.iter().filter(|link| link.queued_messages > 0);
        let view = |node: &NodeId| self.look(|it| it.membership().view().is_member(*node));
        open.map(|link| link.peer).filter(view).collect()
    }
}
