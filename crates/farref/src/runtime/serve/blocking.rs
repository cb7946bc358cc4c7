//! Running plain functions on threads that may block.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use super::responder::panicked;
use super::running::{Packed, enter, supervise};
use crate::agent::Failure;
use crate::codec::vectors::each_in;
use crate::runtime::function::Function;
use crate::runtime::job::Responder;
use crate::support::lock::lock;
use crate::support::simulation::unsteady;
use crate::support::user_code::UserCode;
use crate::tables::answer_budget::Reservation;
use crate::values::{ValueGuard, ValueTicket};

/// A call of a plain function. Only its last step knows which function that is: what comes before is compiled once,
/// and not for each function of a program.
pub(super) struct BlockingCall {
    responder: Responder,
    receiver: Option<ValueGuard>,
    packed: Packed,
    span: tracing::Span,
    room: Option<Reservation>,
    /// Whether it is known that its caller may call it (AU-1).
    authorized: bool,
    run: fn(Self),
}

impl BlockingCall {
    /// A call of `F`.
    pub(super) fn new<F: Function>(
        responder: Responder,
        packed: Packed,
        span: tracing::Span,
    ) -> Self {
        Self {
            responder,
            receiver: None,
            packed,
            span,
            room: None,
            authorized: false,
            run: Self::run::<F>,
        }
    }

    /// Waits, without a thread, for the value that it is on, if it is on one; then for a thread.
    pub(super) fn start(mut self, ticket: Option<ValueTicket>) {
        let Some(ticket) = ticket else {
            return self.submit();
        };
        // Most values are there and free: then nothing has to wait, and everything else can be seen to on the thread.
        let mut waiting = Box::pin(ticket.wait());
        let looked = waiting
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()));
        match looked {
            Poll::Ready(Ok(receiver)) => {
                self.receiver = Some(receiver);
                self.submit();
            }
            Poll::Ready(Err(failure)) => self.fail(failure),
            Poll::Pending => self.wait_for(waiting),
        }
    }

    fn wait_for(
        mut self,
        receiver: impl Future<Output = Result<ValueGuard, Failure>> + Send + 'static,
    ) {
        let runtime = self.responder.core().runtime.clone();
        drop(runtime.spawn(unsteady(async move {
            let to = &self.responder;
            let admitted = {
                let admitting = pin!(Some(async {
                    to.call.authorize()?;
                    let room = to.room(to.reserve_for_function()).await;
                    Ok((receiver.await?, room))
                }));
                supervise(&to.call, admitting).await
            };
            match admitted {
                Ok((receiver, room)) => {
                    (self.receiver, self.room) = (Some(receiver), room);
                    self.authorized = true;
                    self.submit();
                }
                Err(failure) => self.fail(failure),
            }
        })));
    }

    /// Queues it for a thread.
    fn submit(self) {
        let call = Arc::clone(&self.responder.call);
        let place = QueuedCall(Arc::new(CancellableCall {
            user_code: Arc::clone(&call.core.user_code),
            call: Mutex::new(Some(self)),
        }));
        if !call.signal.watch(&Waker::from(Arc::clone(&place.0))) {
            call.core.pool.submit(move || place.run());
        }
    }

    /// Has a thread.
    fn begin(mut self) {
        if let Err(failure) = self.responder.call.check() {
            return self.fail(failure);
        }
        if !self.authorized {
            if let Err(failure) = self.responder.call.authorize() {
                return self.fail(failure);
            }
            self.authorized = true;
        }
        // How large its answer may be is known only when others of its kind are over.
        if self.room.is_none() {
            match self.responder.reserve_for_function() {
                Ok(room) => self.room = room,
                Err(reserve) => {
                    // Without the thread.
                    let runtime = self.responder.core().runtime.clone();
                    drop(runtime.spawn(unsteady(async move {
                        let to = &self.responder;
                        let room = {
                            let room = pin!(Some(async { Ok(to.room(Err(reserve)).await) }));
                            supervise(&to.call, room).await
                        };
                        match room {
                            Ok(room) => {
                                self.room = room;
                                self.submit();
                            }
                            Err(failure) => self.fail(failure),
                        }
                    })));
                    return;
                }
            }
        }
        (self.run)(self);
    }

    fn run<F: Function>(self) {
        let arguments = match self.packed.read::<F>(&self.responder) {
            Ok(arguments) => arguments,
            Err(failure) => return self.responder.finish::<()>(Err(failure), None, each_in),
        };
        let Self {
            responder,
            receiver,
            span,
            room,
            ..
        } = self;
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
        let outcome = outcome.map(|value| (value, room));
        responder.finish(outcome, F::encoder(), F::each_vector);
    }

    fn fail(self, failure: Failure) {
        self.responder.finish::<()>(Err(failure), None, each_in);
    }
}

/// A call that waits for a thread. Waking it is cancelling it: it is dropped where it waits, and with
/// it what it carries (SV-2).
struct CancellableCall {
    call: Mutex<Option<BlockingCall>>,
    user_code: Arc<UserCode>,
}

impl CancellableCall {
    fn take(&self) -> Option<BlockingCall> {
        lock(&self.call).take()
    }
}

impl Wake for CancellableCall {
    fn wake(self: Arc<Self>) {
        if let Some(mut call) = self.take() {
            // Whoever asked hears of it at once.
            call.responder.give_up();
            // The value that it was called on may go with it, and that is the program's.
            self.user_code.run(move || drop(call));
        }
    }
}

/// A call's place in the queue of the pool. The call goes with it (SV-1): the signal, which the call
/// refers to, refers to the call in turn.
struct QueuedCall(Arc<CancellableCall>);

impl QueuedCall {
    fn run(self) {
        if let Some(call) = self.0.take() {
            call.begin();
        }
    }
}

impl Drop for QueuedCall {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}
