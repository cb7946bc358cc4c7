//! Waiting for an item on a thread that may block.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::runtime::current::Current;
use crate::support::clock::Instant;
use crate::support::lock::lock;

/// Why the function that waits is to end.
pub(super) enum Ended {
    /// Its time is up, which was so long when the wait began.
    Late(Duration),
    /// Nobody wants its answer.
    Cancelled,
}

/// Waits for an item as long as the call that this thread runs has time and is wanted (D3).
pub(super) async fn during<F: Future>(call: &Current, item: F) -> Result<F::Output, Ended> {
    let began = Instant::now();
    let watching = call.signal.instead();
    let mut item = pin!(item);
    let mut timer = None;
    let late = || {
        let left = call.deadline.map(|at| at.saturating_duration_since(began));
        Poll::Ready(Err(Ended::Late(left.unwrap_or_default())))
    };
    poll_fn(|context| {
        // Before the item: whoever always finds one ends as well.
        if watching.watch(context.waker()) {
            return Poll::Ready(Err(Ended::Cancelled));
        }
        if call.is_late() {
            return late();
        }
        if let Poll::Ready(item) = item.as_mut().poll(context) {
            return Poll::Ready(Ok(item));
        }
        let Some(deadline) = call.deadline else {
            return Poll::Pending;
        };
        let timer = timer.get_or_insert_with(|| Box::pin(call.core.sleep_until(deadline)));
        match timer.as_mut().poll(context) {
            Poll::Ready(()) => late(),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Blocks a thread that knows of no runtime.
pub(super) fn block_on<F: Future>(future: F) -> F::Output {
    let thread = Arc::new(WaitingThread::default());
    let waker = Waker::from(Arc::clone(&thread));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        thread.wait();
    }
}

/// A word of its own, and not the thread's: what is polled may use that.
#[derive(Default)]
struct WaitingThread {
    is_woken: Mutex<bool>,
    woken: Condvar,
}

impl WaitingThread {
    fn wait(&self) {
        let mut is_woken = lock(&self.is_woken);
        while !std::mem::take(&mut *is_woken) {
            is_woken = self
                .woken
                .wait(is_woken)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Wake for WaitingThread {
    fn wake(self: Arc<Self>) {
        *lock(&self.is_woken) = true;
        self.woken.notify_one();
    }
}
