//! Calls that this worker makes: sent, parked, cancelled, looped back.

use std::mem::take;
use std::panic::Location;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use farref_proto::{
    CallError, CallHead, ContextId, Creation, Fingerprint, MessageId, NodeId, RRefId, RefError,
    Share, Target, Want,
};
use tokio::sync::oneshot;

use super::references::origins;
use super::work::Work;
use crate::agent::{
    CallMessage, Caller, Failure, FunctionRef, Message, Origins, TraceContext, request_of, weigh,
};
use crate::error::{Error, FunctionName, ReferenceError, Result};
use crate::runtime::core::{Core, OutgoingCall, ProtocolState};
use crate::runtime::failure;
use crate::runtime::handle::Handle;
use crate::runtime::registry::{Callee, FunctionEntry};
use crate::runtime::reply::{ReplyReceiver, ReplySender, reply_channel};
use crate::runtime::value_scope::Encoded;
use crate::support::clock::Instant;
use crate::support::deadlines::HasDeadlines;
use crate::support::mutation::mutated;
use crate::tables::flow_control::Parked;

/// A call about to be made.
pub(crate) struct CallSpec {
    /// What to call; none fetches the receiver's value.
    pub(crate) function: Option<FunctionRef>,
    pub(crate) name: FunctionName,
    /// The far value that it is called on.
    pub(crate) receiver: Option<Arc<Handle>>,
    pub(crate) encoded: Encoded,
    pub(crate) deadline: Option<Instant>,
    /// When it is made, and how much time is left then.
    pub(crate) now: Instant,
    pub(crate) remaining: Option<Duration>,
    pub(crate) trace: TraceContext,
    /// Those who wait for it.
    pub(crate) callers: Vec<Caller>,
    /// The context that it is made in.
    pub(crate) context: Option<ContextId>,
}

impl CallSpec {
    /// It is made now, and not when it was to be.
    pub(crate) fn made_at(&mut self, now: Instant) {
        self.now = now;
        self.remaining = self.deadline.map(|at| at.saturating_duration_since(now));
    }

    /// Lets go of the references that it was made with.
    fn let_go(&mut self) {
        if !self.encoded.references.is_empty() {
            drop(take(&mut self.encoded.references));
        }
        self.receiver = None;
    }
}

/// A call that has been made.
#[derive(Debug)]
pub(crate) struct OpenCall {
    pub(crate) peer: NodeId,
    pub(crate) request: MessageId,
    pub(crate) reply: ReplyReceiver,
}

/// A call that has not been made.
pub(crate) enum NotMade {
    /// It cannot be.
    Failed(Error),
    /// Too many wait already (FL-4). It is worth trying again when this is ready.
    NoPlace(oneshot::Receiver<()>),
}

impl From<Error> for NotMade {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Core {
    /// Makes a call whose result, or value, comes back. What it sends is taken out of `call`; if there is no place for
    /// it, nothing is.
    pub(crate) fn begin(
        self: &Arc<Self>,
        to: NodeId,
        call: &mut CallSpec,
    ) -> std::result::Result<OpenCall, NotMade> {
        self.check_member()?;
        self.check_size(to, call)?;
        let want = match &call.receiver {
            Some(receiver) => {
                let held = receiver.held()?;
                Want::Value(held.rref, held.fingerprint)
            }
            None => Want::Answer,
        };
        let carried = ids(&call.encoded.references)?;
        let bytes = call.encoded.payload.len() as u64;
        let mut state = self.lock();
        let leaves = self.leaves_at_once(&state, to, bytes);
        if !leaves && !self.has_place(&state, to, call) {
            // Once it is out of the group nobody tells.
            self.check_member()?;
            let (told, gave_up) = state.peer(to).flow.wait_for_room();
            drop(state);
            drop(gave_up);
            return Err(NotMade::NoPlace(told));
        }
        let origins = origins(&state.node, &carried);
        let (sender, reply) = reply_channel();
        let record = OutgoingCall {
            function: call.function.map_or(0, |function| function.id),
            bytes: weigh(bytes),
            deadline: call.deadline,
            reply: Some(sender),
        };
        let ProtocolState { node, out, .. } = &mut *state;
        let head = match node.call_with_record(to, want, &carried, call.context, record, out) {
            Ok(head) => head,
            Err(error) => {
                self.finish_input(state, Work::new());
                let error = self.cannot_call(to, call.name.clone(), call.receiver.is_some(), error);
                return Err(error.into());
            }
        };
        if let Err(error) = self.check_wire(to, &head, call) {
            return Err(self.take_back(state, to, &head, error).into());
        }
        let request = request_of(&head).unwrap_or(MessageId(0));
        if leaves {
            self.metrics.calls.add(1);
            self.metrics.shared.add(head.carried.len() as u64);
            state.peer(to).flow.left(bytes);
            let message = Message::Call(CallMessage {
                head,
                function: call.function,
                remaining: call.remaining,
                trace: call.trace,
                callers: take(&mut call.callers),
                origins,
                arguments: take(&mut call.encoded.payload),
            });
            let needs_flush = self.agent().enqueue_needs_flush(to, message);
            self.finish_message(state, to, needs_flush);
        } else {
            let mut work = Work::new();
            self.submit(&mut state, to, head, origins, call, &mut work);
            self.finish_input(state, work);
        }
        // The forks are made: the handles may go, but not under the lock.
        call.let_go();
        if let Some(deadline) = call.deadline {
            self.clock.note(deadline);
        }
        Ok(OpenCall {
            peer: to,
            request,
            reply,
        })
    }

    /// Whether a call with so many bytes of arguments leaves as soon as it is made: it goes to another worker, and need
    /// not be parked.
    fn leaves_at_once(&self, state: &ProtocolState, to: NodeId, bytes: u64) -> bool {
        let peer = state.peers.get(&to);
        to != self.me && peer.is_some_and(|peer| peer.flow.leaves_at_once(bytes))
    }

    /// Makes a call whose result stays with the callee, and a handle on it. `called` is known if it is not named as another
    /// language does.
    pub(crate) fn create(
        self: &Arc<Self>,
        to: NodeId,
        mut call: CallSpec,
        called: Option<&'static FunctionEntry>,
        output: Fingerprint,
        location: &'static Location<'static>,
    ) -> Result<Arc<Handle>> {
        self.check_member()?;
        if to == self.me {
            let found = match (called, &call.function) {
                (Some(entry), _) => Ok(Callee::Function(entry)),
                (None, Some(function)) => self.registry.find(function),
                (None, None) => Err(Failure::NoSuchFunction(None)),
            };
            let called =
                found.map_err(|failure| failure::to_error(self, to, call.name.clone(), failure))?;
            return self.create_here(call, called, output, location);
        }
        self.check_size(to, &call)?;
        let on_value = call.receiver.is_some();
        if let Some(receiver) = call.receiver.take() {
            call.encoded.references.insert(0, receiver);
            if let Some(function) = &mut call.function {
                function.on_first_reference = true;
            }
        }
        let carried = ids(&call.encoded.references)?;
        let name = call.name.clone();
        let hold = self.holds.made(location, call.now);
        let mut state = self.lock();
        if !self.has_place(&state, to, &call) {
            return Err(self.too_many_calls(to, name));
        }
        let origins = origins(&state.node, &carried);
        let ProtocolState { node, out, .. } = &mut *state;
        let head = match node.call(to, Want::Reference(output), &carried, call.context, out) {
            Ok(head) => head,
            Err(error) => {
                self.finish_input(state, Work::new());
                return Err(self.cannot_call(to, name, on_value, error));
            }
        };
        if let Err(error) = self.check_wire(to, &head, &call) {
            return Err(self.take_back(state, to, &head, error));
        }
        let Target::Stay(Creation {
            share: Share { rref, .. },
            ..
        }) = head.target
        else {
            return Err(ReferenceError::Hollow.into());
        };
        state.node.keep_hold(rref, hold);
        let mut work = Work::new();
        self.submit(&mut state, to, head, origins, &mut call, &mut work);
        self.finish_input(state, work);
        call.let_go();
        self.metrics.created.add(1);
        Ok(Handle::counted(self, rref, to, output))
    }

    /// The caller no longer wants the answer. Says whether there was still one to come.
    pub(crate) fn cancel(self: &Arc<Self>, to: NodeId, request: MessageId) -> bool {
        let mut state = self.lock();
        let mut work = Work::new();
        let waiter = self.withdraw(&mut state, to, request, &mut work);
        let was_open = waiter.is_some();
        if let Some(waiter) = waiter {
            work.woken.push(Box::new(|_| drop(waiter)));
        }
        self.finish_input(state, work);
        was_open
    }

    /// Takes back a call that nobody wants any more, or tells the peer so. Gives back who waited; a call that has
    /// been answered, or whose peer is gone, has nobody left.
    fn withdraw(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        to: NodeId,
        request: MessageId,
        work: &mut Work,
    ) -> Option<ReplySender> {
        let open = state.node.outgoing_record(to, request);
        let waiter = open?.reply.take()?;
        let peer = state.peers.get_mut(&to).filter(|_| !mutated!(KeepParked));
        if let Some(parked) = peer.and_then(|peer| peer.flow.withdraw(request)) {
            // It never left: as if it had not been made.
            let ProtocolState { node, out, .. } = state;
            node.undo_call(to, &parked.head, out);
            work.dropped.push(Box::new(parked));
            self.recall(state, to, work);
        } else if state.node.cancel(to, request) {
            // Its answer still comes, and only then it counts as closed.
            if to == self.me {
                work.loopback.push(Message::Cancel(request));
            } else {
                self.send(to, Message::Cancel(request), work);
            }
        }
        Some(waiter)
    }

    /// Sends a call, or parks it until there is room. What it holds on to is left to be [let go](CallSpec::let_go) of.
    fn submit(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        to: NodeId,
        head: CallHead,
        origins: Origins,
        call: &mut CallSpec,
        work: &mut Work,
    ) {
        self.metrics.calls.add(1);
        self.metrics.shared.add(head.carried.len() as u64);
        let mut message = CallMessage {
            head,
            function: call.function,
            remaining: None,
            trace: call.trace,
            callers: take(&mut call.callers),
            origins,
            arguments: take(&mut call.encoded.payload),
        };
        if to == self.me {
            message.remaining = call.remaining;
            work.loopback.push(Message::Call(message));
        } else {
            let parked = Parked {
                message,
                deadline: call.deadline,
            };
            let leaving = state.peer(to).flow.offer(parked, call.now);
            if let Some(message) = leaving {
                self.send(to, message, work);
            }
        }
    }

    /// Whether the wire takes a call, now that it is known to the last byte.
    fn check_wire(&self, to: NodeId, head: &CallHead, call: &CallSpec) -> Result<()> {
        if to == self.me {
            return Ok(());
        }
        let checked = self.agent().check_call(head, &call.encoded.payload);
        checked.map_err(|reason| Error::Codec {
            what: "the arguments",
            function: call.name.clone(),
            action: "sent",
            reason,
        })
    }

    /// Undoes a call that has not left and never will: as if it had not been made (R5).
    fn take_back(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, ProtocolState>,
        to: NodeId,
        head: &CallHead,
        error: Error,
    ) -> Error {
        let ProtocolState { node, out, .. } = &mut *state;
        node.undo_call(to, head, out);
        self.finish_input(state, Work::new());
        error
    }

    /// What the wire would not take is refused before anything is set up for it (R5).
    fn check_size(&self, to: NodeId, call: &CallSpec) -> Result<()> {
        if to == self.me {
            return Ok(());
        }
        let Encoded {
            payload,
            references,
            ..
        } = &call.encoded;
        let checked = self.settings.message.check(payload, references.len() + 1);
        checked.map_err(|reason| Error::Codec {
            what: "the arguments",
            function: call.name.clone(),
            action: "sent",
            reason,
        })
    }

    /// Why a call was not even sent. `on_value`: it is on a far value, which its owner took along.
    pub(super) fn cannot_call(
        &self,
        to: NodeId,
        function: FunctionName,
        on_value: bool,
        error: CallError,
    ) -> Error {
        match error {
            CallError::NotMember { .. } => self.not_member(),
            CallError::PeerGone { node } if on_value => Error::OwnerLost {
                owner: self.name_of(node),
            },
            CallError::Reference(RefError::ReceiverLost { .. }) if on_value => Error::OwnerLost {
                owner: self.name_of(to),
            },
            CallError::PeerGone { node } => Error::PeerLost {
                peer: self.name_of(node),
                function,
                cause: self.rejections.of(node),
            },
            CallError::Reference(RefError::ReceiverLost { .. }) => Error::PeerLost {
                peer: self.name_of(to),
                function,
                cause: self.rejections.of(to),
            },
            CallError::Reference(error) => self.explain(error),
            CallError::Context(error) => self.explain_context(error),
            other => other.into(),
        }
    }
}

impl HasDeadlines for Core {
    fn end_late_calls(self: &Arc<Self>, now: Instant) -> Option<Instant> {
        let mut state = self.lock();
        let mut late = Vec::new();
        let mut next: Option<Instant> = None;
        for peer in state.node.calls_with() {
            for (request, call) in state.node.outgoing_records(peer) {
                match call.deadline {
                    Some(_) if call.reply.is_none() => {}
                    Some(at) if at <= now => late.push((peer, request)),
                    Some(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    None => {}
                }
            }
        }
        let mut work = Work::new();
        for (peer, request) in late {
            if let Some(waiter) = self.withdraw(&mut state, peer, request, &mut work) {
                // The one who waits knows what it called, and what the limit was.
                let error = Error::Timeout {
                    peer: self.name_of(peer),
                    function: FunctionName::UNKNOWN,
                    limit: Duration::ZERO,
                };
                work.replies.push((waiter, Err(error)));
            }
        }
        self.finish_input(state, work);
        next
    }
}

fn ids(references: &[Arc<Handle>]) -> Result<Vec<RRefId>> {
    references
        .iter()
        .map(|handle| handle.held().map(|held| held.rref))
        .collect()
}
