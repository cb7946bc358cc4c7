//! Large receive buffers that are used again.
//!
//! Fresh memory is expensive: for a large message the system spends more time on handing out zeroed
//! pages than on copying the message into them. So the buffer of a large piece comes back here when
//! the program has dropped the piece, and is kept for the next one for a short while. A task gives
//! back what was not used; there is one while buffers are kept, whatever else the agent does.
//!
//! A vector that the program makes of a piece takes the buffer along, and does not come back. Whoever receives
//! vectors often sends some, too, and gives those away: so where a buffer was wanted lately and none was kept,
//! the memory of what is sent comes here as well.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Instant, sleep_until};

use crate::codec::{BufferRecycler, Elements, Owned, Part, Width};
use crate::support::lock::lock;

/// Smaller buffers are the allocator's business.
const LEAST: usize = 1 << 20;
/// How long a buffer is kept without being used.
const KEEP_FOR: Duration = Duration::from_secs(5);

/// Buffers that wait to be used again.
#[derive(Debug)]
pub(crate) struct Recycler {
    /// The most bytes that are kept.
    most: usize,
    /// Where the task runs. Without it what is kept stays.
    runtime: Option<Handle>,
    kept: Mutex<Kept>,
    /// Itself, for the task.
    this: Weak<Self>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The oldest first.
    buffers: VecDeque<(Instant, Elements)>,
    bytes: usize,
    /// Whether a task looks after them.
    is_watched: bool,
    /// When a buffer was wanted last and none was kept.
    missed: Option<Instant>,
}

impl Recycler {
    pub(crate) fn new(most: usize, runtime: Option<Handle>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            most,
            runtime,
            kept: Mutex::default(),
            this: Weak::clone(this),
        })
    }

    /// A buffer with room for so many bytes, if a fitting one is kept. Something may be left in it.
    pub(super) fn take(&self, length: usize, width: Width) -> Option<Elements> {
        if length < LEAST {
            return None;
        }
        let mut kept = lock(&self.kept);
        // A far larger one is left for those who need it.
        let fits = |buffer: &Elements| {
            buffer.width() == width && (length..=2 * length).contains(&buffer.capacity())
        };
        let Some(at) = kept.buffers.iter().rposition(|(_, buffer)| fits(buffer)) else {
            kept.missed = Some(Instant::now());
            return None;
        };
        let (_, buffer) = kept.buffers.remove(at)?;
        kept.bytes -= buffer.capacity();
        Some(buffer)
    }

    /// Hands a filled buffer to the program. It comes back if it is worth keeping.
    pub(super) fn lend(self: &Arc<Self>, buffer: Elements) -> Arc<Owned> {
        let worth = (LEAST..=self.most).contains(&buffer.capacity());
        let recycler: Weak<dyn BufferRecycler> = Arc::<Self>::downgrade(self);
        Owned::new(buffer, worth.then_some(recycler))
    }

    /// Sees to it that the memory of buffers which are sent comes here when they have been, if there is a use for it.
    pub(crate) fn take_back(&self, parts: &[Part]) {
        for part in parts {
            part.recycle_to(|capacity| {
                let worth = (LEAST..=self.most).contains(&capacity);
                let wanted = |missed: Instant| missed.elapsed() < KEEP_FOR;
                let comes_here = worth && lock(&self.kept).missed.is_some_and(wanted);
                let this: Weak<dyn BufferRecycler> = Weak::<Self>::clone(&self.this);
                comes_here.then_some(this)
            });
        }
    }

    /// Drops what has been kept for too long. Says until when to wait for the next.
    fn sweep(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut dropped = Vec::new();
        let mut kept = lock(&self.kept);
        let next = loop {
            match kept.buffers.front() {
                Some((since, _)) if now.duration_since(*since) < KEEP_FOR => {
                    break Some(*since + KEEP_FOR);
                }
                Some(_) => dropped.extend(kept.pop()),
                None => break None,
            }
        };
        kept.is_watched = next.is_some();
        drop(kept);
        drop(dropped);
        next
    }

    /// Gives back what nobody uses, until nothing is kept.
    async fn watch(this: Weak<Self>) {
        let sweep = |this: &Weak<Self>| this.upgrade()?.sweep();
        while let Some(next) = sweep(&this) {
            sleep_until(next).await;
        }
    }

    #[cfg(test)]
    pub(crate) fn kept(&self) -> usize {
        lock(&self.kept).bytes
    }
}

impl BufferRecycler for Recycler {
    fn keep(&self, buffer: Elements) {
        // Not if the program has kept what was in it.
        if buffer.capacity() < LEAST {
            return;
        }
        let mut dropped = Vec::new();
        {
            let mut kept = lock(&self.kept);
            kept.bytes += buffer.capacity();
            kept.buffers.push_back((Instant::now(), buffer));
            while kept.bytes > self.most {
                dropped.extend(kept.pop());
            }
            if let Some(runtime) = &self.runtime
                && !kept.is_watched
                && !kept.buffers.is_empty()
            {
                kept.is_watched = true;
                drop(runtime.spawn(Self::watch(Weak::clone(&self.this))));
            }
        }
        // Giving memory back takes time, so not under the lock.
        drop(dropped);
    }
}

impl Kept {
    fn pop(&mut self) -> Option<Elements> {
        let (_, buffer) = self.buffers.pop_front()?;
        self.bytes -= buffer.capacity();
        Some(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[tokio::test]
    async fn a_dropped_buffer_is_used_again_if_it_fits() {
        let recycler = Recycler::new(16 * MIB, Some(Handle::current()));
        let take = |size: usize| recycler.take(size * MIB, Width::One);
        let lent = recycler.lend(Elements::One(vec![1; 4 * MIB])).into_bytes();
        let (at, clone) = (lent.as_ptr(), lent.slice(5..10));
        drop(lent);
        assert!(take(4).is_none(), "a clone holds it");
        drop(clone);
        assert!(take(5).is_none(), "too small");
        assert!(take(1).is_none(), "far too large");
        assert!(recycler.take(3 * MIB, Width::Four).is_none(), "too narrow");
        let again = take(3).expect("it fits");
        assert_eq!(again.bytes().as_ptr(), at);
        assert!(take(3).is_none(), "there was one");
        assert_eq!(recycler.kept(), 0);
    }

    #[tokio::test]
    async fn no_more_is_kept_than_allowed_and_not_for_long() {
        let recycler = Recycler::new(10 * MIB, Some(Handle::current()));
        for size in [4, 5, 3, 20] {
            drop(recycler.lend(Elements::One(vec![1; size * MIB])));
        }
        assert_eq!(recycler.kept(), 8 * MIB, "the oldest went");
        // Whatever else there is to do, or not. Once more, because the task has ended then.
        for _ in 0..2 {
            let is_over = || !lock(&recycler.kept).is_watched;
            let ended = farref_testkit::eventually("buffers are given back", is_over).await;
            ended.expect("it is not kept for ever");
            assert_eq!(recycler.kept(), 0);
            drop(recycler.lend(Elements::One(vec![1; MIB])));
            assert_eq!(recycler.kept(), MIB);
        }
    }

    #[tokio::test]
    async fn a_vector_that_the_program_has_made_its_own_does_not_come_back() {
        let recycler = Recycler::new(16 * MIB, Some(Handle::current()));
        let lent = recycler.lend(Elements::Four(vec![1; MIB]));
        let own = Part::from_owned(lent).into_vec::<f32>().expect("it fits");
        assert_eq!((own.len(), recycler.kept()), (MIB, 0));
        let lent = recycler.lend(Elements::Four(vec![1; MIB]));
        drop(lent);
        assert_eq!(recycler.kept(), 4 * MIB);
        assert!(recycler.take(4 * MIB, Width::Four).is_some());
    }

    #[tokio::test]
    async fn a_vector_that_was_sent_is_received_into_where_some_are_received() {
        let recycler = Recycler::new(16 * MIB, Some(Handle::current()));
        let sent = |size: usize| {
            let part = Part::from_vec(vec![1_f32; size]);
            let address = part.address();
            recycler.take_back(&[part]);
            address
        };
        sent(MIB);
        assert_eq!(recycler.kept(), 0, "nobody wanted one");
        assert!(recycler.take(4 * MIB, Width::Four).is_none());
        for other in [MIB / 8, 5 * MIB] {
            sent(other);
            assert_eq!(recycler.kept(), 0, "too small, or more than may be kept");
        }
        let address = sent(MIB);
        assert_eq!(recycler.kept(), 4 * MIB);
        let used = recycler.take(4 * MIB, Width::Four).expect("it was kept");
        let again = Part::from_owned(recycler.lend(used));
        assert_eq!(again.address(), address);
    }

    #[tokio::test]
    async fn a_buffer_outlives_the_agent_that_lent_it() {
        let recycler = Recycler::new(10 * MIB, Some(Handle::current()));
        let lent = recycler.lend(Elements::One(vec![7; MIB])).into_bytes();
        drop(recycler);
        assert!(lent.iter().all(|byte| *byte == 7));
    }
}
