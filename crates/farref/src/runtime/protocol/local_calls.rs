//! Calls that this worker makes of itself: values that it makes and looks at without sending anything.

use std::panic::Location;
use std::sync::Arc;

use farref_proto::{Arrival, CallError, Fingerprint, MessageId, RRefId, RefError, Want};
use tokio::sync::oneshot;

use super::outgoing::CallSpec;
use super::work::Work;
use crate::agent::request_of;
use crate::error::Result;
use crate::runtime::core::{Core, IncomingCall, ProtocolState, ValueWaiter};
use crate::runtime::failure;
use crate::runtime::handle::Handle;
use crate::runtime::job::{ArrivedCall, Destination};
use crate::runtime::registry::Callee;
use crate::values::Value;

impl Core {
    /// The same for a value that this worker makes for itself: nothing is sent, nobody is asked.
    pub(super) fn create_here(
        self: &Arc<Self>,
        call: CallSpec,
        called: Callee,
        output: Fingerprint,
        location: &'static Location<'static>,
    ) -> Result<Arc<Handle>> {
        let receiver = match &call.receiver {
            Some(receiver) => {
                let held = receiver.held()?;
                Some((held.rref, held.fingerprint))
            }
            None => None,
        };
        let hold = self.holds.made(location, call.now);
        let mut state = self.lock();
        let ProtocolState { node, out, .. } = &mut *state;
        let created = match call.context {
            Some(context) => node.create_self_in(context, output, out),
            None => node.create_self(output).map_err(CallError::from),
        };
        let rref = match created {
            Ok(rref) => rref,
            Err(error) => return Err(self.cannot_call(self.me, call.name, false, error)),
        };
        node.keep_hold(rref, hold);
        let arrived = ArrivedCall {
            from: self.me,
            target: Destination::Stay {
                rref,
                context: call.context,
                bytes: 0,
                function: call.function.map_or(0, |function| function.id),
                limit: call
                    .deadline
                    .map(|at| at.saturating_duration_since(call.now)),
            },
            called: Some(called),
            foreign: called.is_foreign(&call.encoded.payload),
            on: receiver.map(|(rref, _)| rref),
            arguments: call.encoded.payload,
            references: call.encoded.references,
            deadline: call.deadline,
            trace: call.trace,
            callers: call.callers,
            context: call.context,
        };
        let mut work = Work::new();
        match receiver {
            None => self.admit(&mut state, arrived, None, &mut work),
            Some((rref, fingerprint)) => {
                self.fetch_here(
                    &mut state,
                    rref,
                    fingerprint,
                    ValueWaiter::Receiver(arrived),
                    &mut work,
                );
            }
        }
        self.finish_input(state, work);
        self.metrics.created.add(1);
        Ok(Handle::counted(self, rref, self.me, output))
    }

    /// Waits for a value that this worker owns.
    pub(crate) fn local(
        self: &Arc<Self>,
        rref: RRefId,
        fingerprint: Fingerprint,
    ) -> oneshot::Receiver<std::result::Result<Value, RefError>> {
        let (sender, receiver) = oneshot::channel();
        let mut state = self.lock();
        let mut work = Work::new();
        self.fetch_here(
            &mut state,
            rref,
            fingerprint,
            ValueWaiter::Local(rref, sender),
            &mut work,
        );
        self.finish_input(state, work);
        receiver
    }

    /// Looks a value of this worker's own up, for `held`, which may have to wait for it.
    pub(super) fn fetch_here(
        self: &Arc<Self>,
        state: &mut ProtocolState,
        rref: RRefId,
        fingerprint: Fingerprint,
        held: ValueWaiter,
        work: &mut Work,
    ) {
        let ProtocolState { node, out, .. } = &mut *state;
        let me = self.me;
        let arrival = match node.call(me, Want::Value(rref, fingerprint), &[], None, out) {
            Ok(head) => match node.receive_call(me, &head, out) {
                Ok(arrival) => request_of(&head).map(|request| (request, arrival)),
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
                let record = IncomingCall::Waiting(Box::new(held.detached()), work.now());
                state.node.keep_incoming(me, request, record);
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
        state: &mut ProtocolState,
        held: ValueWaiter,
        error: RefError,
        work: &mut Work,
    ) {
        match held {
            ValueWaiter::Local(_, sender) => {
                work.woken.push(Box::new(|_| drop(sender.send(Err(error)))));
            }
            ValueWaiter::Call(arrived) | ValueWaiter::Receiver(arrived) => {
                let failure = failure::of_protocol(self, error.into());
                self.reject(state, arrived, failure, work);
            }
        }
    }

    /// Ends a fetch that this worker made of itself.
    pub(super) fn close_own_fetch(&self, state: &mut ProtocolState, request: MessageId) {
        let ProtocolState { node, out, .. } = &mut *state;
        if let Ok(Some(head)) = node.answer(self.me, request, &[], out) {
            let closed = node.receive_answer(self.me, &head, out);
            debug_assert!(closed.is_ok(), "{closed:?}");
        }
    }
}
