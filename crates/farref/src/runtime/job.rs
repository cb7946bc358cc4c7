//! Calls that have arrived, and what becomes of their results.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use farref_proto::{ContextId, MessageId, NodeId, RRefId};

use super::FETCH;
use super::callers::CallChain;
use super::core::Core;
use super::handle::Handle;
use super::registry::{Callee, FunctionEntry};
use crate::agent::{Caller, Failure, TraceContext, Unmade};
use crate::codec::Payload;
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
    pub(crate) from: NodeId,
    pub(crate) target: Destination,
    pub(crate) began: Instant,
    pub(super) core: Arc<Core>,
    pub(super) entry: Option<&'static FunctionEntry>,
    pub(super) arguments: Payload,
    pub(super) references: Vec<Arc<Handle>>,
    pub(super) ticket: Option<ValueTicket>,
    pub(super) deadline: Option<Instant>,
    pub(super) trace: TraceContext,
    pub(super) context: Option<ContextId>,
    pub(super) chain: CallChain,
    pub(super) signal: Option<Arc<CancelSignal>>,
}

impl Job {
    pub(crate) fn new(
        core: Arc<Core>,
        arrived: ArrivedCall,
        entry: Option<&'static FunctionEntry>,
        ticket: Option<ValueTicket>,
    ) -> Self {
        Self {
            from: arrived.from,
            target: arrived.target,
            began: Instant::now(),
            core,
            entry,
            arguments: arrived.arguments,
            references: arrived.references,
            ticket,
            deadline: arrived.deadline,
            trace: arrived.trace,
            context: arrived.context,
            chain: CallChain::new(
                arrived.callers,
                entry.map(FunctionEntry::called),
                arrived.on,
            ),
            signal: None,
        }
    }

    /// What runs.
    pub(crate) fn name(&self) -> &'static str {
        self.entry.map_or(FETCH, FunctionEntry::name)
    }

    /// What cancels it.
    pub(crate) fn cancel_signal(&mut self) -> Arc<CancelSignal> {
        Arc::clone(self.signal.get_or_insert_default())
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job")
            .field("function", &self.entry.map(FunctionEntry::name))
            .field("from", &self.from)
            .finish_non_exhaustive()
    }
}
