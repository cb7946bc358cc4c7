//! Acting on what the node reports. Runs under the lock; whatever must not is left as [`Work`].

use std::collections::BTreeSet;
use std::sync::Arc;

use farref_proto::{Departure, Event, MessageId, NodeId, RefError, TooFew, Waiter as Fetcher};

use super::work::Work;
use crate::agent::Failure;
use crate::error::{Error, FunctionName};
use crate::rendezvous::RendezvousError;
use crate::runtime::core::{
    Core, IncomingCall, PeerState, ProtocolState, StartedCall, ValueWaiter, WorkerStage,
};
use crate::runtime::job::{ArrivedCall, Job};
use crate::runtime::registry::{Callee, FETCHED, FunctionEntry};
use crate::runtime::{FETCH, callers, failure};
use crate::support::mutation::mutated;
use crate::tables::extensions::ContextListener;
use crate::values::queue::{ValueUser, WouldDeadlock};
use crate::values::{Value, ValueTicket};

impl Core {
    pub(super) fn handle_events(self: &Arc<Self>, state: &mut ProtocolState, work: &mut Work) {
        while let Some(event) = state.out.pop_event() {
            self.handle_event(state, event, work);
        }
    }

    /// The lives of a worker before this one of which something is known here.
    fn earlier_lives(&self, state: &ProtocolState, node: NodeId) -> BTreeSet<NodeId> {
        let is_earlier = |life: &NodeId| life.is_over_with(node) && *life != node;
        let mut lives: BTreeSet<NodeId> = self.names.not_over(is_earlier);
        lives.extend(state.peers.keys().copied().filter(is_earlier));
        lives.extend(self.unreachable.borrow().iter().copied().filter(is_earlier));
        lives
    }

    fn lose(&self, state: &mut ProtocolState, node: NodeId, departure: Departure, work: &mut Work) {
        let (worker, peer) = (&self.name, self.name_of(node));
        let was_missed = self
            .unreachable
            .send_if_modified(|nodes| nodes.remove(&node));
        let is_known = self.names.of(node).is_some() || state.peers.contains_key(&node);
        if was_missed && departure == Departure::Died {
            let why = self.rejections.of(node).map(tracing::field::display);
            tracing::warn!(%worker, %peer, %node, why, "a worker could not be reached and is taken for dead");
        } else if !is_known {
            // It was over before this worker came, or there never was such a life.
            tracing::debug!(%worker, %node, "a life that was never met is over");
        } else {
            tracing::info!(%worker, %peer, %node, ?departure, "a worker is gone");
        }
        if let Some(mut peer) = state.peers.remove(&node) {
            end_waits_for_a_place(&mut peer, work);
            work.dropped.push(Box::new(peer));
        }
        self.unwelcome.forget(node);
        work.forgotten.push((node, departure));
        Self::tell_watchers(work, self.watchers.gone(node, departure));
        // It may have been the host of the group's store.
        if departure == Departure::Died {
            work.woken
                .push(Box::new(|core| core.store_lost.notify_one()));
        }
    }

    fn handle_event(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        event: Event<Value>,
        work: &mut Work,
    ) {
        match event {
            Event::Freed { value, .. } => {
                self.metrics.freed.add(1);
                work.freed.push(value);
            }
            Event::Fetched {
                waiter, outcome, ..
            } => self.fetched(state, waiter, outcome, work),
            Event::Confirmed(rref) => {
                for waiter in state.confirmations.remove(&rref).unwrap_or_default() {
                    work.woken.push(Box::new(|_| drop(waiter.send(Ok(())))));
                }
            }
            Event::Lost { rref, error } => {
                for waiter in state.confirmations.remove(&rref).unwrap_or_default() {
                    let error = error.clone();
                    work.woken.push(Box::new(|_| drop(waiter.send(Err(error)))));
                }
            }
            Event::PeerLost { .. } if mutated!(KeepLostCalls) => {}
            Event::PeerLost { node, request } => {
                if let Some(peer) = state.peers.get_mut(&node)
                    && let Some(call) = peer.flow.withdraw(request)
                {
                    work.dropped.push(Box::new(call));
                }
                let lost = state.node.lost_outgoing(node, request);
                if let Some(waiter) = lost.and_then(|call| call.reply) {
                    let error = if *self.stage.borrow() == WorkerStage::Evicted {
                        // It is not the peer that was lost.
                        self.not_member()
                    } else {
                        // The one who waits knows what it called.
                        Error::PeerLost {
                            peer: self.name_of(node),
                            function: FunctionName::UNKNOWN,
                            cause: self.rejections.of(node),
                        }
                    };
                    work.replies.push((waiter, Err(error)));
                }
            }
            Event::Abandoned { node, request } => self.abandoned(state, node, request, work),
            Event::Joined(node) => {
                tracing::info!(worker = %self.name, %node, "a worker joined");
                self.watch_joined(node, work);
                work.joined.push(node);
            }
            Event::Gone { node, departure } => {
                // With a life its earlier ones are over, also those that were never members: nobody says that of each.
                for earlier in self.earlier_lives(state, node) {
                    self.lose(state, earlier, Departure::Died, work);
                }
                self.lose(state, node, departure, work);
            }
            Event::NoRoom { node, limit } => {
                let name = self.name.to_string();
                let why = RendezvousError::GroupFull { name, limit };
                work.woken.push(Box::new(move |core| {
                    core.rejections.insert(node, why, true);
                }));
            }
            Event::Welcomed => self.let_in(state, work),
            // W4: nothing is said of those who are not gone but out of sight.
            Event::Minority(too_few) => drop(self.too_few.set(too_few)),
            Event::Evicted => {
                match self.too_few.get() {
                    Some(TooFew { left, of }) => tracing::error!(worker = %self.name, left, of,
                        "this worker sees no majority of its group any more, and gives it up"),
                    None => {
                        self.unwelcome.evicted(&self.rejections);
                        match self.unwelcome.reason() {
                            Some(reason) => tracing::error!(worker = %self.name, %reason,
                                "this worker does not fit into its group, and is none of it any more"),
                            None => {
                                tracing::error!(worker = %self.name, "the group has declared this worker dead");
                            }
                        }
                    }
                }
                self.reach(WorkerStage::Evicted, work);
                for peer in state.peers.values_mut() {
                    end_waits_for_a_place(peer, work);
                }
            }
            Event::Departed => self.reach(WorkerStage::Departed, work),
            Event::ShutdownComplete => self.reach(WorkerStage::ShutDown, work),
            Event::ContextClosed(context) => {
                for listener in self.extensions.listeners() {
                    // Asked without the lock.
                    let told = Arc::clone(self);
                    work.woken.push(Box::new(move |core| {
                        let is_quick = listener.closes_quickly(context);
                        let tell = move || listener.context_closed(&told, context);
                        match is_quick {
                            true => core.user_code.run_here(tell),
                            false => core.user_code.run(tell),
                        }
                    }));
                }
            }
            Event::ContextFailed { context, node } => {
                self.tell_extensions(work, move |listener, core| {
                    listener.context_failed(core, context, node);
                });
            }
            Event::ContextReleased(context) => {
                let mut waiters = state.releases.remove(&context).unwrap_or_default();
                waiters.retain(|waiter| !waiter.is_closed());
                if waiters.is_empty() {
                    return;
                }
                let wake = move || {
                    for waiter in waiters {
                        waiter.send(()).unwrap_or_default();
                    }
                };
                // This worker's extensions are told before those who wait here.
                if self.extensions.is_empty() {
                    work.woken.push(Box::new(|_| wake()));
                } else {
                    work.callbacks.push(Box::new(wake));
                }
            }
            Event::ContextNotReleased(context) => {
                // Those who wait learn from the missing answer that this worker is no member.
                if let Some(waiters) = state.releases.remove(&context) {
                    work.woken.push(Box::new(|_| drop(waiters)));
                }
            }
            _ => {}
        }
    }

    /// This worker has been let in, and knows now who was there before it: one of those may have refused it (UW-1).
    fn let_in(&self, state: &mut ProtocolState, work: &mut Work) {
        let ProtocolState { node, out, .. } = state;
        let view = node.membership().view();
        let elders = view.members().filter(|&member| member != self.me);
        match self.unwelcome.let_in(elders, &self.rejections) {
            Some(refused_by) => node.resign(refused_by, out),
            None => self.reach(WorkerStage::Member, work),
        }
    }

    /// Tells each extension something, whatever the others make of it.
    fn tell_extensions(
        self: &Arc<Self>,
        work: &mut Work,
        tell: impl Fn(&dyn ContextListener<Self>, &Arc<Self>) + Copy + Send + 'static,
    ) {
        for listener in self.extensions.listeners() {
            let core = Arc::clone(self);
            work.callbacks
                .push(Box::new(move || tell(&*listener, &core)));
        }
    }

    fn reach(&self, stage: WorkerStage, work: &mut Work) {
        self.watch_end(stage, work);
        self.stage.send_if_modified(|current| {
            let later = stage > *current;
            if later {
                *current = stage;
            }
            later
        });
    }

    /// A value that somebody waited for is there, or never will be.
    fn fetched(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        waiter: Fetcher,
        outcome: Result<Value, RefError>,
        work: &mut Work,
    ) {
        let Fetcher { node, request } = waiter;
        match state.node.take_incoming(node, request) {
            Some(IncomingCall::Waiting(waiter, _)) => {
                self.supply(state, node, request, *waiter, outcome, work);
            }
            Some(running) => state.node.keep_incoming(node, request, running),
            None => {}
        }
    }

    /// Gives a value to the call that waited for it, or that need not wait.
    pub(super) fn supply(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        node: NodeId,
        request: MessageId,
        held: ValueWaiter,
        outcome: Result<Value, RefError>,
        work: &mut Work,
    ) {
        match held {
            ValueWaiter::Call(arrived) => match outcome {
                Ok(value) => self.admit(state, arrived, Some(value), work),
                Err(error) => {
                    let failure = failure::of_protocol(self, error.into());
                    self.reject(state, arrived, failure, work);
                }
            },
            ValueWaiter::Receiver(arrived) => {
                self.close_own_fetch(state, request);
                match outcome {
                    Ok(value) => self.admit(state, arrived, Some(value), work),
                    Err(error) => {
                        let failure = failure::of_protocol(self, error.into());
                        self.reject(state, arrived, failure, work);
                    }
                }
            }
            ValueWaiter::Local(_, sender) => {
                debug_assert_eq!(node, self.me);
                self.close_own_fetch(state, request);
                work.woken.push(Box::new(|core| {
                    // Nobody waits for it any more, and it may be the last of its value.
                    if let Err(Ok(value)) = sender.send(outcome) {
                        core.user_code.run(move || drop(value));
                    }
                }));
            }
        }
    }

    /// Makes a job of a call that may run now: takes its ticket (PR-4) and makes it cancellable.
    pub(super) fn admit(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        arrived: ArrivedCall,
        value: Option<Value>,
        work: &mut Work,
    ) {
        let entry = match self.entry_of(arrived.called, value.as_ref()) {
            Ok(entry) => entry,
            Err(failure) => {
                work.freed.extend(value);
                return self.reject(state, arrived, failure, work);
            }
        };
        let exclusive = entry.is_some_and(FunctionEntry::exclusive);
        let on = arrived.on;
        let user = ValueUser {
            exclusive,
            function: entry.map_or(FETCH, FunctionEntry::name),
            caller: arrived.from,
            caller_uses: on.and_then(|rref| callers::use_of(&arrived.callers, rref)),
        };
        let ticket = match on.zip(value) {
            None => None,
            Some((rref, value)) => match value.into_ticket(&self.queues, rref, user) {
                Ok(ticket) => Some(ticket),
                Err(WouldDeadlock) => {
                    let cycle = callers::cycle(&arrived.callers, rref, user.function, |id| {
                        self.registry.name_of(id)
                    });
                    return self.reject(state, arrived, Failure::Deadlock(cycle), work);
                }
            },
        };
        let on = on.map(|rref| (rref, ticket.as_ref().and_then(ValueTicket::number)));
        let from = arrived.from;
        let job = Job::new(Arc::clone(self), arrived, entry, ticket, work.now());
        if let Some(request) = job.responder.call.request() {
            let running = IncomingCall::Running {
                call: job.cancellable(),
                taken: StartedCall {
                    function: user.function,
                    since: job.responder.call.began,
                    on,
                },
            };
            state.node.keep_incoming(from, request, running);
        }
        work.jobs.push(job);
    }

    /// The function that is called, now that the value is there which it is called on.
    fn entry_of(
        &self,
        called: Option<Callee>,
        value: Option<&Value>,
    ) -> Result<Option<&'static FunctionEntry>, Failure> {
        let method = match called {
            None => return Ok(None),
            Some(Callee::Function(entry) | Callee::Foreign(entry)) => return Ok(Some(entry)),
            Some(Callee::Method(method)) => method,
        };
        match value {
            Some(Value::Failed(failure)) => Err(Failure::clone(failure)),
            Some(Value::Ready(object)) => match self.registry.method(method, object.value_type()) {
                Some(entry) => Ok(Some(entry)),
                None if method == FETCHED => Ok(None),
                None => Err(Failure::NoSuchFunction(None)),
            },
            None => Err(Failure::BadArguments(
                "a method needs a value to be called on".to_owned(),
            )),
        }
    }

    /// Nobody waits for this call any more.
    fn abandoned(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        node: NodeId,
        request: MessageId,
        work: &mut Work,
    ) {
        match state.node.take_incoming(node, request) {
            Some(IncomingCall::Running { call, .. }) => work.cancelled.push(call),
            Some(IncomingCall::Waiting(waiter, _)) => match *waiter {
                ValueWaiter::Call(arrived) => {
                    self.reject(state, arrived, Failure::Cancelled, work);
                }
                ValueWaiter::Local(_, sender) => work.woken.push(Box::new(|_| drop(sender))),
                ValueWaiter::Receiver(arrived) => work.dropped.push(Box::new(arrived)),
            },
            None => {}
        }
    }
}

/// Wakes those who wait for a place among the calls that are parked: they try again and learn why there
/// will be none.
fn end_waits_for_a_place(peer: &mut PeerState, work: &mut Work) {
    let waiting = peer.flow.take_waiting_for_room();
    if !waiting.is_empty() {
        work.woken.push(Box::new(move |_| drop(waiting)));
    }
}
