//! What the two halves of a pipe have in common.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::OwnedSemaphorePermit;

use super::error::PipeError;

/// How many bytes have gone over a pipe, frames' lengths included, and how many messages.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) bytes_sent: AtomicU64,
    pub(crate) bytes_received: AtomicU64,
    /// Of those received, those that were read out of the peer's memory.
    pub(crate) bytes_from_memory: AtomicU64,
    pub(crate) messages_sent: AtomicU64,
    pub(crate) messages_received: AtomicU64,
}

/// Of both halves.
#[derive(Debug)]
pub(super) struct TransportShared {
    pub(super) traffic: Arc<Traffic>,
    /// Whether the pipe is closed: by the peer (TR-8), or because nothing more is read here.
    over: AtomicBool,
    /// A sender that waits for room: it is to hear of the end.
    sender: Mutex<Option<Waker>>,
    /// The place among a listener's pipes. It is given back when both halves are gone (TR-7).
    _place: Option<OwnedSemaphorePermit>,
}

impl TransportShared {
    pub(super) fn new(place: Option<OwnedSemaphorePermit>) -> Arc<Self> {
        Arc::new(Self {
            traffic: Arc::default(),
            over: AtomicBool::new(false),
            sender: Mutex::default(),
            _place: place,
        })
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The pipe is closed.
    pub(super) fn end(&self) {
        self.over.store(true, Ordering::Release);
        let sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waker) = &*sender {
            waker.wake_by_ref();
        }
    }

    /// Waits for the end, as an error.
    pub(super) fn poll_over(&self, cx: &Context<'_>) -> Poll<Result<(), PipeError>> {
        self.park_sender(cx);
        match self.is_over() {
            true => Poll::Ready(Err(PipeError::Over)),
            false => Poll::Pending,
        }
    }

    /// Wakes the sender at the end. Whether that has come is to be asked afterwards.
    fn park_sender(&self, cx: &Context<'_>) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *sender {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
    }
}

/// Adds to a count that nothing depends on.
pub(super) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}
