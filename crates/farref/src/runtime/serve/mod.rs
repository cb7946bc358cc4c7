//! Carrying out calls: decoding arguments, waiting for the receiver, running the function, and handing
//! its result back.
//!
//! # Invariants
//!
//! - **SV-1** A job that was started ends in exactly one answer, or one value, whatever the function does: return, fail,
//!   panic, overrun its deadline, be cancelled, or never be polled again.
//! - **SV-2** A cancelled job that has not begun never begins; one that waits is dropped where it
//!   waits (D4).
//! - **SV-3** Arguments are read where the function runs, on its task or its thread, never by whoever
//!   brought the call: reading them is code of the program (UC-1).

mod alone;
mod blocking;
pub(crate) mod pulling;
mod registration;
mod responder;
mod running;

use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;

use tokio::runtime::Handle;
use tracing::{Instrument as _, Span};

use self::alone::run_alone;
use self::blocking::BlockingCall;
use self::responder::span_of;
use self::running::{Packed, run, supervise, wait_for_receiver};
use super::core::Core;
use super::function::{Function, Mode};
use super::job::{Job, Responder};
use super::registry::FunctionEntry;
use super::value_scope;
use crate::agent::Failure;
use crate::support::simulation::unsteady;
use crate::values::{Access as _, ValueGuard, ValueTicket};

impl Job {
    pub(crate) fn start(mut self) {
        // SV-1: from here on.
        self.responder.owes = true;
        match self.responder.entry() {
            Some(entry) => entry.serve(self),
            None => self.fetch(),
        }
    }

    /// Sends the value itself.
    fn fetch(self) {
        let (responder, _, ticket) = split(self);
        let runtime = responder.core().runtime.clone();
        runtime.spawn(unsteady(async move {
            let fetched = {
                let fetching = pin!(Some(async {
                    let Some(ValueGuard::Shared(guard, permit)) = wait_for_receiver(ticket).await?
                    else {
                        return Err(Failure::BadArguments("nothing to fetch".to_owned()));
                    };
                    // The permit is given back after the value, wherever this ends: what was bound last goes first.
                    let (permit, guard) = (permit, guard);
                    let expected = responder.core().answers.fetched(guard.type_name());
                    let room = responder.room(responder.reserve(&expected)).await;
                    Ok((guard, permit, expected, room))
                }));
                supervise(&responder.call, fetching).await
            };
            let call = Arc::clone(&responder.call);
            responder.finish_with(fetched.map(|(guard, permit, expected, room)| {
                let write = move |core: &Arc<Core>| {
                    let _permit = permit;
                    let guard = guard;
                    let mut written = None;
                    let encoded = value_scope::write(core, Some(call.caller), || {
                        let bytes = guard.encode(call.codec());
                        written = Some(bytes.is_some());
                        bytes.unwrap_or_else(|| Ok(Vec::new()))
                    });
                    match encoded {
                        _ if written == Some(false) => {
                            Err(Failure::NotSerializable(guard.type_name().to_owned()))
                        }
                        Ok(mut encoded) => {
                            encoded.made_in(core, call.context, call.caller);
                            Ok(encoded)
                        }
                        Err(error) => Err(Failure::BadResult(error.to_string())),
                    }
                };
                (write, expected, room)
            }));
        }));
    }
}

/// Carries out a call of `F`.
pub(crate) fn serve<F: Function>(job: Job) {
    let span = span_of(&job.responder);
    if Kind::<F>::IS_POOLED && span.is_disabled() {
        // Most functions are on no value, and most programs have no subscriber.
        let core = Arc::clone(job.responder.core());
        let function = job
            .responder
            .entry()
            .map_or(usize::MAX, FunctionEntry::number);
        return core.tasks.run(&core.runtime, function, job, |job| {
            let (responder, packed, _) = split(job);
            run_alone::<F>(responder, packed)
        });
    }
    let (responder, packed, ticket) = split(job);
    let runtime = responder.core().runtime.clone();
    if Kind::<F>::IS_BLOCKING {
        BlockingCall::new::<F>(responder, packed, span).start(ticket);
    } else if Kind::<F>::IS_ALONE {
        spawn_instrumented(&runtime, span, run_alone::<F>(responder, packed));
    } else {
        spawn(&runtime, span, run::<F>(responder, ticket, packed));
    }
}

/// Which way a function goes. Constants of their own, so that the other ways are not compiled for it.
struct Kind<F>(PhantomData<F>);

impl<F: Function> Kind<F> {
    const IS_BLOCKING: bool = matches!(F::MODE, Mode::Blocking);
    const IS_ALONE: bool = !F::Access::NEEDS_RECEIVER;
    const IS_POOLED: bool = Self::IS_ALONE && !Self::IS_BLOCKING;
}

fn spawn(runtime: &Handle, span: Span, call: impl Future<Output = ()> + Send + 'static) {
    match span.is_disabled() {
        true => drop(runtime.spawn(unsteady(call))),
        false => spawn_instrumented(runtime, span, call),
    }
}

/// Boxed: one kind of task for the functions of a program, and not one for each.
fn spawn_instrumented(
    runtime: &Handle,
    span: Span,
    call: impl Future<Output = ()> + Send + 'static,
) {
    let call: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(call);
    drop(runtime.spawn(unsteady(call.instrument(span))));
}

/// Takes a job apart: the answer that it owes, its arguments, and its ticket for a value.
fn split(job: Job) -> (Responder, Packed, Option<ValueTicket>) {
    let packed = Packed {
        arguments: job.arguments,
        references: job.references,
    };
    (job.responder, packed, job.ticket)
}
