//! Calls that have arrived, and what becomes of their results.

use std::fmt;
use std::mem::take;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use farref_proto::{ContextId, MessageId, NodeId, RRefId};

use super::callers::CallChain;
use super::core::Core;
use super::current::Current;
use super::handle::Handle;
use super::registry::{Callee, FunctionEntry};
use crate::agent::{CallMessage, Caller, Failure, TraceContext, Unmade};
use crate::codec::Payload;
use crate::support::clock::Instant;
use crate::support::signal::CancelSignal;
use crate::values::{Value, ValueTicket};

/// What becomes of a call's result.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Destination {
    /// It goes back.
    Answer(MessageId),
    /// It stays here.
    Stay {
        rref: RRefId,
        context: Option<ContextId>,
        /// What the arguments weighed.
        bytes: u64,
        /// A hash of the constructor's name.
        function: u64,
        /// The time that it was given.
        limit: Option<Duration>,
    },
}

impl Destination {
    /// What takes the place of a value that could not be made.
    pub(crate) fn unmade(&self, core: &Core, failure: Failure) -> Value {
        let Self::Stay {
            function, limit, ..
        } = *self
        else {
            return Value::failed(failure);
        };
        let unmade = match failure.plain() {
            Ok(failure) => Unmade {
                function,
                name: core
                    .registry
                    .by_id(function)
                    .map(|entry| entry.name().to_owned()),
                limit,
                failure: Box::new(failure),
            },
            Err(other) => other,
        };
        Value::failed(Failure::Unmade(unmade))
    }
}

/// A call that has arrived and been admitted by the protocol.
pub(crate) struct ArrivedCall {
    pub(crate) from: NodeId,
    pub(crate) target: Destination,
    /// What to call; none only fetches the value.
    pub(crate) called: Option<Callee>,
    /// Whether it is named as another language does, and to be answered so.
    pub(crate) foreign: bool,
    /// The value that it is called on.
    pub(crate) on: Option<RRefId>,
    pub(crate) arguments: Payload,
    pub(crate) references: Vec<Arc<Handle>>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: TraceContext,
    /// The calls that wait for it.
    pub(crate) callers: Vec<Caller>,
    pub(crate) context: Option<ContextId>,
}

/// A call that may run now.
pub(crate) struct Job {
    pub(super) responder: Responder,
    pub(super) arguments: Payload,
    pub(super) references: Vec<Arc<Handle>>,
    pub(super) ticket: Option<ValueTicket>,
}

impl Job {
    pub(crate) fn new(
        core: Arc<Core>,
        arrived: ArrivedCall,
        entry: Option<&'static FunctionEntry>,
        ticket: Option<ValueTicket>,
        began: Instant,
    ) -> Self {
        let call = Current {
            core,
            caller: arrived.from,
            target: arrived.target,
            began,
            deadline: arrived.deadline,
            caller_trace: arrived.trace,
            trace: OnceLock::new(),
            context: arrived.context,
            chain: CallChain::new(
                arrived.callers,
                entry.map(FunctionEntry::called),
                arrived.on,
            ),
            entry,
            foreign: arrived.foreign,
            signal: CancelSignal::default(),
        };
        Self {
            responder: Responder {
                call: Arc::new(call),
                owes: false,
            },
            arguments: arrived.arguments,
            references: arrived.references,
            ticket,
        }
    }

    /// A call that carries nothing but its arguments and is on no value, as nearly all are.
    pub(super) fn plain(
        core: &Arc<Core>,
        from: NodeId,
        request: MessageId,
        (entry, foreign): (&'static FunctionEntry, bool),
        message: &mut CallMessage,
        began: Instant,
    ) -> Self {
        let call = Current {
            core: Arc::clone(core),
            caller: from,
            target: Destination::Answer(request),
            began,
            deadline: message.remaining.and_then(|left| began.checked_add(left)),
            caller_trace: message.trace,
            trace: OnceLock::new(),
            context: None,
            chain: CallChain::new(take(&mut message.callers), Some(entry.called()), None),
            entry: Some(entry),
            foreign,
            signal: CancelSignal::default(),
        };
        Self {
            responder: Responder {
                call: Arc::new(call),
                owes: false,
            },
            arguments: take(&mut message.arguments),
            references: Vec::new(),
            ticket: None,
        }
    }

    /// What cancels it, for as long as it runs.
    pub(crate) fn cancellable(&self) -> Weak<Current> {
        Arc::downgrade(&self.responder.call)
    }
}

/// Answers one call, at the latest when it is dropped: how, `serve` says.
pub(super) struct Responder {
    pub(super) call: Arc<Current>,
    /// Whether an answer is owed: from when the call is [started](Job::start), without any lock, until it is answered.
    /// A call that was not taken, and a job that goes while the protocol is locked, must not be answered.
    pub(super) owes: bool,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field(
                "function",
                &self.responder.call.entry.map(FunctionEntry::name),
            )
            .field("from", &self.responder.call.caller)
            .finish_non_exhaustive()
    }
}
