//! Running plain functions on threads that may block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::responder::{Responder, panicked};
use super::running::{Packed, enter, supervise};
use crate::agent::Failure;
use crate::runtime::function::Function;
use crate::support::lock::lock;
use crate::support::user_code::UserCode;
use crate::tables::answer_budget::Reservation;
use crate::values::ValueGuard;

pub(super) fn run_blocking<F: Function>(
    responder: Responder,
    receiver: Option<ValueGuard>,
    packed: Packed,
    span: tracing::Span,
    room: Option<Reservation>,
) {
    let call = Arc::clone(&responder.call);
    let task = move |responder: Responder| {
        if let Err(failure) = responder.call.check() {
            return responder.finish::<F::Output>(Err(failure), None);
        }
        // How large its answer may be is known only when others of its kind are over.
        let reserved = match room {
            Some(room) => Ok(Some(room)),
            None => responder.reserve_for_function(),
        };
        let room = match reserved {
            Ok(room) => room,
            Err(reserve) => {
                // Without the thread.
                let runtime = responder.core().runtime.clone();
                drop(runtime.spawn(async move {
                    let room = {
                        let room = pin!(Some(async { Ok(responder.room(Err(reserve)).await) }));
                        supervise(&responder.call, room).await
                    };
                    match room {
                        Ok(room) => {
                            run_blocking::<F>(responder, receiver, packed, span, room);
                        }
                        Err(failure) => responder.finish::<F::Output>(Err(failure), None),
                    }
                }));
                return;
            }
        };
        let arguments = match packed.read::<F>(&responder) {
            Ok(arguments) => arguments,
            Err(failure) => return responder.finish::<F::Output>(Err(failure), None),
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _runtime = responder.core().runtime.enter();
            responder.call.enter(|| {
                span.in_scope(|| {
                    let guard = enter::<F>(receiver)?;
                    // A plain function is over when it has been polled once.
                    match pin!(F::run(guard, arguments))
                        .poll(&mut Context::from_waker(Waker::noop()))
                    {
                        Poll::Ready(outcome) => outcome,
                        Poll::Pending => {
                            Err(Failure::Panicked("a plain function waits".to_owned()))
                        }
                    }
                })
            })
        }));
        let outcome = outcome.unwrap_or_else(|panic| Err(panicked(&*panic)));
        responder.finish(outcome.map(|value| (value, room)), F::encoder());
    };
    let place = QueuedJob(Arc::new(CancellableJob {
        task: Mutex::new(Some((responder, Box::new(task)))),
        user_code: Arc::clone(&call.core.user_code),
    }));
    if !call.signal.watch(&Waker::from(Arc::clone(&place.0))) {
        call.core.pool.submit(move || place.run());
    }
}

/// A job that waits for a thread. Waking it is cancelling it: it is dropped where it waits, and with
/// it what it carries (SV-2).
struct CancellableJob {
    task: Mutex<Option<(Responder, BlockingTask)>>,
    user_code: Arc<UserCode>,
}

type BlockingTask = Box<dyn FnOnce(Responder) + Send>;

impl CancellableJob {
    fn take(&self) -> Option<(Responder, BlockingTask)> {
        lock(&self.task).take()
    }
}

impl Wake for CancellableJob {
    fn wake(self: Arc<Self>) {
        if let Some((mut responder, task)) = self.take() {
            // Whoever asked hears of it at once.
            responder.give_up();
            // The value that it was called on may go with it, and that is the program's.
            self.user_code.run(move || drop((responder, task)));
        }
    }
}

/// A job's place in the queue of the pool. The job goes with it (SV-1): the signal, which the job
/// refers to, refers to the job in turn.
struct QueuedJob(Arc<CancellableJob>);

impl QueuedJob {
    fn run(self) {
        if let Some((responder, task)) = self.0.take() {
            task(responder);
        }
    }
}

impl Drop for QueuedJob {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}
