//! The end of a worker: what it owes its peers, and what becomes of those who still wait.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farref_proto::{Control, Membership, MessageId, Node, NodeConfig, NodeId, Phase};

use crate::agent::Message;
use crate::runtime::LOOKUP;
use crate::runtime::core::{Core, IncomingCall, ValueWaiter, WorkerStage};
use crate::support::signal;
use crate::tables::watchers::WorkerEnd;

impl Core {
    /// The calls of peers that are not answered. Those whose results stay are not among them: they are
    /// lost with a worker that leaves, be they made or not. Nor are lookups of names, which may wait for ever.
    pub(crate) fn unanswered(&self) -> BTreeSet<(NodeId, MessageId)> {
        let is_owed = |call: &IncomingCall| match call {
            IncomingCall::Running { taken, .. } => taken.function != LOOKUP,
            IncomingCall::Waiting(waiter, _) => matches!(**waiter, ValueWaiter::Call(_)),
        };
        self.look(|node| {
            let peers = node.calls_with().filter(|peer| *peer != self.me);
            let calls = peers.flat_map(|peer| {
                let calls = node.incoming_records(peer);
                let owed = calls.filter(|(_, call)| is_owed(call));
                owed.map(move |(request, _)| (peer, request))
            });
            calls.collect()
        })
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

    /// It does not go after all, unless it has said good-bye.
    pub(crate) fn accept_calls_again(&self) {
        let mut state = self.lock();
        if state.node.membership().phase() == Phase::Member {
            state.refuses = false;
        }
    }

    /// Members that have not acknowledged all they were told, the answers to their calls among it.
    pub(crate) fn unacknowledged(&self) -> Vec<NodeId> {
        let links = self.agent().links();
        let open = links.iter().filter(|link| link.queued_messages > 0);
        let view = |node: &NodeId| self.look(|it| it.membership().view().is_member(*node));
        open.map(|link| link.peer).filter(view).collect()
    }

    /// The runtime that all of this worker ran on is gone.
    pub(crate) fn stranded(self: &Arc<Self>) {
        self.has_runtime.store(false, Ordering::Relaxed);
        self.end();
    }

    /// The worker has ended: whoever still waits learns it, and everything it had is let go.
    pub(crate) fn end(self: &Arc<Self>) {
        self.stage.send_if_modified(|stage| {
            let running = *stage <= WorkerStage::Member;
            if running {
                *stage = WorkerStage::Departed;
            }
            running
        });
        // Unless it has ended in another way before.
        self.watchers.end(WorkerEnd::Stopped).wake();
        let names = self.published.close();
        let mut state = self.lock();
        let (outgoing, incoming) = state.node.take_records();
        let empty =
            Node::with_records(self.me, Membership::joining(self.me), NodeConfig::default());
        let node = std::mem::replace(&mut state.node, empty);
        let out = std::mem::take(&mut state.out);
        let mut peers = std::mem::take(&mut state.peers);
        let confirmations = std::mem::take(&mut state.confirmations);
        let releases = std::mem::take(&mut state.releases);
        // A life that somebody remembers is out of date.
        self.view_number.store(0, Ordering::Release);
        drop(state);
        // Whoever waits learns it at once, whatever the program's destructors are at.
        drop(outgoing);
        let mut arrived = Vec::new();
        for call in incoming {
            match call {
                IncomingCall::Running { call, .. } => signal::cancel(&call),
                IncomingCall::Waiting(waiter, _) => match *waiter {
                    ValueWaiter::Local(_, waiter) => drop(waiter),
                    ValueWaiter::Call(call) | ValueWaiter::Receiver(call) => arrived.push(call),
                },
            }
        }
        for peer in peers.values_mut() {
            drop(peer.flow.take_waiting_for_room());
        }
        drop((confirmations, releases));
        self.tasks.close();
        self.let_go_of_names(names);
        // Values may hold references in turn, whose destructors come back here (PR-2).
        self.user_code
            .run(move || drop((node, out, peers, arrived)));
        let core = Arc::clone(self);
        self.user_code.run(move || core.extensions.clear());
    }
}
