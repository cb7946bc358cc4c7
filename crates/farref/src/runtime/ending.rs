//! What a worker that ends owes its peers: the answers to their calls, and to say that it is the end.

use std::collections::BTreeSet;

use farref_proto::{Control, MessageId, NodeId};

use super::{Core, Held};
use crate::agent::Message;

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

    /// Tells those with whom there is a connection that the group is at rest. This one may be gone before they
    /// hear it from the leader, and they would take it for dead.
    pub(crate) fn pass_the_end_on(&self) {
        let mut links = self.agent().links();
        links.retain(|link| link.transport.is_some());
        self.look(|node| {
            let membership = node.membership();
            // The leader has told all.
            let leads = membership.leader() == self.me;
            links.retain(|link| !leads && membership.view().is_member(link.peer));
        });
        for peer in links.into_iter().map(|link| link.peer) {
            self.agent()
                .enqueue(peer, Message::Control(Control::Finish));
            self.agent().flush(peer);
        }
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
