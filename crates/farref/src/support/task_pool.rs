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
//! - **TP-2** A call that is given to a task is carried out by it, or dropped with it: whoever gives one sees to it that
//!   dropping answers it (SV-1).
//! - **TP-3** At most [`MOST_IDLE`] tasks of a function wait, which together take no more than [`MOST_IDLE_BYTES`], and
//!   they end with their worker, whoever still has a handle on that.

use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker, ready};

use pin_project_lite::pin_project;

use super::lock::lock;
use super::mutation::mutated;
use super::simulation::unsteady;
use super::sync::{Handle, Mutex};

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

/// How many tasks of calls `R` may wait. A constant of its own, so that only one way to start such a call is compiled.
struct Reusable<R>(PhantomData<R>);

impl<R> Reusable<R> {
    const MAX_IDLE: usize = most_idle(size_of::<R>());
}

/// The tasks of one worker that wait for calls `C`, by the number of their function.
pub(crate) struct TaskPool<C>(Vec<Arc<IdleTasks<C>>>);

impl<C: Send + 'static> TaskPool<C> {
    pub(crate) fn new(functions: usize) -> Self {
        Self((0..functions).map(|_| Arc::default()).collect())
    }

    /// Carries out a call of the function with this number: in a task that waits for one, or in a new one of the
    /// runtime. `make` says how.
    pub(crate) fn run<R>(
        &self,
        runtime: &Handle,
        function: usize,
        mut call: C,
        make: impl Fn(C) -> R + Send + 'static,
    ) where
        R: Future<Output = ()> + Send + 'static,
    {
        if Reusable::<R>::MAX_IDLE == 0 {
            start(runtime, make(call));
            return;
        }
        let Some(idle) = self.0.get(function) else {
            start(runtime, make(call));
            return;
        };
        while let Some(seat) = idle.take() {
            match seat.give(call) {
                Ok(()) => return,
                // Its task went with the runtime.
                Err(unserved) => call = unserved,
            }
        }
        let task = CallTask {
            call: Some(make(call)),
            make,
            idle: Arc::clone(idle),
            seat: Taken(Arc::default()),
        };
        start(runtime, task);
    }
}

/// Starts a task. Boxed: the compiler makes one kind of task, and not one for each function, which is half of all that it
/// would compile for a function. A task that carries out many calls is boxed once.
fn start(runtime: &Handle, task: impl Future<Output = ()> + Send + 'static) {
    let task: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(task);
    drop(runtime.spawn(unsteady(task)));
}

impl<C> TaskPool<C> {
    /// The tasks that wait end, as if with their runtime, and nobody has told the pool.
    #[cfg(feature = "mutations")]
    #[allow(dead_code, reason = "for `farref-schedules`")]
    pub(crate) fn end_idle_tasks(&self) {
        for tasks in &self.0 {
            let seats = lock(&tasks.0).seats.clone();
            seats.iter().for_each(|seat| seat.leave());
        }
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
impl<C> Drop for TaskPool<C> {
    fn drop(&mut self) {
        self.close();
    }
}

/// Tasks of one function that wait for calls.
struct IdleTasks<C>(Mutex<Idle<C>>);

struct Idle<C> {
    seats: Vec<Arc<Seat<C>>>,
    /// The worker is gone.
    closed: bool,
}

impl<C> Default for IdleTasks<C> {
    fn default() -> Self {
        Self(Mutex::new(Idle {
            seats: Vec::new(),
            closed: false,
        }))
    }
}

impl<C> IdleTasks<C> {
    fn take(&self) -> Option<Arc<Seat<C>>> {
        lock(&self.0).seats.pop()
    }

    /// A task waits for a call, beside others up to so many. Says whether it may.
    fn put(&self, seat: &Arc<Seat<C>>, most: usize) -> bool {
        let mut idle = lock(&self.0);
        let may_wait = !idle.closed && idle.seats.len() < most;
        if may_wait {
            idle.seats.push(Arc::clone(seat));
        }
        may_wait
    }

    fn close(&self) -> Vec<Arc<Seat<C>>> {
        let mut idle = lock(&self.0);
        idle.closed = true;
        std::mem::take(&mut idle.seats)
    }
}

/// Where a task finds its next call.
struct Seat<C> {
    next: Mutex<Next<C>>,
    /// Wakes the task: set before it first waits.
    waker: OnceLock<Waker>,
}

enum Next<C> {
    Nothing,
    Call(C),
    /// There will be none, or there is nobody to take it.
    End,
}

impl<C> Default for Seat<C> {
    fn default() -> Self {
        Self {
            next: Mutex::new(Next::Nothing),
            waker: OnceLock::new(),
        }
    }
}

impl<C> Seat<C> {
    /// Gives a call to the task that waits, unless that is gone.
    fn give(&self, call: C) -> Result<(), C> {
        {
            let mut next = lock(&self.next);
            if let Next::End = *next
                && !mutated!(GiveToTheGone)
            {
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
    fn end(&self) -> Next<C> {
        std::mem::replace(&mut lock(&self.next), Next::End)
    }

    /// A task is always polled with the same waker.
    fn keep_waker(&self, waker: &Waker) {
        self.waker.get_or_init(|| waker.clone());
    }

    /// Not while it is locked: a runtime that has ended drops the task right here.
    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake_by_ref();
        }
    }

    fn take(&self) -> Next<C> {
        let mut next = lock(&self.next);
        match &*next {
            Next::End => Next::End,
            _ => std::mem::replace(&mut next, Next::Nothing),
        }
    }
}

/// The seat of a task, as that has it.
struct Taken<C>(Arc<Seat<C>>);

/// TP-2: the task is gone, be it with the runtime.
impl<C> Drop for Taken<C> {
    fn drop(&mut self) {
        drop(self.0.end());
    }
}

pin_project! {
    /// A task that carries out calls of one function. Fields are dropped in their order.
    struct CallTask<C, M, R> {
        #[pin]
        call: Option<R>,
        make: M,
        idle: Arc<IdleTasks<C>>,
        seat: Taken<C>,
    }
}

impl<C, M, R> Future for CallTask<C, M, R>
where
    M: Fn(C) -> R,
    R: Future<Output = ()>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut this = self.project();
        let seat = &this.seat.0;
        if this.call.is_none() {
            match seat.take() {
                Next::Call(call) => this.call.set(Some((this.make)(call))),
                Next::Nothing => return Poll::Pending,
                Next::End => return Poll::Ready(()),
            }
        }
        if let Some(call) = this.call.as_mut().as_pin_mut() {
            ready!(call.poll(context));
        }
        this.call.set(None);
        seat.keep_waker(context.waker());
        // The next call, which may be there already, wakes it: others have their turn first.
        if this.idle.put(seat, Reusable::<R>::MAX_IDLE) {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

#[cfg(test)]
mod tests {
    use farref_testkit::TEST_TIMEOUT;

    use super::*;

    /// TP-3
    #[test]
    fn no_more_tasks_wait_than_may_and_none_when_the_worker_is_gone() {
        let pool = TaskPool::<()>::new(1);
        let idle = Arc::clone(&pool.0[0]);
        let most = most_idle(100);
        let seats: Vec<Arc<Seat<()>>> = (0..most).map(|_| Arc::default()).collect();
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

    /// TP-2: also if it is given by another thread to a task that is just about to wait for the first time.
    #[test]
    fn tp_2_calls_that_are_given_by_other_threads_are_carried_out() {
        use std::sync::mpsc;

        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .build()
            .unwrap();
        for _ in 0..300 {
            let pool = TaskPool::<mpsc::Sender<()>>::new(1);
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let (told, is_told) = mpsc::channel();
                        for _ in 0..10 {
                            let tell = |told: mpsc::Sender<()>| async move {
                                told.send(()).unwrap();
                            };
                            pool.run(runtime.handle(), 0, told.clone(), tell);
                            is_told.recv_timeout(TEST_TIMEOUT).expect("it is woken");
                        }
                    });
                }
            });
        }
    }

    /// TP-2: a task that is gone has no call, whoever still knows of its seat.
    #[test]
    fn tp_2_a_call_that_a_task_has_not_begun_with_is_dropped_with_it() {
        let call = Arc::new(());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let pool = TaskPool::<Arc<()>>::new(1);
        let run = |call| {
            pool.run(runtime.handle(), 0, call, |call| async move { drop(call) });
        };
        run(Arc::clone(&call));
        runtime.block_on(tokio::task::yield_now());
        let seat = Arc::clone(&lock(&pool.0[0].0).seats[0]);
        run(Arc::clone(&call));
        assert_eq!(Arc::strong_count(&call), 2, "it is given to the idle task");
        drop(runtime);
        assert_eq!(Arc::strong_count(&call), 1);
        assert!(seat.give(Arc::clone(&call)).is_err());
    }

    /// TP-3
    #[test]
    fn tp_3_tasks_that_wait_end_with_a_pool_that_is_dropped() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let pool = TaskPool::<()>::new(1);
        let run = || pool.run(runtime.handle(), 0, (), |()| async {});
        run();
        runtime.block_on(tokio::task::yield_now());
        let alive = || runtime.metrics().num_alive_tasks();
        assert_eq!(alive(), 1, "it waits for another call");
        drop(pool);
        for _ in 0..3 {
            runtime.block_on(tokio::task::yield_now());
        }
        assert_eq!(alive(), 0);
    }
}
