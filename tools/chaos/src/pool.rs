//! The references that a worker of the workload keeps.

use std::sync::{Mutex, MutexGuard, PoisonError};

use farref::RRef;
use serde::{Deserialize, Serialize};

use super::history::{self, Event};
use super::probe::Probe;

/// A worker keeps so many references; for one more it lets an old one go.
const MOST: usize = 24;

/// A reference to a value, and the value's number, by which histories know it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Far {
    pub(super) value: u64,
    pub(super) probe: RRef<Probe>,
}

static POOL: Mutex<Pool> = Mutex::new(Pool {
    kept: Vec::new(),
    closed: false,
});

struct Pool {
    /// With the number under which histories know that it is kept.
    kept: Vec<(u64, Far)>,
    closed: bool,
}

fn pool() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a reference, unless the run is over.
pub(super) fn keep(far: Far) {
    let hold = history::next_number();
    let value = far.value;
    let old = {
        let mut pool = pool();
        if pool.closed {
            // Dropped without the lock.
            drop(pool);
            return drop(far);
        }
        // Under the lock: from here on somebody else may let it go again.
        history::note(Event::Kept { hold, value });
        pool.kept.push((hold, far));
        (pool.kept.len() > MOST).then(|| pool.kept.remove(0))
    };
    if let Some(old) = old {
        release(old);
    }
}

/// One of those that are kept; it stays where it is.
pub(super) fn look(index: usize) -> Option<Far> {
    let pool = pool();
    let index = index.checked_rem(pool.kept.len())?;
    pool.kept.get(index).map(|(_, far)| far.clone())
}

/// Lets one go.
pub(super) fn let_go(index: usize) {
    let gone = {
        let mut pool = pool();
        let index = index.checked_rem(pool.kept.len());
        index.map(|index| pool.kept.swap_remove(index))
    };
    if let Some(gone) = gone {
        release(gone);
    }
}

/// Lets all go, and keeps none from here on.
pub(super) fn close() {
    let all = {
        let mut pool = pool();
        pool.closed = true;
        std::mem::take(&mut pool.kept)
    };
    for one in all {
        release(one);
    }
}

/// Notes it and drops it, in this order (HI-2).
fn release((hold, far): (u64, Far)) {
    history::note(Event::Released { hold });
    drop(far);
}
