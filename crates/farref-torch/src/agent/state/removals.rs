//! How many workers that are gone are being taken off the list.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// How many workers are being looked after.
#[derive(Debug, Default)]
pub(crate) struct Removals {
    open: AtomicUsize,
    done: Notify,
}

/// One of them, until it is done or given up.
pub(crate) struct Removal<'a>(&'a Removals);

impl Removals {
    pub(crate) fn begin(&self) -> Removal<'_> {
        self.open.fetch_add(1, Ordering::AcqRel);
        Removal(self)
    }

    pub(crate) async fn all_done(&self) {
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if self.open.load(Ordering::Acquire) == 0 {
                return;
            }
            done.await;
        }
    }
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::AcqRel);
        self.0.done.notify_waiters();
    }
}
