//! How much memory the connections of a server may take together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// A number of bytes shared by all connections.
#[derive(Clone, Debug)]
pub(super) struct Budget {
    used: Arc<AtomicUsize>,
    /// Some has been given back.
    released: Arc<Notify>,
    limit: usize,
}

impl Budget {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            used: Arc::default(),
            released: Arc::default(),
            limit,
        }
    }

    /// A share of nothing, to be resized.
    pub(super) fn share(&self) -> Share {
        Share {
            budget: self.clone(),
            size: 0,
        }
    }

    /// A share of so many bytes, as soon as there are so many. `None` if there never will be.
    pub(super) async fn reserve(&self, size: usize) -> Option<Share> {
        if size > self.limit {
            return None;
        }
        let mut share = self.share();
        let mut waited = false;
        while !share.resize(size) {
            waited = true;
            self.released.notified().await;
        }
        if waited {
            // What was given back may be enough for more than one.
            self.released.notify_one();
        }
        Some(share)
    }

    fn give_back(&self, size: usize) {
        if size > 0 {
            self.used.fetch_sub(size, Ordering::Relaxed);
            self.released.notify_one();
        }
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

/// What one buffer takes of a [`Budget`]; given back when dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Budget,
    size: usize,
}

impl Share {
    /// Makes this share `size` bytes; `false`, and no change, if that exceeds the budget.
    pub(super) fn resize(&mut self, size: usize) -> bool {
        if let Some(more) = size.checked_sub(self.size) {
            let used = self.budget.used.fetch_add(more, Ordering::Relaxed);
            if more > 0 && used.saturating_add(more) > self.budget.limit {
                self.budget.used.fetch_sub(more, Ordering::Relaxed);
                return false;
            }
        } else {
            self.budget.give_back(self.size - size);
        }
        self.size = size;
        true
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.give_back(self.size);
    }
}
