//! Threads for what takes as long as somebody else likes: reading the memory of another process, say.
//!
//! Nothing here waits for them, and nobody depends on there being one: where none can be had, the caller is told so and
//! goes another way.
//!
//! # Invariants
//!
//! - **WT-1** A job that was accepted has a thread that is at nothing else.
//! - **WT-2** There are at most [`MOST`] threads, whatever becomes of their jobs. Asking for one more, or for one that
//!   the system refuses, is no panic.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::support::lock::lock;
use crate::support::sync::{Condvar, Mutex, MutexGuard, thread};
use crate::support::user_code;

/// How many threads there may be.
const MOST: usize = 64;
/// How long a thread with nothing to do stays.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// There is no thread for a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no thread can be had")]
pub(crate) struct NoThread;

/// Threads that may wait.
#[derive(Debug)]
pub(crate) struct WaitingThreads(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// How long a thread with nothing to do stays.
    patience: Duration,
    state: Mutex<State>,
    work: Condvar,
}

struct State {
    /// Each one has an idle thread that is about to take it.
    jobs: VecDeque<Job>,
    threads: usize,
    /// Those that wait for a job.
    idle: usize,
    most: usize,
    /// How often somebody was told that there is none.
    #[cfg(test)]
    refusals: usize,
}

impl WaitingThreads {
    pub(crate) fn new() -> Self {
        Self::that_stay(IDLE)
    }

    /// None at all.
    #[cfg(feature = "simulation")]
    pub(crate) fn none() -> Self {
        let threads = Self::new();
        lock(&threads.0.state).most = 0;
        threads
    }

    /// Threads that stay for so long when they have nothing to do.
    fn that_stay(patience: Duration) -> Self {
        Self(Arc::new(Shared {
            patience,
            state: Mutex::new(State {
                jobs: VecDeque::new(),
                threads: 0,
                idle: 0,
                most: MOST,
                #[cfg(test)]
                refusals: 0,
            }),
            work: Condvar::new(),
        }))
    }

    /// Has a thread do a job. Fails at once if there is none.
    pub(crate) fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), NoThread> {
        let mut state = lock(&self.0.state);
        if state.most == 0 {
            return Err(state.refuse());
        }
        // WT-1
        if state.idle > state.jobs.len() {
            state.jobs.push_back(Box::new(job));
            drop(state);
            self.0.work.notify_one();
            return Ok(());
        }
        // WT-2
        if state.threads >= state.most {
            return Err(state.refuse());
        }
        state.threads += 1;
        drop(state);
        let shared = Running(Arc::clone(&self.0));
        thread::Builder::new()
            .name("farref-waiting".to_owned())
            .spawn(move || shared.work(job))
            .map(drop)
            .map_err(|_| NoThread)
    }

    /// From now on there are no threads.
    #[cfg(test)]
    pub(crate) fn exhaust(&self) {
        lock(&self.0.state).most = 0;
    }

    /// Keeps all threads busy, until what is returned is dropped.
    #[cfg(test)]
    pub(crate) fn occupy(&self) -> Vec<std::sync::mpsc::Sender<()>> {
        let occupy_one = || {
            let (busy, over) = std::sync::mpsc::channel::<()>();
            let occupied = self.run(move || {
                // An error is what is waited for.
                let _ = over.recv();
            });
            occupied.ok().map(|()| busy)
        };
        std::iter::from_fn(occupy_one).collect()
    }

    #[cfg(test)]
    pub(crate) fn refusals(&self) -> usize {
        lock(&self.0.state).refusals
    }
}

impl State {
    #[cfg_attr(
        not(test),
        expect(
            clippy::unused_self,
            clippy::needless_pass_by_ref_mut,
            reason = "tests count"
        )
    )]
    fn refuse(&mut self) -> NoThread {
        #[cfg(test)]
        {
            self.refusals += 1;
        }
        NoThread
    }
}

/// A thread that counts, for as long as there is this: also if it never began, or panics.
struct Running(Arc<Shared>);

impl Running {
    fn work(self, first: impl FnOnce()) {
        user_code::reserve_thread();
        first();
        while let Some(job) = self.next() {
            job();
        }
    }

    /// The next job. None if there is none for long.
    fn next(&self) -> Option<Job> {
        let mut state = lock(&self.0.state);
        state.idle += 1;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.idle -= 1;
                return Some(job);
            }
            let (woken, timeout) = self.wait(state);
            state = woken;
            if timeout && state.jobs.is_empty() {
                state.idle -= 1;
                return None;
            }
        }
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> (MutexGuard<'a, State>, bool) {
        let waited = self.0.work.wait_timeout(state, self.0.patience);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        (state, timeout.timed_out())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.0.state).threads -= 1;
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State")
            .field("jobs", &self.jobs.len())
            .field("threads", &self.threads)
            .field("idle", &self.idle)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};

    use farref_testkit::TEST_TIMEOUT;

    use super::*;

    /// WT-1, WT-2
    #[test]
    fn jobs_that_wait_for_each_other_all_have_a_thread_and_one_too_many_is_refused() {
        let threads = WaitingThreads::new();
        for _ in 0..3 {
            let barrier = Arc::new(Barrier::new(MOST));
            let (hold, held) = mpsc::channel::<()>();
            let held = Arc::new(Mutex::new(held));
            let (done, all_done) = mpsc::channel();
            for _ in 0..MOST {
                let (barrier, done) = (Arc::clone(&barrier), done.clone());
                let held = Arc::clone(&held);
                let accepted = threads.run(move || {
                    barrier.wait();
                    // Until the other end is dropped.
                    let _ = lock(&held).recv();
                    done.send(()).unwrap();
                });
                assert_eq!(accepted, Ok(()));
            }
            assert_eq!(threads.run(|| {}), Err(NoThread));
            drop(hold);
            for _ in 0..MOST {
                all_done
                    .recv_timeout(TEST_TIMEOUT)
                    .expect("it had a thread");
            }
            while lock(&threads.0.state).idle < MOST {
                thread::yield_now();
            }
        }
    }

    #[test]
    fn a_job_that_panics_gives_its_thread_back() {
        let threads = WaitingThreads::new();
        threads.run(|| panic!("on purpose")).expect("a thread");
        while lock(&threads.0.state).threads > 0 {
            thread::yield_now();
        }
        let (done, is_done) = mpsc::channel();
        let next = threads.run(move || done.send(()).unwrap());
        assert_eq!(next, Ok(()));
        is_done.recv_timeout(TEST_TIMEOUT).expect("it ran");
    }

    /// WT-1: those that had nothing to do for long are not counted on.
    #[test]
    fn wt_1_a_job_that_comes_when_idle_threads_have_left_has_a_new_one() {
        let threads = WaitingThreads::that_stay(Duration::from_millis(1));
        for _ in 0..3 {
            let (done, is_done) = mpsc::channel();
            let accepted = threads.run(move || done.send(()).unwrap());
            assert_eq!(accepted, Ok(()));
            is_done.recv_timeout(TEST_TIMEOUT).expect("it has a thread");
            while lock(&threads.0.state).threads > 0 {
                thread::yield_now();
            }
        }
    }
}
