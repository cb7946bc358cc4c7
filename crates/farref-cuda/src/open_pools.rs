//! The pools of other processes that are open in this one: each is open once (CU-9).
//!
//! The driver has imported memory once for the whole process, whatever it was imported by. So there is one
//! [`ImportedPool`](crate::ImportedPool) for each pool, whoever asks for it, and what was imported is known also after the pool was closed and opened again.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::Result;
use crate::here::Here;
use crate::ticket::Ticket;

/// Places, by the name of the other process's socket and the pool's number there.
type Places<P, M> = HashMap<(String, u64), Arc<Slot<P, M>>>;

/// All of them.
/// `P` is an open pool, and `M` memory that was imported of it.
#[derive(Debug)]
pub(crate) struct OpenPools<P, M>(Mutex<Places<P, M>>);

impl<P, M> Default for OpenPools<P, M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<P, M> OpenPools<P, M> {
    /// The place of the pool that a ticket is for.
    pub(crate) fn slot(&self, ticket: &Ticket) -> Arc<Slot<P, M>> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody else takes one out of the table meanwhile.
        slots.retain(|_, slot| Arc::strong_count(slot) > 1 || !slot.here().is_empty());
        let key = (ticket.socket.clone(), ticket.pool);
        Arc::clone(slots.entry(key).or_default())
    }
}

/// The place of one pool.
#[derive(Debug)]
pub(crate) struct Slot<P, M> {
    opened: Mutex<Opened<P>>,
    closed: Condvar,
    here: Mutex<Here<M>>,
}

#[derive(Debug)]
struct Opened<P> {
    pool: Weak<P>,
    /// Whether it was opened and not closed since, which takes a while after the last one has let go of it.
    is_open: bool,
}

impl<P, M> Default for Slot<P, M> {
    fn default() -> Self {
        let opened = Opened {
            pool: Weak::new(),
            is_open: false,
        };
        Self {
            opened: Mutex::new(opened),
            closed: Condvar::new(),
            here: Mutex::default(),
        }
    }
}

impl<P, M> Slot<P, M> {
    /// The pool, which is opened if it is not. Whoever asks meanwhile waits for that.
    pub(crate) fn get(&self, open: impl FnOnce() -> Result<Arc<P>>) -> Result<Arc<P>> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(pool) = opened.pool.upgrade() {
                return Ok(pool);
            }
            if !opened.is_open {
                break;
            }
            // Its anchors are being given back: those of the next one have the same addresses.
            let closed = self.closed.wait(opened);
            opened = closed.unwrap_or_else(PoisonError::into_inner);
        }
        let pool = open()?;
        *opened = Opened {
            pool: Arc::downgrade(&pool),
            is_open: true,
        };
        Ok(pool)
    }

    /// Nothing is left of the pool.
    pub(crate) fn has_closed(&self) {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        opened.is_open = false;
        drop(opened);
        self.closed.notify_all();
    }

    /// What was imported of it.
    pub(crate) fn here(&self) -> MutexGuard<'_, Here<M>> {
        self.here.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::error::CudaError;

    #[test]
    fn a_pool_is_not_opened_before_nothing_is_left_of_it() {
        let slot = Arc::new(Slot::<(), ()>::default());
        // The last one has let go of it, and gives back what it had.
        slot.opened.lock().unwrap().is_open = true;
        let (tell, told) = channel();
        let opening = Arc::clone(&slot);
        let thread = std::thread::spawn(move || {
            tell.send(opening.get(|| Err(CudaError::Refused))).unwrap();
        });
        assert!(told.recv_timeout(Duration::from_millis(100)).is_err());
        slot.has_closed();
        let opened = told.recv_timeout(farref_testkit::TEST_TIMEOUT).unwrap();
        assert!(matches!(opened, Err(CudaError::Refused)), "{opened:?}");
        thread.join().unwrap();
    }
}
