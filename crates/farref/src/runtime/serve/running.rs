//! Running functions as tasks: reading arguments, waiting for the receiver, time limits, cancellation.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::time::{Sleep, sleep_until};

use super::responder::panicked;
use crate::agent::Failure;
use crate::codec::Payload;
use crate::codec::vectors::ArgumentList as _;
use crate::runtime::current::Current;
use crate::runtime::function::Function;
use crate::runtime::handle::Handle;
use crate::runtime::job::Responder;
use crate::runtime::value_scope;
use crate::support::polled;
use crate::values::sealed::ReceiverGuard;
use crate::values::{Access, ValueGuard, ValueTicket};

/// Arguments as they came.
pub(super) struct Packed {
    pub(super) arguments: Payload,
    pub(super) references: Vec<Arc<Handle>>,
}

impl Packed {
    pub(super) fn read<F: Function>(self, responder: &Responder) -> Result<F::Arguments, Failure> {
        let call = &responder.call;
        let codec = call.core.agent().codec();
        let reading = Some(value_scope::Reading {
            core: Arc::clone(&call.core),
            from: call.caller,
            context: call.context,
        });
        let read = catch_unwind(AssertUnwindSafe(|| {
            let Self {
                arguments,
                references,
            } = self;
            value_scope::read(
                codec,
                arguments,
                references,
                reading,
                F::PARAMETERS,
                F::Arguments::each_vector,
            )
        }));
        match read {
            Ok(Ok(arguments)) => Ok(arguments),
            Ok(Err(value_scope::Unread::Mismatch(reason))) => Err(Failure::TypeMismatch(reason)),
            Ok(Err(value_scope::Unread::Codec(reason))) => {
                Err(Failure::BadArguments(reason.to_string()))
            }
            Err(panic) => Err(panicked(&*panic)),
        }
    }
}

/// Runs a function on the value that it was called on.
pub(super) async fn run<F: Function>(
    responder: Responder,
    ticket: Option<ValueTicket>,
    packed: Packed,
) {
    let outcome = {
        let to = &responder;
        let running = pin!(Some(async move {
            to.call.authorize()?;
            let arguments = packed.read::<F>(to)?;
            let room = to.room(to.reserve_for_function()).await;
            let guard = enter::<F>(wait_for_receiver(ticket).await?)?;
            Ok((F::run(guard, arguments).await?, room))
        }));
        supervise(&to.call, running).await
    };
    responder.finish(outcome, F::encoder(), F::each_vector);
}

/// Runs a future until it is done, panics, is cancelled, or is out of time; and drops it.
pub(super) async fn supervise<T>(
    call: &Arc<Current>,
    mut future: Pin<&mut Option<impl Future<Output = Result<T, Failure>>>>,
) -> Result<T, Failure> {
    let outcome = match call.check() {
        Err(failure) => Err(failure),
        Ok(()) => {
            let mut supervision = Supervision::default();
            poll_fn(|context| {
                supervision.poll(call, context, |context| {
                    match future.as_mut().as_pin_mut() {
                        Some(future) => future.poll(context),
                        None => Poll::Pending,
                    }
                })
            })
            .await
        }
    };
    drop_guarded(|| future.set(None));
    outcome
}

/// What looks after something that runs.
#[derive(Default)]
pub(super) struct Supervision {
    timer: Option<Pin<Box<Sleep>>>,
}

impl Supervision {
    /// Polls it as a part of its call. It is over when it is done, panics, is cancelled, or is out of time.
    pub(super) fn poll<T>(
        &mut self,
        call: &Arc<Current>,
        context: &mut Context<'_>,
        poll: impl FnOnce(&mut Context<'_>) -> Poll<Result<T, Failure>>,
    ) -> Poll<Result<T, Failure>> {
        let polled = catch_unwind(AssertUnwindSafe(|| {
            polled::polling(call.function(), || call.enter(|| poll(context)))
        }));
        match polled {
            Ok(Poll::Ready(outcome)) => return Poll::Ready(outcome),
            Ok(Poll::Pending) => {}
            Err(panic) => return Poll::Ready(Err(panicked(&*panic))),
        }
        if call.signal.watch(context.waker()) {
            return Poll::Ready(Err(Failure::Cancelled));
        }
        // Only what has to wait needs a timer.
        if let Some(at) = call.deadline {
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(sleep_until(at.into())));
            if timer.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(Failure::DeadlineExceeded));
            }
        }
        Poll::Pending
    }
}

/// Drops what a function leaves behind that did not come to its end. Its destructors are the
/// program's: if one panics, the call has an outcome all the same.
pub(super) fn drop_guarded(drop: impl FnOnce()) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(drop)) {
        tracing::error!(failure = ?panicked(&*panic), "a destructor panicked");
    }
}

pub(super) async fn wait_for_receiver(
    ticket: Option<ValueTicket>,
) -> Result<Option<ValueGuard>, Failure> {
    match ticket {
        Some(ticket) => ticket.wait().await.map(Some),
        None => Ok(None),
    }
}

pub(super) fn enter<F: Function>(
    admission: Option<ValueGuard>,
) -> Result<<F::Access as Access>::Guard, Failure> {
    F::Access::enter(ReceiverGuard(admission)).ok_or_else(|| {
        let wanted = std::any::type_name::<<F::Access as Access>::Target>();
        Failure::TypeMismatch(format!("the value is not a `{wanted}`"))
    })
}
