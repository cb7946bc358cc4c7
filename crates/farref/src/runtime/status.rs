//! What is open at this moment: calls with each peer for snapshots, gauges for metrics, and warnings about what
//! lasts too long.
//!
//! A call that has arrived may wait for three things ([`WaitsFor`](crate::WaitsFor)): for its value to be made (the
//! node knows: `IncomingCall::Waiting`), for its turn to use it (`values/queue`), and for room for its answer
//! (`tables/answer_budget`).

use std::sync::Arc;
use std::time::Duration;

use farref_proto::{Node, NodeId, RRefId};

use super::callers;
use super::core::{Core, IncomingCall, StartedCall, ValueWaiter};
use super::current::Current;
use super::registry::{Callee, FunctionEntry};
use super::{FETCH, LOCAL};

use crate::report::calls::CallTrace;
use crate::support::clock::Instant;
use crate::support::lock::lock;

/// What is open with one peer at some moment.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Calls to it that wait because it has enough to do.
    pub(crate) parked: usize,
    /// Calls to it that it has not answered, those that wait among them.
    pub(crate) made: usize,
    /// Its calls that this worker has not answered.
    pub(crate) served: usize,
    /// Of those, the ones that have been taken up.
    pub(crate) running: Vec<TakenCall>,
    /// Those that wait for room for their answers, since then.
    pub(crate) awaiting_room: Vec<TakenCall>,
    /// And those that wait for a value to be made.
    pub(crate) awaiting_value: Vec<AwaitsValue>,
}

/// A call that has been taken up, and what it runs for, unless it is over by now.
pub(crate) struct TakenCall {
    pub(crate) started: StartedCall,
    pub(crate) call: Option<Arc<Current>>,
}

impl TakenCall {
    /// The values that are used by calls which wait for it.
    pub(crate) fn held_by_callers(&self) -> Vec<RRefId> {
        let call = self.call.as_ref();
        call.map_or_else(Vec::new, |call| callers::values(call.chain.above()))
    }

    /// Where it belongs, if anybody wanted to know so far.
    pub(crate) fn trace(&self) -> Option<CallTrace> {
        let call = self.call.as_ref()?;
        let own = call.trace.get()?;
        CallTrace::new(own.trace, own.span, call.caller_trace.span)
    }
}

/// A call on a value that is not made yet.
pub(crate) struct AwaitsValue {
    pub(crate) function: &'static str,
    pub(crate) caller: NodeId,
    pub(crate) rref: RRefId,
    /// The values that are used by calls which wait for it.
    pub(crate) held_by_callers: Vec<RRefId>,
    pub(crate) since: Instant,
}

impl Core {
    /// Tells the instruments how much there is.
    pub(crate) fn measure(&self) {
        let residue = self.look(Node::residue);
        let metrics = &self.metrics;
        metrics.references.set(f64::from(residue.references));
        metrics.contexts.set(f64::from(residue.contexts));
        metrics.open_calls.set(f64::from(residue.calls));
        metrics.blocking_queue.set(self.pool.queued() as f64);
        metrics
            .destructor_queue
            .set(self.user_code.waiting() as f64);
        let links = self.agent().links();
        let queued: usize = links.iter().map(|link| link.queued_bytes).sum();
        metrics.queued_bytes.set(queued as f64);
    }

    /// The program keeps its runtime from running. Says which functions do, if it has lasted for long.
    pub(crate) fn starving(&self, lasted: Duration) {
        let mut sampler = lock(&self.poll_sampler);
        let blocked = sampler.stuck();
        drop(sampler);
        if lasted.is_zero() {
            return;
        }
        let blocked: Vec<_> = blocked
            .into_iter()
            .filter_map(|id| self.registry.by_id(id))
            .map(FunctionEntry::name)
            .collect();
        if blocked.is_empty() {
            tracing::warn!(worker = %self.name, ?lasted,
                "the program keeps its tokio runtime from running, and no remote function is to blame: \
                 move what computes or blocks to `spawn_blocking` or to a thread");
        } else {
            tracing::warn!(worker = %self.name, ?lasted, functions = blocked.join(", "),
                "these functions compute or block where they should await, and keep the tokio runtime from \
                 running: make them plain `fn`s, or move the work to `spawn_blocking`");
        }
    }

    /// What is open with a peer.
    pub(crate) fn traffic(&self, node: NodeId) -> Traffic {
        let state = self.lock();
        let mut traffic = Traffic::default();
        if let Some(peer) = state.peers.get(&node) {
            traffic.parked = peer.flow.parked();
            traffic.served = peer.creations_open as usize;
        }
        let made = state.node.outgoing_records(node);
        traffic.made = made.filter(|(_, call)| call.reply.is_some()).count();
        for (request, call) in state.node.incoming_records(node) {
            traffic.served += 1;
            match call {
                IncomingCall::Running { taken, call } => {
                    let (started, call) = (*taken, call.upgrade());
                    match self.answers.held_back_since(node, request) {
                        None => traffic.running.push(TakenCall { started, call }),
                        Some(since) => traffic.awaiting_room.push(TakenCall {
                            started: StartedCall { since, ..started },
                            call,
                        }),
                    }
                }
                IncomingCall::Waiting(waiter, since) => {
                    traffic
                        .awaiting_value
                        .extend(waiter.awaits(self.me, *since));
                }
            }
        }
        traffic
    }

    /// Since when the worker has been there.
    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    /// How long the worker has been there.
    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }
}

impl ValueWaiter {
    fn awaits(&self, me: NodeId, since: Instant) -> Option<AwaitsValue> {
        let (function, caller, rref, callers) = match self {
            Self::Local(rref, _) => (LOCAL, me, *rref, &[][..]),
            Self::Call(arrived) | Self::Receiver(arrived) => {
                let function = match arrived.called {
                    Some(Callee::Function(entry) | Callee::Foreign(entry)) => entry.name(),
                    Some(Callee::Method(_)) => "a method",
                    None => FETCH,
                };
                (function, arrived.from, arrived.on?, &*arrived.callers)
            }
        };
        Some(AwaitsValue {
            function,
            caller,
            rref,
            held_by_callers: callers::values(callers),
            since,
        })
    }
}
