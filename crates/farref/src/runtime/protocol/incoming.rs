//! What peers say: control messages, calls, answers, cancellations, credit.

use std::iter;
use std::mem::take;
use std::sync::Arc;
use std::time::Duration;

use farref_proto::{
    Arrival, Control, Departure, MessageId, NodeId, PeerMisbehaved, Phase, Standing, Status, Target,
};

use super::answering::drop_after_unlock;
use super::work::Work;
use crate::agent::{AnswerMessage, CallMessage, Failure, Inbound, Message, request_of};
use crate::codec::Payload;
use crate::error::{Error, FunctionName};
use crate::runtime::core::{
    Core, IncomingCall, Peers, ProtocolState, StartedCall, ValueWaiter, WorkerNode, WorkerStage,
};
use crate::runtime::job::{ArrivedCall, Destination, Job};
use crate::runtime::registry::{Callee, FunctionEntry};
use crate::runtime::{FETCH, NEXT_ITEMS, failure};
use crate::support::clock::Instant;
use crate::support::lock::lock;
use crate::support::mutation::mutated;
use crate::support::user_code;

/// So many messages are taken in under one lock: others have to wait for it meanwhile.
const MESSAGES_AT_ONCE: usize = 64;

/// Whoever brings something in here reads from a connection or keeps time, and does not wait for code of
/// the program (UC-1).
impl Inbound for Core {
    fn receive(self: Arc<Self>, from: NodeId, mut message: Message) -> Result<(), PeerMisbehaved> {
        user_code::forbid_during(|| self.take_in(from, &mut iter::once(&mut message)))
    }

    fn receive_all(
        self: Arc<Self>,
        from: NodeId,
        messages: &mut dyn Iterator<Item = &mut Message>,
    ) -> Result<(), PeerMisbehaved> {
        user_code::forbid_during(|| self.take_in(from, messages))
    }

    fn owes_answers(&self, peer: NodeId) -> bool {
        lock(&self.state).node.open_incoming(peer) > 0
    }

    fn suspect(self: Arc<Self>, node: NodeId, silent_for: Duration) {
        let (worker, peer) = (&self.name, self.name_of(node));
        let stage = *self.stage.borrow();
        match stage {
            // Not all of those whom the store lists are still there.
            WorkerStage::Joining => tracing::debug!(%worker, %peer, "a sponsor cannot be reached"),
            // It may have left, and the news be on its way. If it has died, that is a warning.
            WorkerStage::Member => {
                tracing::info!(%worker, %peer, ?silent_for, "a worker cannot be reached")
            }
            // So has the other.
            WorkerStage::ShutDown | WorkerStage::Departed | WorkerStage::Evicted => return,
        }
        self.unreachable.send_modify(|nodes| {
            nodes.insert(node);
        });
        let is_unwelcome =
            stage == WorkerStage::Member && self.unwelcome.refused_by(node, &self.rejections);
        user_code::forbid_during(|| {
            self.input(|protocol, out| match is_unwelcome {
                // UW-1
                true => protocol.resign(node, out),
                false => protocol.suspect(node, out),
            });
        });
    }

    fn misbehaved(self: Arc<Self>, node: NodeId, kind: &'static str, reason: String) {
        self.metrics.misbehaved(kind);
        let (worker, peer) = (&self.name, self.name_of(node));
        let is_live = self.look(|protocol| protocol.membership().view().is_live(node));
        if is_live {
            tracing::error!(%worker, %peer, kind, reason, "a worker misbehaves and is cut off");
        } else {
            // Whoever has the token can be as many as it likes.
            let more = lock(&self.warnings).note((kind, None), Instant::now());
            if let Some(more) = more {
                tracing::warn!(%worker, %peer, kind, reason, more, "somebody who is no member misbehaves and is cut off");
            }
        }
        user_code::forbid_during(|| self.input(|protocol, out| protocol.suspect(node, out)));
    }

    fn refused(self: Arc<Self>, by: NodeId) {
        let (worker, peer) = (&self.name, self.name_of(by));
        let stage = *self.stage.borrow();
        match stage {
            WorkerStage::Joining | WorkerStage::Member if self.phase() != Phase::Leaving => {
                tracing::warn!(%worker, %peer, "peer counts this worker as gone");
            }
            WorkerStage::Joining | WorkerStage::Member => {
                tracing::debug!(%worker, %peer, "peer knows that this worker leaves");
            }
            WorkerStage::ShutDown | WorkerStage::Departed | WorkerStage::Evicted => return,
        }
        user_code::forbid_during(|| self.input(|protocol, out| protocol.refused(by, out)));
    }

    fn admitted(self: Arc<Self>, node: NodeId, name: &str) {
        self.names.name(node, name);
        user_code::forbid_during(|| self.input(|protocol, out| protocol.admit(node, out)));
    }

    fn dismissed(self: Arc<Self>, node: NodeId, departure: Departure) {
        user_code::forbid_during(|| {
            self.input(|protocol, out| protocol.dismiss(node, departure, out));
        });
    }

    fn accepts(self: Arc<Self>, node: NodeId, max_calls: u32) {
        user_code::forbid_during(|| self.met(node, max_calls));
    }

    fn max_calls(&self) -> u32 {
        self.settings.max_calls
    }

    fn is_gone(&self, node: NodeId) -> bool {
        self.look(|protocol| protocol.membership().view().is_gone(node))
    }

    fn has_left(&self, node: NodeId) -> bool {
        let left = Standing::of(node, Status::Left);
        self.look(|protocol| protocol.membership().view().standing(node.worker) == Some(left))
    }

    fn is_done_with(&self, node: NodeId) -> bool {
        let stage = *self.stage.borrow();
        stage > WorkerStage::Member
            || self.look(|protocol| {
                let membership = protocol.membership();
                membership.phase() == Phase::Leaving && !membership.awaited().contains(&node)
            })
    }
}

impl Core {
    fn phase(&self) -> Phase {
        self.look(|protocol| protocol.membership().phase())
    }

    /// Takes in messages of a peer, or of this worker to itself: many under one lock, and what follows from
    /// them is carried out together.
    pub(super) fn take_in(
        self: &Arc<Self>,
        from: NodeId,
        messages: &mut dyn Iterator<Item = &mut Message>,
    ) -> Result<(), PeerMisbehaved> {
        let mut next = messages.next();
        while next.is_some() {
            // Before the lock, so that a panic drops it after the lock (PR-2).
            let mut work = Work::new();
            let mut state = self.lock();
            let mut taken = 0;
            let mut outcome = Ok(());
            while taken < MESSAGES_AT_ONCE
                && outcome.is_ok()
                && let Some(message) = next
            {
                outcome = self.take_in_one(&mut state, from, message, &mut work);
                // What a message brings about is there before the next is looked at.
                self.handle_events(&mut state, &mut work);
                next = messages.next();
                taken += 1;
            }
            self.finish_input(state, work);
            outcome?;
        }
        Ok(())
    }

    fn take_in_one(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        from: NodeId,
        message: &mut Message,
        work: &mut Work,
    ) -> Result<(), PeerMisbehaved> {
        match message {
            Message::Call(call) => self.receive_call(state, from, call, work),
            Message::Answer(answer) => self.receive_answer(state, from, answer, work),
            Message::Control(_) => {
                let Message::Control(control) = message.take() else {
                    return Ok(());
                };
                // The first to ask for a shutdown starts the leader's clock, which `run_clock` keeps.
                if matches!(control, Control::Report { round: 0, .. }) {
                    work.woken
                        .push(Box::new(|core| core.wake_clock.notify_one()));
                }
                let ProtocolState { node, out, .. } = state;
                node.handle(from, control, out)
            }
            Message::Cancel(request) => {
                let ProtocolState { node, out, .. } = state;
                node.receive_cancel(from, *request, out);
                Ok(())
            }
            Message::Credit { calls, bytes } => {
                if let Some(peer) = state.peers.get_mut(&from) {
                    peer.flow.release(*calls, *bytes);
                    self.unpark(state, from, work);
                }
                Ok(())
            }
        }
    }

    fn receive_call(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        from: NodeId,
        message: &mut CallMessage,
        work: &mut Work,
    ) -> Result<(), PeerMisbehaved> {
        if let Target::Answer(request) = message.head.target
            && message.head.context.is_none()
            && message.head.carried.is_empty()
            && let Some(function) = message.function
            && !function.on_first_reference
            && let Ok(callee) = self.registry.find(&function)
            && let Some(entry) = callee.entry()
            && !entry.needs_receiver()
            && (!state.refuses || from == self.me)
        {
            let called = (entry, callee.is_foreign(&message.arguments));
            return self.receive_plain_call(state, from, request, called, message, work);
        }
        let CallMessage {
            head,
            function,
            remaining,
            trace,
            callers,
            origins,
            arguments,
        } = message;
        let (function, remaining) = (*function, *remaining);
        let entry = function.map(|function| self.registry.find(&function));
        let on_first = function.is_some_and(|function| function.on_first_reference);
        let bytes = arguments.len() as u64;
        let ProtocolState {
            node, out, peers, ..
        } = state;
        let arrival = self
            .check_window(node, peers, from)
            .and_then(|()| node.receive_call(from, head, out));
        if let Err(_) | Ok(Arrival::Ignored) = arrival {
            // Those of a call of this worker to itself are the program's.
            work.dropped.push(Box::new(take(arguments)));
            return arrival.map(drop);
        }
        let arrival = arrival?;
        let target = match head.target {
            Target::Answer(request) | Target::Fetch(request, ..) => Destination::Answer(request),
            Target::Stay(creation) => {
                state.peer(from).creations_open += 1;
                Destination::Stay {
                    rref: creation.share.rref,
                    context: head.context,
                    bytes,
                    function: function.map_or(0, |function| function.id),
                    limit: remaining,
                }
            }
        };
        let mut arrived = ArrivedCall {
            from,
            target,
            called: None,
            foreign: false,
            on: match head.target {
                Target::Fetch(_, rref, _) => Some(rref),
                _ => None,
            },
            arguments: take(arguments),
            references: Vec::new(),
            deadline: remaining.and_then(|left| work.now().checked_add(left)),
            trace: *trace,
            callers: take(callers),
            context: head.context,
        };
        if let Arrival::Failed(error) = arrival {
            // What came with it has been let go, and its context is done with.
            let failure = failure::of_protocol(self, error);
            self.reject(state, arrived, failure, work);
            return Ok(());
        }
        let receiver = match &entry {
            Some(Ok(Callee::Function(entry) | Callee::Foreign(entry))) => entry.name(),
            _ => "a function that is not known here",
        };
        arrived.references = self.receive_references(
            &mut state.node,
            &head.carried,
            origins,
            (from, receiver, false),
            work,
        );
        let is_fetch = matches!(head.target, Target::Fetch(..));
        // Streams that are being read come to their end before this worker goes.
        let is_awaited = receiver == NEXT_ITEMS || from == self.me;
        let checked = match state.refuses && !is_awaited {
            true => Err(Failure::ShuttingDown),
            false => checked(entry, is_fetch, on_first),
        };
        match checked {
            Err(failure) => {
                if is_fetch && let Arrival::Waiting = arrival {
                    // It is answered now; the value must not wake it.
                    let ProtocolState { node, out, .. } = state;
                    if let Some(request) = request_of(head) {
                        node.receive_cancel(from, request, out);
                    }
                }
                self.reject(state, arrived, failure, work);
            }
            Ok(entry) => {
                arrived.called = entry;
                arrived.foreign = entry.is_some_and(|callee| callee.is_foreign(&arrived.arguments));
                match arrival {
                    Arrival::Value(value) => {
                        self.admit(state, arrived, Some(value), work);
                    }
                    Arrival::Waiting => {
                        if let Some(request) = request_of(head) {
                            let waiter = ValueWaiter::Call(arrived).detached();
                            let record = IncomingCall::Waiting(Box::new(waiter), work.now());
                            state.node.keep_incoming(from, request, record);
                        }
                    }
                    _ if on_first => self.find_receiver(state, arrived, work),
                    _ => self.admit(state, arrived, None, work),
                }
            }
        }
        Ok(())
    }

    /// The same for a call that carries nothing but its arguments, of a function that is on no value: it can begin.
    fn receive_plain_call(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        from: NodeId,
        request: MessageId,
        (entry, foreign): (&'static FunctionEntry, bool),
        message: &mut CallMessage,
        work: &mut Work,
    ) -> Result<(), PeerMisbehaved> {
        let ProtocolState {
            node, out, peers, ..
        } = state;
        let began = work.now();
        let job = Job::plain(self, from, request, (entry, foreign), message, began);
        let running = IncomingCall::Running {
            call: job.cancellable(),
            taken: StartedCall {
                function: entry.name(),
                since: began,
                on: None,
            },
        };
        let arrival = self
            .check_window(node, peers, from)
            .and_then(|()| node.receive_call_with_record(from, &message.head, running, out));
        match arrival {
            Ok(Arrival::Run) => {
                work.jobs.push(job);
                Ok(())
            }
            Err(_) if mutated!(RunTwice) => {
                work.jobs.push(job);
                Ok(())
            }
            // Nothing that it carries is waited for, so it runs, or is none (SV-1).
            // Its arguments are the program's, if it is a call of this worker to itself.
            other => {
                debug_assert!(
                    matches!(other, Err(_) | Ok(Arrival::Ignored)),
                    "nobody will answer it"
                );
                work.dropped.push(Box::new(job));
                other.map(drop)
            }
        }
    }

    /// The first reference of a call whose result stays is what it is called on.
    fn find_receiver(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        mut arrived: ArrivedCall,
        work: &mut Work,
    ) {
        let receiver = if arrived.references.is_empty() {
            None
        } else {
            Some(arrived.references.remove(0))
        };
        let held = receiver.as_deref().and_then(|handle| handle.held().ok());
        let Some(held) = held else {
            let failure = Failure::BadArguments("the call names no receiver".to_owned());
            return self.reject(state, arrived, failure, work);
        };
        let (rref, fingerprint) = (held.rref, held.fingerprint);
        arrived.on = Some(rref);
        self.fetch_here(
            state,
            rref,
            fingerprint,
            ValueWaiter::Receiver(arrived),
            work,
        );
        // The fetch keeps the value from here on.
        work.handles.extend(receiver);
    }

    /// A correct peer keeps to what it was told it may send (FL-1).
    fn check_window(
        &self,
        node: &WorkerNode,
        peers: &Peers,
        from: NodeId,
    ) -> Result<(), PeerMisbehaved> {
        let limit = self.settings.max_calls;
        let Some(peer) = peers.get(&from).filter(|_| from != self.me) else {
            return Ok(());
        };
        let open = node.open_incoming(from) + peer.creations_open as usize;
        // Its count goes down when it hears of an answer, ours when we send it: allow for the
        // difference, which is never more than the limit itself.
        if open > 2 * limit as usize && self.agent().has_windows() {
            return Err(PeerMisbehaved::TooManyCalls { limit });
        }
        Ok(())
    }

    fn receive_answer(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        from: NodeId,
        answer: &mut AnswerMessage,
        work: &mut Work,
    ) -> Result<(), PeerMisbehaved> {
        let AnswerMessage { head, origins, .. } = answer;
        let outcome = std::mem::replace(&mut answer.outcome, Ok(Payload::default()));
        let ProtocolState { node, out, .. } = state;
        let answered = match node.receive_answer(from, head, out) {
            Ok(answered) => answered,
            Err(error) => {
                drop_after_unlock(outcome, work);
                return Err(error);
            }
        };
        // Whether somebody waits for the room that there is now.
        let mut is_awaited = true;
        let (function, waiter) = match answered.record {
            Some(call) => {
                if let Some(peer) = state.peers.get_mut(&from) {
                    peer.flow.release(1, call.bytes);
                    is_awaited = peer.flow.is_awaited();
                }
                (call.function, call.reply)
            }
            None => (0, None),
        };
        if answered.wanted {
            let references = match head.carried.is_empty() {
                true => Vec::new(),
                false => {
                    let function = self.registry.name_of(function).unwrap_or(FETCH);
                    let source = (from, function, true);
                    self.receive_references(&mut state.node, &head.carried, origins, source, work)
                }
            };
            let reply = match outcome {
                Ok(payload) => Ok((payload, references)),
                Err(failure) => {
                    work.handles.extend(references);
                    Err(self.failed(from, failure))
                }
            };
            match waiter {
                Some(waiter) => work.replies.push((waiter, reply)),
                None => work.dropped.push(Box::new(reply)),
            }
        } else {
            drop_after_unlock(outcome, work);
        }
        if is_awaited {
            self.unpark(state, from, work);
        }
        Ok(())
    }

    /// What a failure on another worker means here. The caller fills in what it called.
    fn failed(&self, worker: NodeId, failure: Failure) -> Error {
        failure::to_error(self, worker, FunctionName::UNKNOWN, failure)
    }
}

/// Whether the function can be called this way.
fn checked(
    called: Option<Result<Callee, Failure>>,
    is_fetch: bool,
    on_first: bool,
) -> Result<Option<Callee>, Failure> {
    let has_receiver = is_fetch || on_first;
    let called = called.transpose()?;
    let entry = match called.map(Callee::entry) {
        Some(Some(entry)) => entry,
        // Which one it is shows when the value is there.
        Some(None) if is_fetch || (on_first && !called.is_some_and(Callee::is_fetch)) => {
            return Ok(called);
        }
        None if is_fetch => return Ok(None),
        _ => {
            return Err(Failure::BadArguments(
                "the call names no function".to_owned(),
            ));
        }
    };
    match entry {
        entry if entry.needs_receiver() == has_receiver => Ok(called),
        entry if has_receiver => Err(Failure::BadArguments(format!(
            "`{}` is not a method",
            entry.name()
        ))),
        entry => Err(Failure::BadArguments(format!(
            "`{}` is a method and needs a value to be called on",
            entry.name()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::registry::FETCHED;

    /// SV-1: a copy goes back to who asks. One that was to stay would have nobody to go to.
    #[test]
    fn a_value_that_is_copied_does_not_stay() {
        let fetch = || Some(Ok(Callee::Method(FETCHED)));
        assert!(matches!(checked(fetch(), true, false), Ok(Some(_))));
        assert!(matches!(
            checked(fetch(), false, true),
            Err(Failure::BadArguments(_))
        ));
        let method = || Some(Ok(Callee::Method(1)));
        assert!(matches!(checked(method(), false, true), Ok(Some(_))));
        assert!(checked(method(), false, false).is_err());
    }
}
