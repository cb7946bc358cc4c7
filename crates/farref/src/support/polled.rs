//! Which functions are being polled at this moment: those among them that stay there block the runtime.
//!
//! Each thread has a note of its own, which costs it two writes per poll and no look at the clock. Whoever
//! wants to know looks twice, and keeps what it saw ([`PollSampler`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::support::lock::lock;

/// What one thread is at.
#[derive(Debug, Default)]
struct ThreadPoll {
    /// Which one it is.
    number: u64,
    /// The function that is polled, by its id; zero for none.
    function: AtomicU64,
    /// How many polls have begun.
    begun: AtomicU64,
}

static NEXT: AtomicU64 = AtomicU64::new(0);
static NOTES: Mutex<Vec<Weak<ThreadPoll>>> = Mutex::new(Vec::new());

thread_local! {
    static NOTE: Arc<ThreadPoll> = ThreadPoll::register();
}

impl ThreadPoll {
    fn register() -> Arc<Self> {
        let note = Arc::new(Self {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            ..Self::default()
        });
        let mut notes = lock(&NOTES);
        notes.retain(|note| note.strong_count() > 0);
        notes.push(Arc::downgrade(&note));
        note
    }
}

/// Polls a function, or does another part of its work that must not take long.
pub(crate) fn polling<T>(function: u64, poll: impl FnOnce() -> T) -> T {
    struct Leave(u64);

    impl Drop for Leave {
        fn drop(&mut self) {
            let _ = NOTE.try_with(|note| note.function.store(self.0, Ordering::Relaxed));
        }
    }

    // A thread without its local state is about to end, and does without.
    let before = NOTE.try_with(|note| {
        // Nobody else writes these.
        let begun = note.begun.load(Ordering::Relaxed).wrapping_add(1);
        note.begun.store(begun, Ordering::Relaxed);
        let before = note.function.load(Ordering::Relaxed);
        note.function.store(function, Ordering::Relaxed);
        before
    });
    let _leave = before.ok().map(Leave);
    poll()
}

/// What somebody saw who looked.
#[derive(Debug, Default)]
pub(crate) struct PollSampler(HashMap<u64, u64>);

impl PollSampler {
    /// The functions that have been polled, once, all the time since this was last asked.
    pub(crate) fn stuck(&mut self) -> Vec<u64> {
        let notes = lock(&NOTES);
        let before = std::mem::take(&mut self.0);
        let mut stuck = Vec::new();
        for note in notes.iter().filter_map(Weak::upgrade) {
            let begun = note.begun.load(Ordering::Relaxed);
            let function = note.function.load(Ordering::Relaxed);
            if function != 0 && before.get(&note.number) == Some(&begun) {
                stuck.push(function);
            }
            self.0.insert(note.number, begun);
        }
        stuck.sort_unstable();
        stuck.dedup();
        stuck
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_that_lasts_from_one_look_to_the_next_is_seen() {
        const FUNCTIONS: [u64; 2] = [0xfeed_0001, 0xfeed_0002];
        let mut looks = PollSampler::default();
        let mut seen = || seen(&mut looks, &FUNCTIONS);
        let [outer, inner] = FUNCTIONS;
        polling(outer, || {
            seen();
            assert_eq!(seen(), [outer]);
            polling(inner, || {
                seen();
                assert_eq!(seen(), [inner]);
            });
        });
        assert!(seen().is_empty());
    }

    #[test]
    fn those_who_look_do_not_see_with_each_others_eyes() {
        const FUNCTION: u64 = 0xfeed_0003;
        let (mut one, mut other) = (PollSampler::default(), PollSampler::default());
        seen(&mut one, &[FUNCTION]);
        polling(FUNCTION, || {
            seen(&mut other, &[FUNCTION]);
            assert!(seen(&mut one, &[FUNCTION]).is_empty(), "it has just begun");
            assert_eq!(seen(&mut one, &[FUNCTION]), [FUNCTION]);
            assert_eq!(seen(&mut other, &[FUNCTION]), [FUNCTION]);
        });
    }

    /// Which of these are stuck. Others are at work meanwhile.
    fn seen(looks: &mut PollSampler, functions: &[u64]) -> Vec<u64> {
        let mut stuck = looks.stuck();
        stuck.retain(|function| functions.contains(function));
        stuck
    }
}
