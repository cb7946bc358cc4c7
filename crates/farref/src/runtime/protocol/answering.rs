//! Answers, and values that stay: how calls that arrived come to an end (PR-3).

use std::sync::Arc;

use farref_proto::{MessageId, NodeId, RRefId};

use super::references::origins;
use super::work::Work;
use crate::agent::{AnswerMessage, Failure, Message, Origins, weigh};
use crate::codec::Payload;
use crate::runtime::core::{Core, PeerState, ProtocolState};
use crate::runtime::handle::Handle;
use crate::runtime::job::{ArrivedCall, Destination};
use crate::runtime::value_scope::Encoded;
use crate::support::user_code::ENOUGH;
use crate::values::Value;

impl Core {
    /// Answers a call.
    pub(crate) fn respond(
        self: &Arc<Self>,
        to: NodeId,
        request: MessageId,
        outcome: Result<Encoded, Failure>,
    ) {
        match outcome {
            Ok(encoded) if self.gives_too_much(to, &encoded) => {
                let core = Arc::downgrade(self);
                self.user_code.defer(move || {
                    if let Some(core) = core.upgrade() {
                        core.respond_now(to, request, Ok(encoded));
                    }
                });
            }
            outcome => self.respond_now(to, request, outcome),
        }
    }

    /// UC-3: whether an answer gives a peer references to values that are here, while more wait to be dropped
    /// than there should.
    fn gives_too_much(&self, to: NodeId, answer: &Encoded) -> bool {
        let is_here = |handle: &Arc<Handle>| {
            let held = handle.held();
            held.is_ok_and(|held| held.owner == self.me)
        };
        to != self.me && answer.references.iter().any(is_here) && self.user_code.waiting() > ENOUGH
    }

    fn respond_now(
        self: &Arc<Self>,
        to: NodeId,
        request: MessageId,
        outcome: Result<Encoded, Failure>,
    ) {
        let (outcome, references) = match outcome {
            Ok(encoded) => (Ok(encoded.payload), encoded.references),
            Err(failure) => (Err(failure), Vec::new()),
        };
        if references.is_empty() && to != self.me {
            return self.respond_plainly(to, request, outcome);
        }
        let carried: Vec<RRefId> = references
            .iter()
            .filter_map(|handle| Some(handle.held().ok()?.rref))
            .collect();
        let mut state = self.lock();
        let origins = origins(&state.node, &carried);
        let carried = (&carried[..], origins);
        let mut work = Work::new();
        self.answer(&mut state, to, request, outcome, carried, &mut work);
        self.finish_input(state, work);
        drop(references);
    }

    /// The same for an answer that carries no references, to another worker: nearly all are such.
    fn respond_plainly(
        self: &Arc<Self>,
        to: NodeId,
        request: MessageId,
        outcome: Result<Payload, Failure>,
    ) {
        let mut state = self.lock();
        let ProtocolState { node, out, .. } = &mut *state;
        // Only references can be at fault, and without a head the asker is gone.
        let Ok(Some(head)) = node.answer(to, request, &[], out) else {
            let mut work = Work::new();
            self.nobody_asks(&state, to, outcome, &mut work);
            return self.finish_input(state, work);
        };
        let message = Message::Answer(AnswerMessage {
            head,
            origins: Origins::default(),
            outcome,
        });
        let needs_flush = self.agent().enqueue_needs_flush(to, message);
        self.finish_message(state, to, needs_flush);
    }

    /// An answer has nobody to go to.
    fn nobody_asks(
        &self,
        state: &ProtocolState,
        to: NodeId,
        outcome: Result<Payload, Failure>,
        work: &mut Work,
    ) {
        drop_after_unlock(outcome, work);
        if state.node.membership().view().is_gone(to) {
            // The answer may have asked for a budget anew.
            work.woken
                .push(Box::new(move |core| core.answers.forget(to)));
        }
    }

    fn answer(
        &self,
        state: &mut ProtocolState,
        to: NodeId,
        request: MessageId,
        mut outcome: Result<Payload, Failure>,
        (carried, mut origins): (&[RRefId], Origins),
        work: &mut Work,
    ) {
        let ProtocolState { node, out, .. } = &mut *state;
        let head = match node.answer(to, request, carried, out) {
            Ok(head) => head,
            Err(error) => {
                // A reference in the result cannot be handed on; the caller learns that instead.
                let unsent = std::mem::replace(&mut outcome, Err(Failure::Protocol(error.into())));
                drop_after_unlock(unsent, work);
                origins = Origins::default();
                node.answer(to, request, &[], out).unwrap_or(None)
            }
        };
        // Without a head the asker is gone and there is nobody to tell.
        if let Some(head) = head {
            self.metrics.shared.add(head.carried.len() as u64);
            let message = Message::Answer(AnswerMessage {
                head,
                origins,
                outcome,
            });
            if to == self.me {
                work.loopback.push(message);
            } else {
                self.send(to, message, work);
            }
        } else {
            self.nobody_asks(state, to, outcome, work);
        }
    }

    /// The value of a call whose result stays is there, be it good or bad.
    pub(crate) fn keep(self: &Arc<Self>, from: NodeId, target: &Destination, value: Value) {
        let mut state = self.lock();
        let mut work = Work::new();
        self.fulfil(&mut state, from, target, value, &mut work);
        self.finish_input(state, work);
    }

    fn fulfil(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        from: NodeId,
        target: &Destination,
        value: Value,
        work: &mut Work,
    ) {
        let Destination::Stay {
            rref,
            context,
            bytes,
            ..
        } = *target
        else {
            return;
        };
        // The table keeps the value or refuses it; whatever is left of it goes after the lock.
        work.freed.push(value.clone());
        let ProtocolState { node, out, .. } = &mut *state;
        node.finish_creation(from, rref, context, value, out);
        if from == self.me {
            return;
        }
        let Some(peer) = state.peers.get_mut(&from) else {
            return;
        };
        peer.creations_open = peer.creations_open.saturating_sub(1);
        peer.creations_done += 1;
        peer.bytes_done += weigh(bytes);
        // In lots, so that a quick constructor costs no message; early enough that nobody stalls.
        let is_due =
            peer.creations_done >= self.settings.credit_lot() || peer.bytes_done >= CREDIT_BYTES;
        if !is_due || peer.credit_deferred {
            return;
        }
        if self.user_code.waiting() > ENOUGH {
            peer.credit_deferred = true;
            let core = Arc::downgrade(self);
            let give = move || {
                if let Some(core) = core.upgrade() {
                    core.give_credit(from);
                }
            };
            work.woken.push(Box::new(|core| core.user_code.defer(give)));
            return;
        }
        self.credit(from, peer, work);
    }

    /// What the program had to let go of first is dropped (UC-3).
    fn give_credit(self: &Arc<Self>, to: NodeId) {
        let mut state = self.lock();
        let mut work = Work::new();
        if let Some(peer) = state.peers.get_mut(&to) {
            peer.credit_deferred = false;
            self.credit(to, peer, &mut work);
        }
        self.finish_input(state, work);
    }

    /// Tells a peer that calls whose results stay are done.
    fn credit(&self, to: NodeId, peer: &mut PeerState, work: &mut Work) {
        let calls = std::mem::take(&mut peer.creations_done);
        let bytes = std::mem::take(&mut peer.bytes_done);
        self.send(to, Message::Credit { calls, bytes }, work);
    }

    /// Ends a call that cannot even be started.
    pub(super) fn reject(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        arrived: ArrivedCall,
        failure: Failure,
        work: &mut Work,
    ) {
        match arrived.target {
            Destination::Answer(request) => {
                let nothing = (&[][..], Origins::default());
                self.answer(state, arrived.from, request, Err(failure), nothing, work);
            }
            Destination::Stay { .. } => {
                let value = arrived.target.unmade(self, failure);
                self.fulfil(state, arrived.from, &arrived.target, value, work);
            }
        }
        work.dropped.push(Box::new(arrived));
    }
}

/// Drops an answer that nobody gets, when the lock is given back: its buffers may be the program's (PR-2).
pub(super) fn drop_after_unlock(outcome: Result<Payload, Failure>, work: &mut Work) {
    if let Ok(payload) = outcome
        && payload.has_programs_buffers()
    {
        work.dropped.push(Box::new(payload));
    }
}

/// Bytes after which credit is given back without waiting for a whole lot of calls.
const CREDIT_BYTES: u64 = 16 << 20;
