//! Calls that this worker makes: sent, parked, cancelled, looped back.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use farref_proto::{
    Arrival, CallError, CallHead, ContextError, ContextId, Fingerprint, MessageId, NodeId, RRefId,
    RefError, Target, Want,
};
use tokio::sync::oneshot;

use super::flow::{Parked, Recalled, weigh};
use super::work::{Reply, Work};
use super::{Arrived, Core, Held, State, Waiter};
use crate::agent::{CallMessage, Caller, FunctionRef, Message, Origins, TraceContext};
use crate::runtime::carrying::Encoded;
use crate::error::{Error, FunctionName, Result};
use crate::runtime::handle::{Handle, Made};
use crate::runtime::registry::{Called, Entry};
use crate::runtime::serve;
use crate::values::Value;

/// A call about to be made.
pub(crate) struct Request {
    /// What to call; none fetches the receiver's value.
    pub(crate) function: Option<FunctionRef>,
    pub(crate) name: FunctionName,
    /// The far value that it is called on.
    pub(crate) receiver: Option<Arc<Handle>>,
    pub(crate) encoded: Encoded,
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: TraceContext,
    /// Those who wait for it.
    pub(crate) callers: Vec<Caller>,
    /// The context that it is made in.
    pub(crate) context: Option<ContextId>,
}

/// A call that has been made.
#[derive(Debug)]
pub(crate) struct Receipt {
    pub(crate) peer: NodeId,
    pub(crate) request: MessageId,
    pub(crate) reply: oneshot::Receiver<Reply>,
}

/// A call that has not been made.
pub(crate) enum NotMade {
    /// It cannot be.
    Failed(Error),
    /// Too many wait already (FL-4). It is worth trying again when this is ready.
    NoPlace(Box<Request>, oneshot::Receiver<()>),
}

impl From<Error> for NotMade {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

impl Core {
    /// Makes a call whose result, or value, comes back.
    pub(crate) fn begin(
        self: &Arc<Self>,
        to: NodeId,
        call: Request,
    ) -> std::result::Result<Receipt, NotMade> {
        self.check_member()?;
        self.check_size(to, &call)?;
        let want = match &call.receiver {
            Some(receiver) => {
                let held = receiver.held()?;
                Want::Value(held.rref, held.fingerprint)
            }
            None => Want::Answer,
        };
        let carried = ids(&call.encoded.references)?;
        let origins = self.origins(&carried);
        let mut state = self.lock();
        if !self.has_place(&state, to, &call) {
            // Once it is out of the group nobody tells.
            self.check_member()?;
            let (told, gave_up) = state.peer(to).flow.turned_away();
            drop(state);
            drop(gave_up);
            return Err(NotMade::NoPlace(Box::new(call), told));
        }
        let State { node, out, .. } = &mut *state;
        let head = match node.call(to, want, &carried, call.context, out) {
            Ok(head) => head,
            Err(error) => {
                self.settle(state, Work::default());
                let error = self.cannot_call(to, call.name, call.receiver.is_some(), error);
                return Err(error.into());
            }
        };
        if let Err(error) = self.check_wire(to, &head, &call) {
            return Err(self.take_back(state, to, &head, error).into());
        }
        let request = super::request_of(&head).unwrap_or(MessageId(0));
        let (sender, reply) = oneshot::channel();
        let bytes = weigh(call.encoded.payload.len() as u64);
        state.peer(to).wait(Waiter {
            request,
            function: call.function.map_or(0, |function| function.id),
            bytes,
            reply: sender,
        });
        let mut work = Work::default();
        // The forks are made: the handles may go, but not under the lock.
        let references = self.submit(&mut state, to, head, origins, call, &mut work);
        self.settle(state, work);
        drop(references);
        Ok(Receipt {
            peer: to,
            request,
            reply,
        })
    }

    /// Makes a call whose result stays with the callee, and a handle on it.
    pub(crate) fn create(
        self: &Arc<Self>,
        to: NodeId,
        mut call: Request,
        entry: &'static Entry,
        output: Fingerprint,
        made: Made,
    ) -> Result<Arc<Handle>> {
        self.check_member()?;
        if to == self.me {
            return self.create_here(call, entry, output, made);
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
        let origins = self.origins(&carried);
        let name = call.name.clone();
        let mut state = self.lock();
        if !self.has_place(&state, to, &call) {
            return Err(self.too_many_calls(to, name));
        }
        let State { node, out, .. } = &mut *state;
        let head = match node.call(to, Want::Reference(output), &carried, call.context, out) {
            Ok(head) => head,
            Err(error) => {
                self.settle(state, Work::default());
                return Err(self.cannot_call(to, name, on_value, error));
            }
        };
        if let Err(error) = self.check_wire(to, &head, &call) {
            return Err(self.take_back(state, to, &head, error));
        }
        let rref = match head.target {
            Target::Stay(creation) => creation.share.rref,
            _ => {
                return Err(Error::Reference(
                    "the protocol made no reference".to_owned(),
                ));
            }
        };
        let mut work = Work::default();
        let references = self.submit(&mut state, to, head, origins, call, &mut work);
        self.settle(state, work);
        drop(references);
        self.telemetry.created.add(1);
        Ok(Handle::counted(self, rref, to, output, made))
    }

    /// The same for a value that this worker makes for itself: nothing is sent, nobody is asked.
    fn create_here(
        self: &Arc<Self>,
        call: Request,
        entry: &'static Entry,
        output: Fingerprint,
        made: Made,
    ) -> Result<Arc<Handle>> {
        let receiver = match &call.receiver {
            Some(receiver) => {
                let held = receiver.held()?;
                Some((held.rref, held.fingerprint))
            }
            None => None,
        };
        let mut state = self.lock();
        let State { node, out, .. } = &mut *state;
        let created = match call.context {
            Some(context) => node.create_self_in(context, output, out),
            None => node.create_self(output).map_err(CallError::from),
        };
        let rref = match created {
            Ok(rref) => rref,
            Err(error) => return Err(self.cannot_call(self.me, call.name, false, error)),
        };
        let arrived = Arrived {
            from: self.me,
            target: serve::Target::Stay {
                rref,
                context: call.context,
                bytes: 0,
                function: entry.reference().id,
                limit: call
                    .deadline
                    .map(|at| at.saturating_duration_since(Instant::now())),
            },
            called: Some(Called::Entry(entry)),
            on: receiver.map(|(rref, _)| rref),
            arguments: call.encoded.payload,
            references: call.encoded.references,
            deadline: call.deadline,
            trace: call.trace,
            callers: call.callers,
            context: call.context,
        };
        let mut work = Work::default();
        match receiver {
            None => self.admit(&mut state, arrived, None, &mut work),
            Some((rref, fingerprint)) => {
                self.fetch_here(
                    &mut state,
                    rref,
                    fingerprint,
                    Held::Receiver(arrived),
                    &mut work,
                );
            }
        }
        self.settle(state, work);
        self.telemetry.created.add(1);
        Ok(Handle::counted(self, rref, self.me, output, made))
    }

    /// Makes a reference to a value of this worker's own.
    pub(crate) fn create_local(
        self: &Arc<Self>,
        value: Value,
        fingerprint: Fingerprint,
        made: Made,
    ) -> Result<Arc<Handle>> {
        self.check_member()?;
        let created = self.input(|node, _| node.create_local(value, fingerprint));
        let rref = created.map_err(|error| self.explain(error))?;
        self.telemetry.created.add(1);
        Ok(Handle::counted(self, rref, self.me, fingerprint, made))
    }

    /// Waits for a value that this worker owns.
    pub(crate) fn local(
        self: &Arc<Self>,
        rref: RRefId,
        fingerprint: Fingerprint,
    ) -> oneshot::Receiver<std::result::Result<Value, RefError>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        let mut work = Work::default();
        self.fetch_here(
            &mut state,
            rref,
            fingerprint,
            Held::Local(rref, sender),
            &mut work,
        );
        self.settle(state, work);
        receiver
    }

    /// Looks a value of this worker's own up, for `held`, which may have to wait for it.
    pub(super) fn fetch_here(
        self: &Arc<Self>,
        state: &mut State,
        rref: RRefId,
        fingerprint: Fingerprint,
        held: Held,
        work: &mut Work,
    ) {
        let State { node, out, .. } = &mut *state;
        let me = self.me;
        let arrival = match node.call(me, Want::Value(rref, fingerprint), &[], None, out) {
            Ok(head) => match node.receive_call(me, &head, out) {
                Ok(arrival) => super::request_of(&head).map(|request| (request, arrival)),
                Err(_) => None,
            },
            Err(error) => {
                let error = match error {
                    CallError::Reference(error) => error,
                    _ => RefError::Destroyed,
                };
                return self.refuse_here(state, held, error, work);
            }
        };
        match arrival {
            Some((request, Arrival::Value(value))) => {
                self.supply(state, me, request, held, Ok(value), work);
            }
            Some((request, Arrival::Waiting)) => {
                let waiting = &mut state.peer(me).waiting;
                waiting.insert(request, (held.detached(), Instant::now()));
            }
            Some((request, Arrival::Failed(CallError::Reference(error)))) => {
                self.supply(state, me, request, held, Err(error), work);
            }
            _ => self.refuse_here(state, held, RefError::Destroyed, work),
        }
    }

    /// There is no such value and there was no fetch.
    fn refuse_here(
        self: &Arc<Self>,
        state: &mut State,
        held: Held,
        error: RefError,
        work: &mut Work,
    ) {
        match held {
            Held::Local(_, sender) => {
                work.woken.push(Box::new(|_| drop(sender.send(Err(error)))));
            }
            Held::Call(arrived) | Held::Receiver(arrived) => {
                let failure = crate::runtime::failure::of_protocol(self, error.into());
                self.reject(state, arrived, failure, work);
            }
        }
    }

    /// Ends a fetch that this worker made of itself.
    pub(super) fn close_own_fetch(&self, state: &mut State, request: MessageId) {
        let State { node, out, .. } = &mut *state;
        if let Ok(Some(head)) = node.answer(self.me, request, &[], out) {
            let closed = node.receive_answer(self.me, &head, out);
            debug_assert!(closed.is_ok(), "{closed:?}");
        }
    }

    /// The caller no longer wants the answer. Says whether there was still one to come.
    pub(crate) fn cancel(self: &Arc<Self>, to: NodeId, request: MessageId) -> bool {
        let mut state = self.lock();
        let mut work = Work::default();
        // A peer that is gone has nothing left to cancel.
        let waiter = match state.peers.get_mut(&to) {
            Some(peer) => peer.waiter(request).map(|waiter| (peer, waiter)),
            None => None,
        };
        let was_open = waiter.is_some();
        if let Some((peer, waiter)) = waiter {
            let bytes = waiter.bytes;
            work.dropped.push(Box::new(waiter));
            if let Some(parked) = peer.flow.withdraw(request) {
                // It never left: as if it had not been made.
                let State { node, out, .. } = &mut *state;
                node.undo_call(to, &parked.head, out);
                work.dropped.push(Box::new(parked));
                self.recall(&mut state, to, &mut work);
            } else {
                let State { node, .. } = &mut *state;
                if node.cancel(to, request) {
                    if to == self.me {
                        work.loopback.push(Message::Cancel(request));
                    } else {
                        self.agent().enqueue(to, Message::Cancel(request));
                        work.flush(to);
                        // Its answer still comes, and only then it counts as closed. Keep its weight.
                        state.peer(to).cancelled.insert(request, bytes);
                    }
                }
            }
        }
        self.settle(state, work);
        was_open
    }

    /// Waits until the owner has registered a reference.
    pub(crate) fn confirmation(
        &self,
        rref: RRefId,
    ) -> std::result::Result<Option<oneshot::Receiver<std::result::Result<(), RefError>>>, RefError>
    {
        let mut state = self.lock();
        let table = state.node.refs(rref);
        table.check(rref)?;
        if table.is_confirmed(rref) {
            return Ok(None);
        }
        let (sender, receiver) = oneshot::channel();
        state.confirmations.entry(rref).or_default().push(sender);
        Ok(Some(receiver))
    }

    /// Releases a context that this worker opened, or joins those who wait for that already. None: it
    /// has been released, and everybody knows.
    pub(crate) fn release_context(
        self: &Arc<Self>,
        context: ContextId,
    ) -> Result<Option<oneshot::Receiver<()>>> {
        let mut state = self.lock();
        let State { node, out, .. } = &mut *state;
        let released = match node.release_context(context, out) {
            Ok(()) => Ok(Some(state.releases.entry(context).or_default())),
            // Closed here; until all others have said so too there is a list of who waits for that.
            Err(ContextError::Closed { .. }) => Ok(state.releases.get_mut(&context)),
            Err(other) => Err(Error::Reference(other.to_string())),
        };
        let released = released.map(|waiters| {
            waiters.map(|waiters| {
                let (sender, receiver) = oneshot::channel();
                waiters.push(sender);
                receiver
            })
        });
        self.settle(state, Work::default());
        released
    }

    /// Sends a call, or parks it until there is room. Gives back what it held on to so far.
    fn submit(
        self: &Arc<Self>,
        state: &mut State,
        to: NodeId,
        head: CallHead,
        origins: Origins,
        call: Request,
        work: &mut Work,
    ) -> (Vec<Arc<Handle>>, Option<Arc<Handle>>) {
        self.telemetry.calls.add(1);
        self.telemetry.shared.add(head.carried.len() as u64);
        let message = CallMessage {
            head,
            function: call.function,
            remaining: None,
            trace: call.trace,
            callers: call.callers,
            origins,
            arguments: call.encoded.payload,
        };
        if to == self.me {
            let remaining = call
                .deadline
                .map(|at| at.saturating_duration_since(Instant::now()));
            let message = Message::Call(CallMessage {
                remaining,
                ..message
            });
            work.loopback.push(message);
        } else {
            let leaving = state.peer(to).flow.offer(Parked {
                message,
                deadline: call.deadline,
            });
            if let Some(message) = leaving {
                self.agent().enqueue(to, message);
                work.flush(to);
            }
        }
        (call.encoded.references, call.receiver)
    }

    /// Sends what has room now.
    pub(super) fn unpark(&self, state: &mut State, to: NodeId, work: &mut Work) {
        let Some(peer) = state.peers.get_mut(&to) else {
            return;
        };
        while let Some(message) = peer.flow.next() {
            self.agent().enqueue(to, message);
            work.flush(to);
        }
        self.recall(state, to, work);
    }

    /// Tells those who found no place that there are some again (FL-4).
    fn recall(&self, state: &mut State, to: NodeId, work: &mut Work) {
        let Some(peer) = state.peers.get_mut(&to) else {
            return;
        };
        let Recalled { told, gave_up } = peer.flow.recalled(self.settings.max_waiting_calls);
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
            let most = self.settings.max_waiting_calls;
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

    /// Whether a call can be sent or parked (FL-4).
    fn has_place(&self, state: &State, to: NodeId, call: &Request) -> bool {
        let bytes = call.encoded.payload.len() as u64;
        let most = self.settings.max_waiting_calls;
        let peer = state.peers.get(&to);
        to == self.me || peer.is_none_or(|peer| peer.flow.has_place(bytes, most))
    }

    /// A call was not made, and cannot wait.
    pub(crate) fn too_many_calls(&self, to: NodeId, function: FunctionName) -> Error {
        Error::TooManyCalls {
            peer: self.name_of(to),
            function,
        }
    }

    /// A peer has said how much it accepts.
    pub(crate) fn met(self: &Arc<Self>, node: NodeId, max_calls: u32) {
        let mut state = self.lock();
        if state.node.membership().view().is_gone(node) {
            return;
        }
        state.peer(node).flow.raise_limit(max_calls);
        let mut work = Work::default();
        self.unpark(&mut state, node, &mut work);
        self.settle(state, work);
    }

    /// Hands a message of this worker to itself.
    pub(super) fn loop_back(self: &Arc<Self>, message: Message) {
        if let Err(error) = self.take_in(self.me, message) {
            tracing::error!(worker = %self.name, %error, "a call of this worker to itself failed");
        }
    }

    /// After the end nothing is sent, whatever the protocol's tables say.
    fn check_member(&self) -> Result<()> {
        if self.is_member() {
            Ok(())
        } else {
            Err(self.not_member())
        }
    }

    /// Whether the wire takes a call, now that it is known to the last byte.
    fn check_wire(&self, to: NodeId, head: &CallHead, call: &Request) -> Result<()> {
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
        mut state: MutexGuard<'_, State>,
        to: NodeId,
        head: &CallHead,
        error: Error,
    ) -> Error {
        let State { node, out, .. } = &mut *state;
        node.undo_call(to, head, out);
        self.settle(state, Work::default());
        error
    }

    /// What the wire would not take is refused before anything is set up for it (R5).
    fn check_size(&self, to: NodeId, call: &Request) -> Result<()> {
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
    fn cannot_call(
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
            },
            CallError::Reference(RefError::ReceiverLost { .. }) => Error::PeerLost {
                peer: self.name_of(to),
                function,
            },
            CallError::Reference(error) => self.explain(error),
            CallError::Context(error) => self.explain_context(error),
            other => Error::Reference(other.to_string()),
        }
    }
}

fn ids(references: &[Arc<Handle>]) -> Result<Vec<RRefId>> {
    references
        .iter()
        .map(|handle| handle.held().map(|held| held.rref))
        .collect()
}
