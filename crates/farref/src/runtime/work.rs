//! What an input leads to and must not be done while the lock is held (PR-2), and of that, what must not
//! be done by whoever brought the input (UC-1).

use std::sync::Arc;

use farref_proto::{Departure, NodeId};
use tokio::sync::oneshot;

use super::Core;
use crate::agent::Message;
use crate::codec::Payload;
use crate::error::Error;
use crate::runtime::handle::Handle;
use crate::runtime::serve::Job;
use crate::support::signal::CancelSignal;
use crate::values::Value;

/// What a caller gets: the encoded result with its references, or why there is none.
pub(crate) type Reply = Result<(Payload, Vec<Arc<Handle>>), Error>;

/// Tells somebody who waits.
type Wake = Box<dyn FnOnce(&Core) + Send>;

/// Deeds for after the lock.
#[derive(Default)]
pub(super) struct Work {
    /// Peers that something was queued for. Nearly always one.
    first: Option<NodeId>,
    others: Vec<NodeId>,
    pub(super) replies: Vec<(oneshot::Sender<Reply>, Reply)>,
    pub(super) jobs: Vec<Job>,
    /// Messages of this worker to itself.
    pub(super) loopback: Vec<Message>,
    pub(super) cancelled: Vec<Arc<CancelSignal>>,
    pub(super) forgotten: Vec<(NodeId, Departure)>,
    pub(super) joined: Vec<NodeId>,
    /// Whoever waits here for something that is not a reply.
    pub(super) woken: Vec<Wake>,
    /// Holds on references. Letting go of one is an input in turn.
    pub(super) handles: Vec<Arc<Handle>>,
    /// Code of the program.
    pub(super) callbacks: Vec<Box<dyn FnOnce() + Send>>,
    /// Anything with destructors that are the program's.
    pub(super) freed: Vec<Value>,
    pub(super) dropped: Vec<Box<dyn Send>>,
}

impl Work {
    /// Something was queued for `peer`.
    pub(super) fn flush(&mut self, peer: NodeId) {
        match self.first {
            None => self.first = Some(peer),
            Some(first) if first == peer || self.others.contains(&peer) => {}
            Some(_) => self.others.push(peer),
        }
    }

    pub(super) fn carry_out(self, core: &Arc<Core>) {
        if let Some(first) = self.first {
            core.agent().flush(first);
            self.others
                .iter()
                .for_each(|&peer| core.agent().flush(peer));
        }
        for (sender, reply) in self.replies {
            // Whoever waited may have gone; what came for it is then let go.
            if let Err(unwanted) = sender.send(reply) {
                core.user_code.run(move || drop(unwanted));
            }
        }
        for job in self.jobs {
            job.start();
        }
        for message in self.loopback {
            core.loop_back(message);
        }
        self.cancelled.iter().for_each(|signal| signal.cancel());
        for (node, departure) in self.forgotten {
            core.agent().forget(node, departure);
            core.names.forget(node);
            core.answers.forget(node);
        }
        for node in self.joined {
            core.names.learn(core, node);
        }
        self.woken.into_iter().for_each(|wake| wake(core));
        drop(self.handles);
        // One by one: a panic in one must not take the others along (UC-2).
        for callback in self.callbacks {
            core.user_code.run(callback);
        }
        if !self.freed.is_empty() {
            core.user_code.let_go(self.freed);
        }
        for dropped in self.dropped {
            core.user_code.run(move || drop(dropped));
        }
    }
}
