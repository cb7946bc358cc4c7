//! Answering a call exactly once, whatever becomes of its function.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use farref_proto::{MessageId, NodeId};

use crate::agent::Failure;
use crate::codec::vectors::{EachVector, Outgoing};
use crate::runtime::FETCH;
use crate::runtime::core::Core;
use crate::runtime::current::Current;
use crate::runtime::failure::shortened;
use crate::runtime::job::{Destination, Responder};
use crate::runtime::registry::FunctionEntry;
use crate::runtime::{trace, value_scope};
use crate::support::mutation::mutated;
use crate::support::user_code;
use crate::tables::answer_budget::{Expected, Reservation, ReserveFuture};
use crate::tables::served::Finished;
use crate::values::{Encode, Value};

impl Responder {
    pub(super) fn core(&self) -> &Arc<Core> {
        &self.call.core
    }

    /// What is called; none if a value is fetched.
    pub(super) fn entry(&self) -> Option<&'static FunctionEntry> {
        self.call.entry
    }

    /// What becomes of the result, asked once: whoever asks answers.
    fn take_target(&mut self) -> Option<Destination> {
        let owes = std::mem::replace(&mut self.owes, false);
        owes.then_some(self.call.target)
    }

    fn from(&self) -> NodeId {
        self.call.caller
    }

    /// Says that the call was cancelled, unless it is answered.
    pub(super) fn give_up(&mut self) {
        match self.take_target() {
            Some(Destination::Answer(request)) => {
                let outcome = Err(Failure::Cancelled);
                self.core().respond(self.from(), request, outcome);
            }
            Some(target @ Destination::Stay { .. }) => {
                let value = target.unmade(self.core(), Failure::Cancelled);
                self.core().keep(self.from(), &target, value);
            }
            None => {}
        }
    }

    /// Sets room aside for the answer, if such answers are large (AN-1). None if that is not needed; if
    /// it has to be waited for, what to wait for.
    pub(super) fn reserve(
        &self,
        expected: &Expected,
    ) -> Result<Option<Reservation>, ReserveFuture> {
        let bytes = expected.bytes();
        let is_sent = self.owes && self.call.request().is_some() && self.from() != self.core().me;
        if bytes == 0 || !is_sent || mutated!(NoAnswerBudget) {
            return Ok(None);
        }
        let budget = self.core().answers.of(self.from());
        match budget.try_reserve(bytes) {
            Some(room) => Ok(Some(room)),
            None => Err(budget.reserve(bytes)),
        }
    }

    /// The same for an answer of the function.
    pub(super) fn reserve_for_function(&self) -> Result<Option<Reservation>, ReserveFuture> {
        match self.entry() {
            Some(entry) => self.reserve(entry.answers()),
            None => Ok(None),
        }
    }

    /// Waits for room, where that has to be.
    pub(super) async fn room(
        &self,
        reserved: Result<Option<Reservation>, ReserveFuture>,
    ) -> Option<Reservation> {
        match reserved {
            Ok(room) => room,
            Err(reserve) => Some(wait_for_room(Arc::clone(&self.call), reserve).await),
        }
    }

    /// Sends an answer.
    pub(super) fn answer(
        &self,
        request: MessageId,
        mut outcome: Result<value_scope::Encoded, Failure>,
        expected: Option<&Expected>,
        room: Option<Reservation>,
    ) {
        if let Ok(encoded) = &mut outcome
            && self.from() != self.core().me
        {
            if let Some(expected) = expected {
                expected.learn(encoded.payload.len() as u64);
            }
            let answers = &self.core().answers;
            answers.charge(self.from(), room, &mut encoded.payload);
        }
        let outcome = outcome.map_err(shortened);
        self.core().respond(self.from(), request, outcome);
    }

    /// Ends the job with a result, for which room may have been set aside.
    pub(super) fn finish<T: Send + Sync + 'static>(
        mut self,
        outcome: Result<(T, Option<Reservation>), Failure>,
        encode: Option<Encode<T>>,
        each_vector: EachVector<T>,
    ) {
        let Some(target) = self.take_target() else {
            return;
        };
        // D3: what a function says of calls of its own that ran out of its time comes too late. That
        // its time was up is what its caller has to know, be it the caller's clock or this one that
        // is first to tell.
        let outcome = match outcome {
            Err(Failure::Returned(..)) if self.call.is_late() => Err(Failure::DeadlineExceeded),
            outcome => outcome.map_err(shortened),
        };
        self.measure(outcome.is_ok());
        match target {
            Destination::Answer(request) => {
                let (outcome, room) = match outcome {
                    Ok((value, room)) => (encoded(&self, value, encode, each_vector), room),
                    Err(failure) => (Err(failure), None),
                };
                let expected = self.entry().map(FunctionEntry::answers);
                self.answer(request, outcome, expected, room);
            }
            Destination::Stay { .. } => {
                let value = match outcome {
                    Ok((value, _)) => Value::new(value, encode),
                    Err(failure) => target.unmade(self.core(), failure),
                };
                self.core().keep(self.from(), &target, value);
            }
        }
    }

    /// Ends a fetch.
    pub(super) fn finish_with<W>(
        mut self,
        outcome: Result<(W, Arc<Expected>, Option<Reservation>), Failure>,
    ) where
        W: FnOnce(&Arc<Core>) -> Result<value_scope::Encoded, Failure>,
    {
        if let Some(Destination::Answer(request)) = self.take_target() {
            self.measure(outcome.is_ok());
            match outcome {
                Ok((write, expected, room)) => {
                    let written = catch_unwind(AssertUnwindSafe(|| write(self.core())))
                        .unwrap_or_else(|panic| Err(panicked(&*panic)));
                    self.answer(request, written, Some(&expected), room);
                }
                Err(failure) => self.answer(request, Err(failure), None, None),
            }
        }
    }

    /// Ends the job with an answer that is written already.
    pub(super) fn finish_written(
        mut self,
        outcome: Result<(value_scope::Encoded, Option<Reservation>), Failure>,
    ) {
        self.measure(outcome.is_ok());
        let (outcome, room) = match outcome {
            Ok((encoded, room)) => (Ok(encoded), room),
            Err(failure) => (Err(failure), None),
        };
        match self.take_target() {
            Some(Destination::Answer(request)) => self.answer(request, outcome, None, room),
            // There is no value to be kept.
            Some(target @ Destination::Stay { .. }) => {
                let failure = outcome.err().unwrap_or(Failure::Cancelled);
                let value = target.unmade(self.core(), failure);
                self.core().keep(self.from(), &target, value);
            }
            None => {}
        }
    }

    pub(super) fn measure(&self, good: bool) {
        let (core, call) = (self.core(), &self.call);
        let took = call.began.elapsed();
        let number = call
            .entry
            .map_or_else(|| core.registry.len(), FunctionEntry::number);
        core.served.count(number, took, good);
        if !trace::is_watched() {
            return;
        }
        let own = trace::of(call);
        if own.trace != 0 {
            core.served.keep(Finished {
                function: call.entry.map_or(FETCH, FunctionEntry::name),
                caller: call.caller,
                began: call.began,
                took,
                failed: !good,
                trace: own,
                parent: call.caller_trace.span,
            });
        }
    }
}

/// Waits for room for an answer. Who waits is listed meanwhile.
pub(super) async fn wait_for_room(call: Arc<Current>, reserve: ReserveFuture) -> Reservation {
    let request = call.request();
    let _listed = request.map(|request| call.core.answers.hold_back(call.caller, request));
    reserve.await
}

/// SV-1: a job that is dropped, with its task, its thread pool or its value, was cancelled.
impl Drop for Responder {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// Writes a result and lets go of it. Either may panic.
fn encoded<T: 'static>(
    responder: &Responder,
    value: T,
    encode: Option<Encode<T>>,
    each_vector: EachVector<T>,
) -> Result<value_scope::Encoded, Failure> {
    let written = catch_unwind(AssertUnwindSafe(move || {
        let Some(encode) = encode else {
            let type_name = std::any::type_name::<T>().to_owned();
            return Err(Failure::NotSerializable(type_name));
        };
        let core = responder.core();
        let mut value = value;
        let given = Outgoing::Given(&mut value, each_vector);
        let encode = || encode(given, responder.call.codec());
        let mut encoded = value_scope::write_typed::<T>(core, Some(responder.from()), encode)
            .map_err(|error| Failure::BadResult(error.to_string()))?;
        encoded.made_in(core, responder.call.context, responder.from());
        Ok(encoded)
    }));
    written.unwrap_or_else(|panic| Err(panicked(&*panic)))
}

pub(super) fn panicked(panic: &(dyn Any + Send)) -> Failure {
    let message = user_code::panic_message(panic).unwrap_or("(a panic without a message)");
    Failure::Panicked(message.to_owned())
}

/// The span that the function runs in.
pub(super) fn span_of(responder: &Responder) -> tracing::Span {
    let span = tracing::debug_span!(
        "farref.serve",
        worker = %responder.core().name,
        function = responder.entry().map_or(FETCH, FunctionEntry::name),
        caller = tracing::field::Empty,
        trace = trace::of(&responder.call).trace,
        span = trace::of(&responder.call).span,
        parent = responder.call.caller_trace.span,
    );
    if !span.is_disabled() {
        let caller = responder.core().name_of(responder.from());
        span.record("caller", tracing::field::display(caller));
    }
    span
}
