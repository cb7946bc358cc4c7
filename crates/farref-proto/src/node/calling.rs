//! Calls and answers as the protocol sees them: what they carry, what they keep alive, how they end.
//!
//! Making a call is a transaction: either everything it needs is set up (forks of its arguments, the
//! reference to its result, its place in its context) or nothing is. The same undo serves a call that
//! could not be encoded or sent (guarantee R5).

use super::*;
use crate::calls::{Calls, IncomingRequest, Open, OutgoingRequest};
use crate::event::Waiter;
use crate::message::{AnswerHead, CallHead, Carried, Target};
use crate::refs::Fetch;

/// What the caller wants of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Want {
    /// The result.
    Answer,
    /// The value behind a reference of the callee's.
    Value(RRefId, Fingerprint),
    /// A reference to the result, which stays with the callee and has this type.
    Reference(Fingerprint),
}

/// What the callee has to do with a call that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Arrival<V> {
    /// Run it. The program holds a handle on every carried reference. Answer it, or, if its result
    /// is to stay, say [`Node::finish_creation`].
    Run,
    /// Answer with this value.
    Value(V),
    /// Answer when [`Event::Fetched`] comes.
    Waiting,
    /// Answer with this error (or let the result that is to stay be this error). What was carried has
    /// been let go.
    Failed(CallError),
    /// The caller is no member: nothing to do.
    Ignored,
}

/// An answer that arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered<O> {
    /// Whether the program waits for it, and now holds a handle on every carried reference. If not, the call
    /// was cancelled, and what its answer carried has been let go.
    pub wanted: bool,
    /// What the driver kept of the call.
    pub record: Option<O>,
}

impl<O> Answered<O> {
    const NOBODYS: Self = Self {
        wanted: false,
        record: None,
    };
}

impl<V: Clone, O, I, H> Node<V, O, I, H> {
    /// Keeps something for a call, for as long as it is open.
    pub fn keep_outgoing(&mut self, to: NodeId, request: MessageId, record: O) {
        if let Some(call) = self.open_outgoing(to, request) {
            call.record = Some(record);
        }
    }

    /// What is kept for a call of this node's that is open.
    pub fn outgoing_record(&mut self, to: NodeId, request: MessageId) -> Option<&mut O> {
        self.open_outgoing(to, request)?.record.as_mut()
    }

    /// What was kept for a call when its peer was lost ([`Event::PeerLost`]). It is given out once.
    pub fn lost_outgoing(&mut self, node: NodeId, request: MessageId) -> Option<O> {
        self.lost_outgoing.remove(&(node, request))
    }

    /// Keeps something for a call of a peer's, for as long as it is open.
    pub fn keep_incoming(&mut self, from: NodeId, request: MessageId, record: I) {
        let calls = self.calls.get_mut(&from);
        if let Some(call) = calls.and_then(|calls| calls.incoming_mut(request)) {
            call.record = Some(record);
        }
    }

    /// Takes what was kept for a call of a peer's, also when it was abandoned with the peer
    /// ([`Event::Abandoned`]).
    pub fn take_incoming(&mut self, from: NodeId, request: MessageId) -> Option<I> {
        let calls = self.calls.get_mut(&from);
        match calls.and_then(|calls| calls.incoming_mut(request)) {
            Some(call) => call.record.take(),
            None => self.lost_incoming.remove(&(from, request)),
        }
    }

    /// What is kept for the open calls of a peer's.
    pub fn incoming_records(&self, from: NodeId) -> impl Iterator<Item = (MessageId, &I)> {
        let calls = self.calls.get(&from).into_iter();
        calls.flat_map(Calls::incoming_records)
    }

    /// What is kept for the open calls to a peer.
    pub fn outgoing_records(&self, to: NodeId) -> impl Iterator<Item = (MessageId, &O)> {
        let calls = self.calls.get(&to).into_iter();
        calls.flat_map(Calls::outgoing_records)
    }

    /// The peers with whom calls are open, in either direction.
    pub fn calls_with(&self) -> impl Iterator<Item = NodeId> {
        self.calls.keys().copied()
    }

    /// How many calls of a peer's are open.
    pub fn open_incoming(&self, from: NodeId) -> usize {
        self.calls.get(&from).map_or(0, Calls::open_incoming)
    }

    /// Takes out all that is kept for calls, of all peers: the driver ends.
    pub fn take_records(&mut self) -> (Vec<O>, Vec<I>) {
        let lost = std::mem::take(&mut self.lost_outgoing).into_values();
        let mut outgoing: Vec<O> = lost.collect();
        let lost = std::mem::take(&mut self.lost_incoming).into_values();
        let mut incoming: Vec<I> = lost.collect();
        for calls in self.calls.values_mut() {
            calls.take_records(&mut outgoing, &mut incoming);
        }
        (outgoing, incoming)
    }

    /// The calls with a peer, a fresh table if there were none.
    fn calls_with_peer(&mut self, peer: NodeId) -> &mut Calls<O, I> {
        let seed = self.seed;
        self.calls.entry(peer).or_insert_with(|| Calls::new(seed))
    }

    fn open_outgoing(&mut self, to: NodeId, request: MessageId) -> Option<&mut OutgoingRequest<O>> {
        self.calls.get_mut(&to)?.outgoing(request)
    }

    /// Prepares a call. Send the head along with the user's part; if that fails before anything has
    /// left, say [`undo_call`](Self::undo_call).
    pub fn call(
        &mut self,
        to: NodeId,
        want: Want,
        arguments: &[RRefId],
        context: Option<ContextId>,
        out: &mut Outbox<V>,
    ) -> Result<CallHead, CallError> {
        self.prepare_call(to, want, arguments, context, None, out)
    }

    /// Prepares a call that is answered, and [keeps](Self::keep_outgoing) something for it.
    pub fn call_with_record(
        &mut self,
        to: NodeId,
        want: Want,
        arguments: &[RRefId],
        context: Option<ContextId>,
        record: O,
        out: &mut Outbox<V>,
    ) -> Result<CallHead, CallError> {
        debug_assert!(
            !matches!(want, Want::Reference(_)),
            "nothing is kept for a call without an answer"
        );
        self.prepare_call(to, want, arguments, context, Some(record), out)
    }

    fn prepare_call(
        &mut self,
        to: NodeId,
        want: Want,
        arguments: &[RRefId],
        context: Option<ContextId>,
        record: Option<O>,
        out: &mut Outbox<V>,
    ) -> Result<CallHead, CallError> {
        self.activity.0 += 1;
        let phase = self.membership.phase();
        if phase != Phase::Member {
            return Err(CallError::NotMember { phase });
        }
        let view = self.membership.view();
        let called = match want {
            // Whoever has a value was let in, be it that this node has only heard so far that it joins.
            Want::Value(..) => view.is_live(to),
            Want::Answer | Want::Reference(_) => view.is_member(to),
        };
        if !called {
            return Err(CallError::PeerGone { node: to });
        }
        let fetches = match want {
            Want::Value(rref, _) => {
                self.refs(rref).check(rref)?;
                match self.refs(rref).owner_of(rref) {
                    Some(owner) if owner != to => {
                        return Err(RefError::NotOwner { rref, owner }.into());
                    }
                    _ => self.table(rref).begin_fetch(rref)?,
                }
                Some(rref)
            }
            Want::Reference(_) if to == self.me => return Err(CallError::CreationOnSelf),
            _ => None,
        };
        let undo_fetch = |node: &mut Self, out: &mut Outbox<V>| {
            if let Some(rref) = fetches {
                node.table(rref).end_fetch(rref, out);
            }
        };
        let carried = match self.fork_all(arguments, to, out) {
            Ok(carried) => carried,
            Err(error) => {
                undo_fetch(self, out);
                return Err(error.into());
            }
        };
        if let Some(context) = context
            && let Err(error) = self.context_table(context).start_call(context, to)
        {
            undo_fetch(self, out);
            self.undo_forks(&carried, out);
            return Err(error.into());
        }
        let outgoing = OutgoingRequest {
            wanted: true,
            fetches,
            record,
        };
        let target = match want {
            Want::Answer => Target::Answer(self.calls_with_peer(to).start(outgoing)),
            Want::Value(rref, fingerprint) => {
                let request = self.calls_with_peer(to).start(outgoing);
                Target::Fetch(request, rref, fingerprint)
            }
            Want::Reference(fingerprint) => {
                match self.next_table().create_remote(to, fingerprint) {
                    Ok(creation) => Target::Stay(creation),
                    Err(error) => {
                        self.undo_forks(&carried, out);
                        if let Some(context) = context {
                            self.context_table(context).undo_call(context, to, out);
                        }
                        return Err(error.into());
                    }
                }
            }
        };
        Ok(CallHead {
            target,
            context,
            carried,
        })
    }

    /// Takes back a call that never left this node, and gives back what was kept for it. If its result was to
    /// stay there, the reference to it must not have been given to anyone yet.
    pub fn undo_call(&mut self, to: NodeId, head: &CallHead, out: &mut Outbox<V>) -> Option<O> {
        self.activity.0 += 1;
        let record = match head.target {
            Target::Answer(request) | Target::Fetch(request, ..) => {
                let call = self
                    .calls
                    .get_mut(&to)
                    .and_then(|calls| calls.finish(request));
                if let Some(rref) = call.as_ref().and_then(|call| call.fetches) {
                    self.table(rref).end_fetch(rref, out);
                }
                call.and_then(|call| call.record)
            }
            Target::Stay(creation) => {
                let rref = creation.share.rref;
                self.table(rref).abort_creation(rref);
                None
            }
        };
        self.undo_forks(&head.carried, out);
        if let Some(context) = head.context {
            self.context_table(context).undo_call(context, to, out);
        }
        self.loop_back(out);
        record
    }

    /// The program no longer wants the answer. If this says `true`, tell the peer. The call stays
    /// open until the peer has answered (CA-1).
    pub fn cancel(&mut self, to: NodeId, request: MessageId) -> bool {
        self.activity.0 += 1;
        self.open_outgoing(to, request)
            .is_some_and(|call| std::mem::replace(&mut call.wanted, false))
    }

    /// A call arrived.
    pub fn receive_call(
        &mut self,
        from: NodeId,
        head: &CallHead,
        out: &mut Outbox<V>,
    ) -> Result<Arrival<V>, PeerMisbehaved> {
        self.take_call(from, head, None, out)
    }

    /// A call arrived that is to be answered. Something is [kept](Self::keep_incoming) for it if it is to run.
    pub fn receive_call_with_record(
        &mut self,
        from: NodeId,
        head: &CallHead,
        record: I,
        out: &mut Outbox<V>,
    ) -> Result<Arrival<V>, PeerMisbehaved> {
        debug_assert!(
            matches!(head.target, Target::Answer(_)),
            "it is not to be answered by a function"
        );
        self.take_call(from, head, Some(record), out)
    }

    fn take_call(
        &mut self,
        from: NodeId,
        head: &CallHead,
        record: Option<I>,
        out: &mut Outbox<V>,
    ) -> Result<Arrival<V>, PeerMisbehaved> {
        let joining = self.membership.phase() == Phase::Joining;
        if !self.listens_to(from) || joining || self.is_over() {
            return Ok(Arrival::Ignored);
        }
        self.membership.heard(from);
        self.activity.0 += 1;
        let context = head.context;
        self.receive_all(from, &head.carried, out)?;
        let admitted = match head.target {
            Target::Answer(request) => {
                let mut call = IncomingRequest::new(context, None);
                call.record = record;
                self.calls_with_peer(from).receive(request, call)
            }
            Target::Fetch(request, rref, _) => {
                let call = IncomingRequest::new(context, Some(rref));
                self.calls_with_peer(from).receive(request, call)
            }
            Target::Stay(creation) => {
                let rref = creation.share.rref;
                self.table(rref).accept_creation(from, creation, out)
            }
        };
        if let Err(error) = admitted {
            self.drop_all(&head.carried, out);
            self.loop_back(out);
            return Err(error);
        }
        if let Some(context) = context
            && let Err(error) = self.context_table(context).receive_call(context, from, out)
        {
            self.drop_all(&head.carried, out);
            if let Target::Answer(request) | Target::Fetch(request, ..) = head.target
                && let Some(calls) = self.calls.get_mut(&from)
            {
                // Its context is done with; only the answer is left.
                calls.answered(request);
                calls.receive(request, IncomingRequest::new(None, None))?;
            }
            self.loop_back(out);
            return Ok(Arrival::Failed(error.into()));
        }
        let arrival = match head.target {
            Target::Answer(_) | Target::Stay(_) => Arrival::Run,
            Target::Fetch(request, rref, fingerprint) => {
                let node = from;
                let waiter = Waiter { node, request };
                match self.table(rref).fetch(rref, fingerprint, waiter) {
                    Ok(Fetch::Ready(value)) => Arrival::Value(value),
                    Ok(Fetch::Waiting) => Arrival::Waiting,
                    Err(error) => {
                        self.drop_all(&head.carried, out);
                        Arrival::Failed(error.into())
                    }
                }
            }
        };
        self.loop_back(out);
        Ok(arrival)
    }

    /// The caller no longer wants an answer: an [`Event::Abandoned`] tells the program to stop. It
    /// answers all the same, with whatever says so.
    pub fn receive_cancel(&mut self, from: NodeId, request: MessageId, out: &mut Outbox<V>) {
        self.activity.0 += 1;
        let Some(call) = self
            .calls
            .get(&from)
            .and_then(|calls| calls.incoming(request))
        else {
            return;
        };
        let (node, fetches) = (from, call.fetches);
        if let Some(rref) = fetches {
            self.table(rref)
                .cancel_fetch(rref, Waiter { node, request }, out);
        }
        out.event(Event::Abandoned { node, request });
    }

    /// Prepares the answer to a call. `None`: the asker is gone, there is nobody to answer. After an
    /// error the call is still open: answer again, without the reference that was at fault. If the
    /// answer cannot be sent, say [`undo_answer`](Self::undo_answer) and answer something that can.
    pub fn answer(
        &mut self,
        to: NodeId,
        request: MessageId,
        results: &[RRefId],
        out: &mut Outbox<V>,
    ) -> Result<Option<AnswerHead>, RefError> {
        self.activity.0 += 1;
        let calls = self.calls.get(&to);
        if !results.is_empty() && calls.is_none_or(|calls| calls.incoming(request).is_none()) {
            return Ok(None);
        }
        let carried = self.fork_all(results, to, out)?;
        let calls = self.calls.get_mut(&to);
        let Some(call) = calls.and_then(|calls| calls.answered(request)) else {
            return Ok(None);
        };
        if let Some(context) = call.context {
            self.context_table(context).finish_call(context, to, out);
        }
        self.loop_back(out);
        Ok(Some(AnswerHead {
            id: request,
            carried,
        }))
    }

    /// Takes back an answer that never left this node; another must follow.
    pub fn undo_answer(&mut self, to: NodeId, head: &AnswerHead, out: &mut Outbox<V>) {
        self.activity.0 += 1;
        self.undo_forks(&head.carried, out);
        if self.listens_to(to) {
            let calls = self.calls_with_peer(to);
            // The request was open a moment ago and its slot on the caller's side still is.
            let reopened = calls.receive(head.id, IncomingRequest::new(None, None));
            debug_assert!(reopened.is_ok());
        }
        self.loop_back(out);
    }

    /// The result of a call that is to stay here is there, be it a value or an error.
    pub fn finish_creation(
        &mut self,
        from: NodeId,
        rref: RRefId,
        context: Option<ContextId>,
        value: V,
        out: &mut Outbox<V>,
    ) {
        self.activity.0 += 1;
        self.table(rref).fulfil(rref, value, out);
        if let Some(context) = context {
            self.context_table(context).finish_call(context, from, out);
        }
        self.loop_back(out);
    }

    /// An answer arrived.
    pub fn receive_answer(
        &mut self,
        from: NodeId,
        head: &AnswerHead,
        out: &mut Outbox<V>,
    ) -> Result<Answered<O>, PeerMisbehaved> {
        if !self.listens_to(from) || self.is_over() {
            return Ok(Answered::NOBODYS);
        }
        self.membership.heard(from);
        self.activity.0 += 1;
        let request = head.id;
        let unexpected = PeerMisbehaved::UnexpectedAnswer { request };
        // What is carried is taken in while the call is open.
        if !head.carried.is_empty() {
            if self.open_outgoing(from, request).is_none() {
                return Err(unexpected);
            }
            self.receive_all(from, &head.carried, out)?;
        }
        let calls = self.calls.get_mut(&from);
        let Some(call) = calls.and_then(|calls| calls.finish(request)) else {
            return Err(unexpected);
        };
        if !call.wanted {
            self.drop_all(&head.carried, out);
        }
        if let Some(rref) = call.fetches {
            self.table(rref).end_fetch(rref, out);
        }
        self.loop_back(out);
        Ok(Answered {
            wanted: call.wanted,
            record: call.record,
        })
    }

    /// Makes a fork of each reference for `to`, or of none.
    fn fork_all(
        &mut self,
        rrefs: &[RRefId],
        to: NodeId,
        out: &mut Outbox<V>,
    ) -> Result<Vec<Carried>, RefError> {
        let mut carried = Vec::with_capacity(rrefs.len());
        for &rref in rrefs {
            match self.table(rref).fork(rref, to) {
                Ok(fork) => carried.push(fork),
                Err(error) => {
                    self.undo_forks(&carried, out);
                    return Err(error);
                }
            }
        }
        Ok(carried)
    }

    fn undo_forks(&mut self, carried: &[Carried], out: &mut Outbox<V>) {
        for fork in carried {
            self.table(fork.share.rref).undo_fork(fork, out);
        }
    }

    /// Takes in all forks of one message, each with a handle, or, if the peer misbehaves, none.
    fn receive_all(
        &mut self,
        from: NodeId,
        carried: &[Carried],
        out: &mut Outbox<V>,
    ) -> Result<(), PeerMisbehaved> {
        for (done, fork) in carried.iter().enumerate() {
            let received = self.table(fork.share.rref).receive(from, fork, out);
            if received.is_err() {
                self.drop_all(&carried[..done], out);
                return received;
            }
        }
        Ok(())
    }

    fn drop_all(&mut self, carried: &[Carried], out: &mut Outbox<V>) {
        for fork in carried {
            self.table(fork.share.rref)
                .drop_handle(fork.share.rref, out);
        }
    }

    /// Ends all calls with a peer that is gone.
    pub(super) fn abandon_calls(&mut self, node: NodeId, out: &mut Outbox<V>) {
        let Some(calls) = self.calls.remove(&node) else {
            return;
        };
        let Open { outgoing, incoming } = calls.drain();
        for (request, call) in outgoing {
            if let Some(rref) = call.fetches {
                self.table(rref).end_fetch(rref, out);
            }
            if call.wanted {
                let record = call.record.map(|record| ((node, request), record));
                self.lost_outgoing.extend(record);
                out.event(Event::PeerLost { node, request });
            }
        }
        for (request, call) in incoming {
            // Nobody will answer it any more, so nobody else would say that it is over.
            if let Some(context) = call.context
                && !mutated!(self.mutant, AbandonedCallRunsOn)
            {
                self.context_table(context).finish_call(context, node, out);
            }
            let record = call.record.map(|record| ((node, request), record));
            self.lost_incoming.extend(record);
            out.event(Event::Abandoned { node, request });
        }
    }
}
