//! Telling a running call that nobody wants its answer any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};
use std::task::Waker;

use crate::support::lock::lock;

/// Set once, by whoever cancels; watched by whoever runs.
#[derive(Debug, Default)]
pub(crate) struct CancelSignal {
    cancelled: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

/// Something that runs and can be told so.
pub(crate) trait Cancellable: Send + Sync {
    fn signal(&self) -> &CancelSignal;
}

/// Tells it, unless it is over.
pub(crate) fn cancel(call: &Weak<impl Cancellable + ?Sized>) {
    if let Some(call) = call.upgrade() {
        call.signal().cancel();
    }
}

impl CancelSignal {
    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
    }

    pub(crate) fn cancel(&self) {
        self.cancelled.store(true, Ordering::Release);
        let waker = lock(&self.waker).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Asks to be woken. Says whether it is too late for that.
    pub(crate) fn watch(&self, waker: &Waker) -> bool {
        let mut slot = lock(&self.waker);
        if slot.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
        drop(slot);
        // After the waker is in place: a signal in between is not missed.
        self.is_cancelled()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_given_before_anyone_watches_is_seen() {
        let signal = CancelSignal::default();
        signal.cancel();
        assert!(signal.watch(Waker::noop()));
    }

    #[test]
    fn watching_does_not_cancel() {
        let signal = CancelSignal::default();
        assert!(!signal.watch(Waker::noop()));
        assert!(!signal.is_cancelled());
    }
}
