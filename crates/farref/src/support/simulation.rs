//! What is different while a thread simulates a group: nothing runs on another thread, and whatever is left to chance
//! elsewhere follows from a seed.
//!
//! Without the feature `simulation` all of this is nothing at compile time.
//!
//! # Invariants
//!
//! - **SM-1** In a simulation what programs see depends on nothing but the seed: there are no other threads, the clock is the
//!   runtime's, random numbers and the order in which tasks run are drawn, and the states of hash maps are fixed. It is
//!   compared up to the end of all programs. In which order workers shut down then may differ from run to run.
//! - **SM-2** A task that is held back is polled in the end: it is woken before it is held back.

#[cfg(not(feature = "simulation"))]
mod real {
    /// Whether this thread simulates.
    pub(crate) fn is_on() -> bool {
        false
    }

    /// A number below `below`, in a simulation.
    pub(crate) fn draw(_below: u64) -> Option<u64> {
        None
    }

    /// A task as it is.
    pub(crate) fn unsteady<F: Future>(task: F) -> F {
        task
    }

    pub(crate) use foldhash::fast::RandomState;
}

#[cfg(not(feature = "simulation"))]
pub(crate) use real::{RandomState, draw, is_on, unsteady};

#[cfg(feature = "simulation")]
pub(crate) use seeded::{RandomState, is_on, unsteady};
#[cfg(feature = "simulation")]
pub use seeded::{draw, spawn, with_seed};

#[cfg(feature = "simulation")]
mod seeded {
    use std::cell::Cell;
    use std::hash::BuildHasher;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use foldhash::fast::{FoldHasher, SeedableRandomState};
    use pin_project_lite::pin_project;
    use tokio::task::JoinHandle;

    use crate::rendezvous::random;
    pub use crate::rendezvous::random::draw;

    thread_local! {
        static IS_ON: Cell<bool> = const { Cell::new(false) };
    }

    /// Does something that simulates a group: what the programs of workers see which are started in it, on this thread and
    /// in a runtime of this thread alone, follows from the seed (SM-1).
    pub fn with_seed<T>(seed: u64, f: impl FnOnce() -> T) -> T {
        struct Restore(bool);

        impl Drop for Restore {
            fn drop(&mut self) {
                IS_ON.set(self.0);
            }
        }

        let _restore = Restore(IS_ON.replace(true));
        random::with_seed(seed, f)
    }

    /// Whether this thread simulates.
    pub(crate) fn is_on() -> bool {
        IS_ON.try_with(Cell::get).unwrap_or_default()
    }

    /// Starts a task that is held back now and then, as those of workers are.
    pub fn spawn<T: Send + 'static>(
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        tokio::spawn(unsteady(task))
    }

    pin_project! {
        /// A task that is sometimes held back when it could run, so that others come first.
        pub(crate) struct Unsteady<F> {
            #[pin]
            task: F,
        }
    }

    /// A task that is held back now and then.
    pub(crate) fn unsteady<F: Future>(task: F) -> Unsteady<F> {
        Unsteady { task }
    }

    /// One poll of so many is put off.
    const HELD_BACK: u64 = 6;

    impl<F: Future> Future for Unsteady<F> {
        type Output = F::Output;

        fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
            if is_on() && draw(HELD_BACK) == Some(0) {
                // SM-2
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            self.project().task.poll(context)
        }
    }

    /// As that of `foldhash`, but always the same in a simulation (SM-1).
    #[derive(Clone)]
    pub(crate) struct RandomState(SeedableRandomState);

    impl Default for RandomState {
        fn default() -> Self {
            Self(match is_on() {
                true => SeedableRandomState::fixed(),
                false => SeedableRandomState::random(),
            })
        }
    }

    impl BuildHasher for RandomState {
        type Hasher = FoldHasher<'static>;

        fn build_hasher(&self) -> FoldHasher<'static> {
            self.0.build_hasher()
        }
    }
}
