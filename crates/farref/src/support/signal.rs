//! Telling a running call that nobody wants its answer any more.

use std::sync::Weak;
use std::task::Waker;

use crate::support::lock::lock;
use crate::support::mutation::mutated;
use crate::support::sync::{AtomicBool, Mutex, Ordering};

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
        if mutated!(LookBeforeWatching) && self.is_cancelled() {
            return true;
        }
        let mut slot = lock(&self.waker);
        if slot.as_ref().is_none_or(|known| !known.will_wake(waker)) {
            *slot = Some(waker.clone());
        }
        drop(slot);
        // After the waker is in place: a signal in between is not missed.
        self.is_cancelled() && !mutated!(LookBeforeWatching)
    }

    /// Watches in the place of whoever does, who cannot run meanwhile, until this is dropped.
    pub(crate) fn instead(&self) -> Instead<'_> {
        Instead {
            signal: self,
            before: lock(&self.waker).take(),
        }
    }
}

/// Watches a signal for a while.
pub(crate) struct Instead<'a> {
    signal: &'a CancelSignal,
    before: Option<Waker>,
}

impl Instead<'_> {
    /// As [`CancelSignal::watch`].
    pub(crate) fn watch(&self, waker: &Waker) -> bool {
        self.signal.watch(waker)
    }
}

impl Drop for Instead<'_> {
    fn drop(&mut self) {
        let ours = std::mem::replace(&mut *lock(&self.signal.waker), self.before.take());
        drop(ours);
        if self.signal.is_cancelled() {
            // Whoever watched before has not heard of it.
            self.signal.cancel();
        }
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
    fn who_watched_before_hears_what_was_said_meanwhile() {
        #[derive(Default)]
        struct Told(AtomicBool);
        impl std::task::Wake for Told {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        let signal = CancelSignal::default();
        let told = std::sync::Arc::new(Told::default());
        assert!(!signal.watch(&Waker::from(std::sync::Arc::clone(&told))));
        let instead = signal.instead();
        assert!(!instead.watch(Waker::noop()));
        signal.cancel();
        assert!(!told.0.load(Ordering::SeqCst));
        drop(instead);
        assert!(told.0.load(Ordering::SeqCst));
    }

    #[test]
    fn watching_does_not_cancel() {
        let signal = CancelSignal::default();
        assert!(!signal.watch(Waker::noop()));
        assert!(!signal.is_cancelled());
    }
}
