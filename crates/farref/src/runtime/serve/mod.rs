//! Carrying out calls: decoding arguments, waiting for the receiver, running the function, and handing
//! its result back.
//!
//! # Invariants
//!
//! - **SV-1** A job ends in exactly one answer, or one value, whatever the function does: return, fail,
//!   panic, overrun its deadline, be cancelled, or never be polled again.
//! - **SV-2** A cancelled job that has not begun never begins; one that waits is dropped where it
//!   waits (D4).
//! - **SV-3** Arguments are read where the function runs, on its task or its thread, never by whoever
//!   brought the call: reading them is code of the program (UC-1).

mod blocking;
mod registration;
mod responder;
mod running;

use std::sync::Arc;

use tracing::Instrument as _;

use self::blocking::run_blocking;
use self::responder::{Execution, Responder, span_of};
use self::running::{Packed, run, supervise, wait_for_receiver};
use super::core::Core;
use super::current::Current;
use super::function::{Function, Mode};
use super::job::{Destination, Job};
use super::registry::FunctionEntry;
use super::{trace, value_scope};
use crate::agent::Failure;
use crate::values::{ValueGuard, ValueTicket};

impl Job {
    pub(crate) fn start(self) {
        match self.entry {
            Some(entry) => entry.serve(self),
            None => self.fetch(),
        }
    }

    /// Sends the value itself.
    fn fetch(self) {
        let (responder, _, ticket) = split(self);
        let runtime = responder.core.runtime.clone();
        runtime.spawn(async move {
            let fetched = supervise(&responder.call, async {
                let Some(ValueGuard::Shared(guard, permit)) = wait_for_receiver(ticket).await?
                else {
                    return Err(Failure::BadArguments("nothing to fetch".to_owned()));
                };
                // The permit is given back after the lock, wherever this ends: what was bound last goes first.
                let (permit, guard) = (permit, guard);
                let expected = responder.core.answers.fetched(guard.type_name());
                let room = responder.room(responder.reserve(&expected)).await;
                Ok((guard, permit, expected, room))
            })
            .await;
            let (context, from) = (responder.call.current.context, responder.from);
            responder.finish_with(fetched.map(|(guard, permit, expected, room)| {
                let write = move |core: &Arc<Core>| {
                    let _permit = permit;
                    let guard = guard;
                    let mut written = None;
                    let encoded = value_scope::write(core, || {
                        let bytes = guard.encode(core.agent().codec());
                        written = Some(bytes.is_some());
                        bytes.unwrap_or_else(|| Ok(Vec::new()))
                    });
                    match encoded {
                        _ if written == Some(false) => {
                            Err(Failure::NotSerializable(guard.type_name().to_owned()))
                        }
                        Ok(mut encoded) => {
                            encoded.made_in(core, context, from);
                            Ok(encoded)
                        }
                        Err(error) => Err(Failure::BadResult(error.to_string())),
                    }
                };
                (write, expected, room)
            }));
        });
    }
}

/// Carries out a call of `F`.
pub(crate) fn serve<F: Function>(job: Job) {
    let (responder, packed, ticket) = split(job);
    let span = span_of(&responder);
    let runtime = responder.core.runtime.clone();
    match F::MODE {
        Mode::Task => drop(runtime.spawn(run::<F>(responder, ticket, packed).instrument(span))),
        Mode::Blocking => match ticket {
            None => run_blocking::<F>(responder, None, packed, span, None),
            Some(ticket) => drop(runtime.spawn(async move {
                let admitted = supervise(&responder.call, async {
                    let room = responder.room(responder.reserve_for_function()).await;
                    Ok((wait_for_receiver(Some(ticket)).await?, room))
                });
                match admitted.await {
                    Ok((receiver, room)) => {
                        run_blocking::<F>(responder, receiver, packed, span, room);
                    }
                    Err(failure) => responder.finish::<F::Output>(Err(failure), None),
                }
            })),
        },
    }
}

/// Takes a job apart: the answer that it owes, its arguments, and its ticket for a value.
fn split(job: Job) -> (Responder, Packed, Option<ValueTicket>) {
    let name = job.name();
    let call = Execution {
        current: Current {
            core: Arc::clone(&job.core),
            caller: job.from,
            request: match job.target {
                Destination::Answer(request) => Some(request),
                Destination::Stay { .. } => None,
            },
            deadline: job.deadline,
            trace: trace::of_serving(job.trace),
            context: job.context,
            chain: job.chain,
        },
        parent: job.trace.span,
        function: job.entry.map_or(0, FunctionEntry::id),
        signal: job.signal,
    };
    let responder = Responder {
        name,
        entry: job.entry,
        core: job.core,
        from: job.from,
        target: Some(job.target),
        call,
        began: job.began,
    };
    let packed = Packed {
        arguments: job.arguments,
        references: job.references,
    };
    (responder, packed, job.ticket)
}
