//! Calls and answers as the protocol sees them: what they carry, what they keep alive, how they end.
//!
//! Making a call is a transaction: either everything it needs is set up (forks of its arguments, the
//! reference to its result, its place in its context) or nothing is. The same undo serves a call that
//! could not be encoded or sent (guarantee R5).

use super::*;
use crate::calls::{Incoming, Open, Outgoing};
use crate::event::Waiter;
use crate::ids::MessageId;
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

impl<V: Clone> Node<V> {
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
                    _ => self.table(rref).add_handle(rref)?,
                }
                Some(rref)
            }
            Want::Reference(_) if to == self.me => return Err(CallError::CreationOnSelf),
            _ => None,
        };
        let undo_fetch = |node: &mut Self, out: &mut Outbox<V>| {
            if let Some(rref) = fetches {
                node.table(rref).drop_handle(rref, out);
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
        let outgoing = Outgoing {
            wanted: true,
            fetches,
        };
        let target = match want {
            Want::Answer => Target::Answer(self.calls.entry(to).or_default().start(outgoing)),
            Want::Value(rref, fingerprint) => {
                let request = self.calls.entry(to).or_default().start(outgoing);
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

    /// Takes back a call that never left this node. If its result was to stay there, the reference to
    /// it must not have been given to anyone yet.
    pub fn undo_call(&mut self, to: NodeId, head: &CallHead, out: &mut Outbox<V>) {
        self.activity.0 += 1;
        match head.target {
            Target::Answer(request) | Target::Fetch(request, ..) => {
                let call = self
                    .calls
                    .get_mut(&to)
                    .and_then(|calls| calls.finish(request));
                if let Some(rref) = call.and_then(|call| call.fetches) {
                    self.table(rref).drop_handle(rref, out);
                }
            }
            Target::Stay(creation) => {
                let rref = creation.share.rref;
                self.table(rref).abort_creation(rref);
            }
        }
        self.undo_forks(&head.carried, out);
        if let Some(context) = head.context {
            self.context_table(context).undo_call(context, to, out);
        }
        self.loop_back(out);
    }

    /// The program no longer wants the answer. If this says `true`, tell the peer. The call stays
    /// open until the peer has answered (CA-1).
    pub fn cancel(&mut self, to: NodeId, request: MessageId) -> bool {
        self.activity.0 += 1;
        let call = self
            .calls
            .get_mut(&to)
            .and_then(|calls| calls.outgoing(request));
        call.is_some_and(|call| std::mem::replace(&mut call.wanted, false))
    }

    /// A call arrived.
    pub fn receive_call(
        &mut self,
        from: NodeId,
        head: &CallHead,
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
                let fetches = None;
                let call = Incoming { context, fetches };
                self.calls.entry(from).or_default().receive(request, call)
            }
            Target::Fetch(request, rref, _) => {
                let fetches = Some(rref);
                let call = Incoming { context, fetches };
                self.calls.entry(from).or_default().receive(request, call)
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
                let (context, fetches) = (None, None);
                calls.receive(request, Incoming { context, fetches })?;
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
        let node = from;
        if let Some(rref) = call.fetches {
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
        let Some(call) = self
            .calls
            .get(&to)
            .and_then(|calls| calls.incoming(request))
        else {
            return Ok(None);
        };
        let carried = self.fork_all(results, to, out)?;
        if let Some(calls) = self.calls.get_mut(&to) {
            calls.answered(request);
        }
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
            let (context, fetches) = (None, None);
            let calls = self.calls.entry(to).or_default();
            // The request was open a moment ago and its slot on the caller's side still is.
            let reopened = calls.receive(head.id, Incoming { context, fetches });
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

    /// An answer arrived. `true`: the program waits for it and now holds a handle on every carried
    /// reference. `false`: it was cancelled, what it carried has been let go.
    pub fn receive_answer(
        &mut self,
        from: NodeId,
        head: &AnswerHead,
        out: &mut Outbox<V>,
    ) -> Result<bool, PeerMisbehaved> {
        if !self.listens_to(from) || self.is_over() {
            return Ok(false);
        }
        self.membership.heard(from);
        self.activity.0 += 1;
        let request = head.id;
        let known = self
            .calls
            .get_mut(&from)
            .and_then(|calls| calls.outgoing(request));
        if known.is_none() {
            return Err(PeerMisbehaved::UnexpectedAnswer { request });
        }
        self.receive_all(from, &head.carried, out)?;
        let call = self
            .calls
            .get_mut(&from)
            .and_then(|calls| calls.finish(request));
        let wanted = call.is_some_and(|call| call.wanted);
        if !wanted {
            self.drop_all(&head.carried, out);
        }
        if let Some(rref) = call.and_then(|call| call.fetches) {
            self.table(rref).drop_handle(rref, out);
        }
        self.loop_back(out);
        Ok(wanted)
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
                self.table(rref).drop_handle(rref, out);
            }
            if call.wanted {
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
            out.event(Event::Abandoned { node, request });
        }
    }
}
