//! A condition that can be waited for with a time limit, which shuttle's does not keep: here a scenario says when all
//! limits are over. A thread that would leave after its limit does so then, and not never.

use std::cell::RefCell;
use std::sync::{Arc, LockResult, PoisonError};
use std::time::Duration;

use shuttle::sync::MutexGuard;
use shuttle::thread;

thread_local! {
    /// All threads of a scenario are one for the system.
    static STATE: RefCell<State> = RefCell::default();
}

#[derive(Default)]
struct State {
    is_over: bool,
    /// What somebody waits for with a limit, once for each.
    waited_for: Vec<Arc<shuttle::sync::Condvar>>,
}

/// A scenario begins: no limit is over.
pub(crate) fn reset() {
    STATE.with(|state| *state.borrow_mut() = State::default());
}

/// All limits are over, also those of whoever waits from now on.
pub(crate) fn end() {
    STATE.with(|state| state.borrow_mut().is_over = true);
    // Somebody may have seen that it is not over, and not wait yet: until all have heard of it.
    loop {
        let waited_for = STATE.with(|state| state.borrow().waited_for.clone());
        if waited_for.is_empty() {
            return;
        }
        waited_for.iter().for_each(|it| it.notify_all());
        thread::yield_now();
    }
}

/// As shuttle's, with limits.
#[derive(Debug, Default)]
pub(crate) struct Condvar(Arc<shuttle::sync::Condvar>);

/// Whether the limit was over.
pub(crate) struct TimedOut(bool);

impl TimedOut {
    pub(crate) fn timed_out(&self) -> bool {
        self.0
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        _limit: Duration,
    ) -> LockResult<(MutexGuard<'a, T>, TimedOut)> {
        let begins = STATE.with(|state| {
            let mut state = state.borrow_mut();
            if !state.is_over {
                state.waited_for.push(Arc::clone(&self.0));
            }
            !state.is_over
        });
        if !begins {
            return Ok((guard, TimedOut(true)));
        }
        let waited = self.0.wait(guard);
        let timed_out = STATE.with(|state| {
            let mut state = state.borrow_mut();
            let place = state
                .waited_for
                .iter()
                .position(|it| Arc::ptr_eq(it, &self.0));
            place.map(|place| state.waited_for.swap_remove(place));
            state.is_over
        });
        match waited {
            Ok(guard) => Ok((guard, TimedOut(timed_out))),
            Err(error) => Err(PoisonError::new((error.into_inner(), TimedOut(timed_out)))),
        }
    }
}
