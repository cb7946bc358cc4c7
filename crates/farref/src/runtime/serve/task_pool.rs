//! Tasks that carry out one call after the other.
//!
//! Making a task takes memory from the allocator, and entries in lists of the runtime: for a short function that is
//! more than all else that is done for it. So the task of a call that is answered waits for another call of the same
//! function, which then finds its place and its memory ready.
//!
//! # Invariants
//!
//! - **TP-1** A task has one call at a time, and a call that finds no task idle gets a new one: no call waits for
//!   another one's function to end. (A task that has just answered may be idle a moment before its thread can poll it.)
//! - **TP-2** A call that is given to a task is carried out by it, or dropped with it and answered thereby (SV-1).
//! - **TP-3** At most [`MOST_IDLE`] tasks of a function wait, which together take no more than [`MOST_IDLE_BYTES`], and
//!   they end with their worker, whoever still has a handle on that.

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll, Waker, ready};

use pin_project_lite::pin_project;

use super::responder::Responder;
use super::running::Packed;
use crate::support::lock::lock;

/// So many tasks of one function wait for calls at most (TP-3).
const MOST_IDLE: usize = 256;

/// And take so many bytes at most (TP-3): what a burst of calls needed is not kept for ever.
const MOST_IDLE_BYTES: usize = 128 << 10;

/// So many tasks of this size may wait (TP-3).
const fn most_idle(size: usize) -> usize {
    if size == 0 || size > MOST_BYTES {
        return 0;
    }
    let most = MOST_IDLE_BYTES / size;
    if most < MOST_IDLE { most } else { MOST_IDLE }
}

/// Tasks with more state than this are not kept (TP-3).
const MOST_BYTES: usize = 4 << 10;

/// The tasks of one worker that wait for calls, by the [number](crate::runtime::registry::FunctionEntry::number) of
/// their function.
pub(crate) struct TaskPool(Vec<Arc<IdleTasks>>);

impl TaskPool {
    pub(crate) fn new(functions: usize) -> Self {
        Self((0..functions).map(|_| Arc::default()).collect())
    }

    /// The tasks of the function with this number.
    pub(super) fn of(&self, function: usize) -> Option<&Arc<IdleTasks>> {
        self.0.get(function)
    }

    /// TP-3: from now on no task waits.
    pub(crate) fn close(&self) {
        for tasks in &self.0 {
            for seat in tasks.close() {
                seat.leave();
            }
        }
    }
}

/// A worker that is dropped without having ended.
impl Drop for TaskPool {
    fn drop(&mut self) {
        self.close();
    }
}

/// Tasks of one function that wait for calls.
#[derive(Default)]
pub(super) struct IdleTasks(Mutex<Idle>);

#[derive(Default)]
struct Idle {
    seats: Vec<Arc<Seat>>,
    /// The worker is gone.
    closed: bool,
}

impl IdleTasks {
    fn take(&self) -> Option<Arc<Seat>> {
        lock(&self.0).seats.pop()
    }

    /// A task waits for a call, beside others up to so many. Says whether it may.
    fn put(&self, seat: &Arc<Seat>, most: usize) -> bool {
        let mut idle = lock(&self.0);
        let may_wait = !idle.closed && idle.seats.len() < most;
        if may_wait {
            idle.seats.push(Arc::clone(seat));
        }
        may_wait
    }

    fn close(&self) -> Vec<Arc<Seat>> {
        let mut idle = lock(&self.0);
        idle.closed = true;
        std::mem::take(&mut idle.seats)
    }
}

/// A call as it is given to a task.
pub(super) struct GivenCall {
    pub(super) responder: Responder,
    pub(super) packed: Packed,
}

impl GivenCall {
    /// Carries it out: in a task that waits for one, or in a new one. `make` says how.
    pub(super) fn run<R>(mut self, make: impl Fn(Responder, Packed) -> R + Send + 'static)
    where
        R: Future<Output = ()> + Send + 'static,
    {
        loop {
            let Some(idle) = self.idle_tasks().filter(|_| size_of::<R>() <= MOST_BYTES) else {
                let runtime = self.responder.core().runtime.clone();
                drop(runtime.spawn(make(self.responder, self.packed)));
                return;
            };
            let Some(seat) = idle.take() else {
                let idle = Arc::clone(idle);
                let runtime = self.responder.core().runtime.clone();
                drop(runtime.spawn(CallTask {
                    call: Some(make(self.responder, self.packed)),
                    make,
                    idle,
                    seat: Taken(Arc::default()),
                }));
                return;
            };
            match seat.give(self) {
                Ok(()) => return,
                // Its task went with the runtime.
                Err(unserved) => self = unserved,
            }
        }
    }

    /// The tasks of its function.
    fn idle_tasks(&self) -> Option<&Arc<IdleTasks>> {
        let entry = self.responder.entry()?;
        self.responder.core().tasks.of(entry.number())
    }
}

/// Where a task finds its next call.
#[derive(Default)]
struct Seat {
    next: Mutex<Next>,
    /// Wakes the task: set before it first waits.
    waker: OnceLock<Waker>,
}

#[derive(Default)]
enum Next {
    #[default]
    Nothing,
    Call(GivenCall),
    /// There will be none, or there is nobody to take it.
    End,
}

impl Seat {
    /// Gives a call to the task that waits, unless that is gone.
    fn give(&self, call: GivenCall) -> Result<(), GivenCall> {
        {
            let mut next = lock(&self.next);
            if let Next::End = *next {
                return Err(call);
            }
            *next = Next::Call(call);
        }
        self.wake();
        Ok(())
    }

    /// Lets the task end.
    fn leave(&self) {
        drop(self.end());
        self.wake();
    }

    /// From now on no call is taken. Gives back the one that was given last, if nobody has begun with it.
    fn end(&self) -> Next {
        std::mem::replace(&mut lock(&self.next), Next::End)
    }

    /// Not while it is locked: a runtime that has ended drops the task right here.
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    fn take(&self) -> Next {
        let mut next = lock(&self.next);
        match &*next {
            Next::End => Next::End,
            _ => std::mem::take(&mut next),
        }
    }
}

/// The seat of a task, as that has it.
struct Taken(Arc<Seat>);

/// TP-2: the task is gone, be it with the runtime.
impl Drop for Taken {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

pin_project! {
    /// A task that carries out calls of one function. Fields are dropped in their order.
    struct CallTask<M, R> {
        #[pin]
        call: Option<R>,
        make: M,
        idle: Arc<IdleTasks>,
        seat: Taken,
    }
}

impl<M, R> Future for CallTask<M, R>
where
    M: Fn(Responder, Packed) -> R,
    R: Future<Output = ()>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let seat = &this.seat.0;
        if this.call.is_none() {
            match seat.take() {
                Next::Call(GivenCall { responder, packed }) => {
                    this.call.set(Some((this.make)(responder, packed)));
                }
                Next::Nothing => return Poll::Pending,
                Next::End => return Poll::Ready(()),
            }
        }
        if let Some(call) = this.call.as_mut().as_pin_mut() {
            ready!(call.poll(context));
        }
        this.call.set(None);
        // A task is always polled with the same waker.
        seat.waker.get_or_init(|| context.waker().clone());
        // The next call, which may be there already, wakes it: others have their turn first.
        if this.idle.put(seat, most_idle(size_of::<R>())) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TP-3
    #[test]
    fn no_more_tasks_wait_than_may_and_none_when_the_worker_is_gone() {
        let pool = TaskPool::new(1);
        let idle = Arc::clone(pool.of(0).unwrap());
        let most = most_idle(100);
        let seats: Vec<Arc<Seat>> = (0..most).map(|_| Arc::default()).collect();
        assert!(seats.iter().all(|seat| idle.put(seat, most)));
        assert!(!idle.put(&Arc::default(), most));
        pool.close();
        assert!(
            seats
                .iter()
                .all(|seat| matches!(*lock(&seat.next), Next::End))
        );
        assert!(!idle.put(&Arc::default(), most));
        assert!(idle.take().is_none());
    }

    /// TP-3
    #[test]
    fn the_larger_tasks_are_the_fewer_of_them_wait() {
        for size in 0..2 * MOST_BYTES {
            let most = most_idle(size);
            assert!(
                most <= MOST_IDLE && most * size <= MOST_IDLE_BYTES,
                "{size}"
            );
        }
        assert_eq!(most_idle(100), MOST_IDLE);
        assert!(most_idle(MOST_BYTES) >= 32);
    }
}
