//! Running a function that is on no value, as a task.
//!
//! By hand and not as an `async fn`, because each such call has one in its task, and a new task moves it about before that:
//! what the compiler makes of an `async fn` with the same content is several times as large.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use pin_project_lite::pin_project;

use super::responder::wait_for_room;
use super::running::{Packed, Supervision, drop_guarded, enter};
use crate::agent::Failure;
use crate::codec::vectors::EachVector;
use crate::runtime::function::Function;
use crate::runtime::job::Responder;
use crate::tables::answer_budget::Reservation;
use crate::values::Encode;

type WaitForRoom = Pin<Box<dyn Future<Output = Reservation> + Send>>;

pin_project! {
    /// A call from its arrival to its answer. Fields are dropped in their order: the function before the answer
    /// that is owed.
    struct RunAlone<B, R, T> {
        #[pin]
        running: Option<R>,
        // What makes the function of its arguments.
        begin: Option<(B, Packed)>,
        waits: Option<WaitForRoom>,
        room: Option<Reservation>,
        supervision: Supervision,
        encode: Option<Encode<T>>,
        each_vector: EachVector<T>,
        responder: Option<Responder>,
    }
}

/// Carries out a call of a function that is on no value.
pub(super) fn run_alone<F: Function>(
    responder: Responder,
    packed: Packed,
) -> impl Future<Output = ()> + Send {
    let begin = |responder: &Responder, packed: Packed| {
        let arguments = packed.read::<F>(responder)?;
        Ok(F::run(enter::<F>(None)?, arguments))
    };
    RunAlone {
        running: None,
        begin: Some((begin, packed)),
        waits: None,
        room: None,
        supervision: Supervision::default(),
        encode: F::encoder(),
        each_vector: F::each_vector,
        responder: Some(responder),
    }
}

impl<B, R, T> Future for RunAlone<B, R, T>
where
    B: FnOnce(&Responder, Packed) -> Result<R, Failure>,
    R: Future<Output = Result<T, Failure>>,
    T: Send + Sync + 'static,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let Some(responder) = this.responder.as_ref() else {
            return Poll::Ready(());
        };
        let call = &responder.call;
        let checked = match this.begin {
            Some(_) => call.check(),
            None => Ok(()),
        };
        let outcome = match checked {
            Err(failure) => Err(failure),
            Ok(()) => ready!(this.supervision.poll(call, context, |context| {
                if let Some((begin, packed)) = this.begin.take() {
                    call.authorize()?;
                    this.running.set(Some(begin(responder, packed)?));
                    match responder.reserve_for_function() {
                        Ok(room) => *this.room = room,
                        Err(reserve) => {
                            let wait = wait_for_room(Arc::clone(call), reserve);
                            *this.waits = Some(Box::pin(wait));
                        }
                    }
                }
                if let Some(waits) = this.waits {
                    *this.room = Some(ready!(waits.as_mut().poll(context)));
                    *this.waits = None;
                }
                match this.running.as_mut().as_pin_mut() {
                    Some(running) => running.poll(context),
                    None => Poll::Pending,
                }
            })),
        };
        drop_guarded(|| {
            this.running.set(None);
            *this.begin = None;
            *this.waits = None;
        });
        let room = this.room.take();
        if let Some(responder) = this.responder.take() {
            let outcome = outcome.map(|value| (value, room));
            responder.finish(outcome, *this.encode, *this.each_vector);
        }
        Poll::Ready(())
    }
}
