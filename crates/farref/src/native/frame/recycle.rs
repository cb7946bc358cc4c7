//! Large receive buffers that are used again.
//!
//! Fresh memory is expensive: for a large message the system spends more time on handing out zeroed
//! pages than on copying the message into them. So the buffer of a large piece comes back here when
//! the program has dropped the piece, and is kept for the next one for a short while.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use farref_proto::Time;

use crate::native::shared::lock;

/// Smaller buffers are the allocator's business.
const LEAST: usize = 1 << 20;
/// How long a buffer is kept without being used.
const KEEP_FOR: Duration = Duration::from_secs(5);

/// Buffers that wait to be used again.
#[derive(Debug)]
pub(in crate::native) struct Recycler {
    /// The most bytes that are kept.
    most: usize,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The oldest first.
    buffers: VecDeque<(Time, Vec<u8>)>,
    bytes: usize,
    /// When the buffers were last looked through.
    now: Time,
}

impl Recycler {
    pub(in crate::native) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most,
            kept: Mutex::default(),
        })
    }

    /// An empty buffer with room for so many bytes, if a fitting one is kept.
    pub(super) fn take(&self, length: usize) -> Option<Vec<u8>> {
        if length < LEAST {
            return None;
        }
        let mut kept = lock(&self.kept);
        // A far larger one is left for those who need it.
        let fits = |buffer: &Vec<u8>| (length..=2 * length).contains(&buffer.capacity());
        let at = kept.buffers.iter().rposition(|(_, buffer)| fits(buffer))?;
        let (_, buffer) = kept.buffers.remove(at)?;
        kept.bytes -= buffer.capacity();
        Some(buffer)
    }

    /// Hands a filled buffer to the program. It comes back if it is worth keeping.
    pub(super) fn lend(self: &Arc<Self>, buffer: Vec<u8>) -> Bytes {
        if !(LEAST..=self.most).contains(&buffer.capacity()) {
            return buffer.into();
        }
        Bytes::from_owner(Lent {
            buffer,
            home: Arc::downgrade(self),
        })
    }

    /// Lets go of what has been kept for too long.
    pub(in crate::native) fn sweep(&self, now: Time) {
        let mut dropped = Vec::new();
        {
            let mut kept = lock(&self.kept);
            kept.now = now;
            while let Some((since, _)) = kept.buffers.front()
                && now.since(*since) >= KEEP_FOR
            {
                dropped.extend(kept.pop());
            }
        }
        drop(dropped);
    }

    fn keep(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut dropped = Vec::new();
        {
            let mut kept = lock(&self.kept);
            let now = kept.now;
            kept.bytes += buffer.capacity();
            kept.buffers.push_back((now, buffer));
            while kept.bytes > self.most {
                dropped.extend(kept.pop());
            }
        }
        // Giving memory back takes time, so not under the lock.
        drop(dropped);
    }
}

impl Kept {
    fn pop(&mut self) -> Option<Vec<u8>> {
        let (_, buffer) = self.buffers.pop_front()?;
        self.bytes -= buffer.capacity();
        Some(buffer)
    }
}

/// A buffer in the hands of the program.
struct Lent {
    buffer: Vec<u8>,
    home: Weak<Recycler>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.buffer
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            home.keep(std::mem::take(&mut self.buffer));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn a_dropped_buffer_is_used_again_if_it_fits() {
        let recycler = Recycler::new(16 * MIB);
        let lent = recycler.lend(vec![1; 4 * MIB]);
        let (at, clone) = (lent.as_ptr(), lent.slice(5..10));
        drop(lent);
        assert!(recycler.take(4 * MIB).is_none(), "a clone holds it");
        drop(clone);
        assert!(recycler.take(5 * MIB).is_none(), "too small");
        assert!(recycler.take(MIB).is_none(), "far too large");
        let again = recycler.take(3 * MIB).expect("it fits");
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
        assert!(recycler.take(3 * MIB).is_none(), "there was one");
        assert_eq!(lock(&recycler.kept).bytes, 0);
    }

    #[test]
    fn no_more_is_kept_than_allowed_and_not_for_long() {
        let recycler = Recycler::new(10 * MIB);
        for size in [4, 5, 3, 20] {
            drop(recycler.lend(vec![1; size * MIB]));
        }
        assert_eq!(lock(&recycler.kept).bytes, 8 * MIB, "the oldest went");
        recycler.sweep(Time(KEEP_FOR.as_nanos() as u64 - 1));
        assert_eq!(lock(&recycler.kept).bytes, 8 * MIB);
        recycler.sweep(Time::ZERO + KEEP_FOR);
        assert_eq!(lock(&recycler.kept).bytes, 0);
    }

    #[test]
    fn a_buffer_outlives_the_agent_that_lent_it() {
        let recycler = Recycler::new(10 * MIB);
        let lent = recycler.lend(vec![7; MIB]);
        drop(recycler);
        assert!(lent.iter().all(|byte| *byte == 7));
    }
}
