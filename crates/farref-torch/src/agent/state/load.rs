//! How much of one peer's is open here, and when no more of it is read (guarantee D5).
//!
//! PyTorch's workers keep to no limit, and may not be cut off for it: they ask, and wait. What bounds memory is that
//! nothing more is read from a peer while as much of it is open as this worker takes at once. Its socket fills up then,
//! and its own queue.
//!
//! - **LO-1** Messages about references and contexts are read on, unless they are behind a call that is not.
//! - **LO-2** What the open calls wait for may be behind. So if nothing is done for a while, a call is read all the same;
//!   then two, four, and so on, until [`MOST`] times as much is open as this worker takes. From there on it waits until
//!   something is done.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

/// What a worker takes at once of the arguments of one peer's calls, as it does on farref's own wire.
const BYTES: u64 = 1 << 30;

/// How often as much is open at most.
const MOST: u64 = 4;

/// If nothing is done for so long, a call is read in any case.
const A_WHILE: Duration = Duration::from_millis(500);

/// How many calls are read at once past what this worker takes.
const MOST_AT_ONCE: u64 = 1024;

/// Calls of one peer that are open here.
#[derive(Debug, Default)]
pub(crate) struct Load {
    calls: AtomicUsize,
    bytes: AtomicU64,
    /// Some are done.
    done: Notify,
}

/// How whoever reads from the peer has stopped so far.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// How many calls are read past the limit before it stops again, and how many were the last time.
    left: u64,
    last: u64,
}

impl Load {
    /// A call is open whose arguments weigh so much.
    pub(crate) fn add(&self, weight: u64) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(weight, Ordering::Relaxed);
    }

    /// So many are done.
    pub(crate) fn remove(&self, calls: u32, weight: u64) {
        let less = |have: usize| Some(have.saturating_sub(calls as usize));
        let lighter = |have: u64| Some(have.saturating_sub(weight));
        let (order, at) = (Ordering::Relaxed, Ordering::Relaxed);
        let updated = self.calls.fetch_update(order, at, less).is_ok()
            && self.bytes.fetch_update(order, at, lighter).is_ok();
        debug_assert!(updated, "there is always a difference");
        self.done.notify_waiters();
    }

    /// The peer is gone: nobody need wait.
    pub(crate) fn end(&self) {
        self.calls.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.done.notify_waiters();
    }

    fn is_over(&self, calls: usize, times: u64) -> bool {
        let most = calls.saturating_mul(times as usize);
        self.calls.load(Ordering::Relaxed) >= most
            || self.bytes.load(Ordering::Relaxed) >= BYTES * times
    }

    /// Comes back when the next call may be read, if this worker takes so many at once.
    pub(crate) async fn room(&self, calls: usize, reading: &mut Reading) {
        loop {
            let mut done = std::pin::pin!(self.done.notified());
            done.as_mut().enable();
            if self.may_read(calls, reading) {
                return;
            }
            let done = timeout(A_WHILE, done).await.is_ok();
            reading.waited(done);
        }
    }

    fn may_read(&self, calls: usize, reading: &mut Reading) -> bool {
        if !self.is_over(calls, 1) {
            *reading = Reading::default();
            return true;
        }
        // LO-2
        let past = reading.left > 0 && !self.is_over(calls, MOST);
        reading.left -= u64::from(past);
        past
    }
}

impl Reading {
    /// It has waited until something was done, or for a while.
    fn waited(&mut self, done: bool) {
        self.last = match done {
            true => 0,
            false => (2 * self.last).clamp(1, MOST_AT_ONCE),
        };
        self.left = self.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many calls are read until none is any more, however long it waits.
    fn read_until_it_waits(load: &Load, weight: u64, calls: usize) -> usize {
        let (mut reading, mut read, mut waits) = (Reading::default(), 0, 0);
        while waits < 100 {
            if load.may_read(calls, &mut reading) {
                load.add(weight);
                (read, waits) = (read + 1, 0);
            } else {
                reading.waited(false);
                waits += 1;
            }
        }
        read
    }

    /// LO-2
    #[test]
    fn calls_that_wait_for_calls_behind_them_get_those_within_bounds() {
        let load = Load::default();
        assert_eq!(read_until_it_waits(&load, 0, 64), 4 * 64);
        load.remove(1, 0);
        assert_eq!(read_until_it_waits(&load, 0, 64), 1);
        let heavy = Load::default();
        assert_eq!(read_until_it_waits(&heavy, BYTES / 2, 64), 8);
    }

    #[tokio::test]
    async fn a_call_that_is_done_makes_room_for_another() {
        let load = Load::default();
        (0..64).for_each(|_| load.add(1));
        let mut reading = Reading::default();
        assert!(!load.may_read(64, &mut reading));
        let room = load.room(64, &mut reading);
        let done = async {
            tokio::task::yield_now().await;
            load.remove(1, 1);
        };
        tokio::join!(room, done);
        assert!(load.may_read(64, &mut reading));
        load.end();
        load.room(1, &mut reading).await;
    }
}
