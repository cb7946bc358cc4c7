//! In the place of `farref`'s module of this name: a clock that a scenario moves.

use std::cell::RefCell;
use std::future::poll_fn;
use std::ops::Add;
use std::task::{Poll, Waker};
use std::time::Duration;

#[derive(Default)]
struct State {
    now: Duration,
    sleepers: Vec<Waker>,
    /// Who lets time pass when somebody sleeps.
    passing: Option<Waker>,
}

thread_local! {
    /// All threads of a scenario are one for the system.
    static STATE: RefCell<State> = RefCell::default();
}

/// A moment, from the scenario's beginning on.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Instant(Duration);

impl Instant {
    pub(crate) fn now() -> Self {
        Self(STATE.with(|state| state.borrow().now))
    }

    pub(crate) fn elapsed(self) -> Duration {
        Self::now().saturating_duration_since(self)
    }

    pub(crate) fn saturating_duration_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, by: Duration) -> Self {
        Self(self.0.saturating_add(by))
    }
}

/// A scenario begins: nobody sleeps, and it is the first moment.
pub(crate) fn reset() {
    STATE.with(|state| *state.borrow_mut() = State::default());
}

/// Some time passes.
pub(crate) fn advance(by: Duration) {
    let sleepers = STATE.with(|state| {
        let mut state = state.borrow_mut();
        state.now += by;
        std::mem::take(&mut state.sleepers)
    });
    sleepers.into_iter().for_each(Waker::wake);
}

/// Some time passes whenever somebody sleeps, for as long as this is polled. If nobody sleeps any more it waits for ever,
/// which shuttle notices.
pub(crate) async fn pass(step: Duration) -> std::convert::Infallible {
    poll_fn(|context| {
        let somebody_sleeps = STATE.with(|state| {
            let mut state = state.borrow_mut();
            state.passing = Some(context.waker().clone());
            !state.sleepers.is_empty()
        });
        if somebody_sleeps {
            advance(step);
            context.waker().wake_by_ref();
        }
        Poll::Pending
    })
    .await
}

pub(crate) async fn sleep_until(at: Instant) {
    poll_fn(|context| {
        let slept = STATE.with(|state| {
            let mut state = state.borrow_mut();
            if state.now >= at.0 {
                return Poll::Ready(());
            }
            state.sleepers.push(context.waker().clone());
            Poll::Pending
        });
        if slept.is_pending()
            && let Some(waker) = STATE.with(|state| state.borrow_mut().passing.take())
        {
            waker.wake();
        }
        slept
    })
    .await;
}

pub(crate) async fn sleep(time: Duration) {
    sleep_until(Instant::now() + time).await;
}
