//! Which functions are being polled at this moment: those among them that stay there block the runtime.
//!
//! Each thread has a note of its own, which costs it two writes per poll and no look at the clock. Whoever
//! wants to know looks twice.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What one thread is at.
#[derive(Debug, Default)]
struct Note {
    /// The function that is polled, by its id; zero for none.
    function: AtomicU64,
    /// How many polls have begun.
    begun: AtomicU64,
    /// That number when somebody last looked.
    seen: AtomicU64,
}

static NOTES: Mutex<Vec<Weak<Note>>> = Mutex::new(Vec::new());

thread_local! {
    static NOTE: Arc<Note> = Note::register();
}

impl Note {
    fn register() -> Arc<Self> {
        let note = Arc::new(Self::default());
        let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
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

/// The functions that have been polled, once, all the time since this was last asked.
pub(crate) fn stuck() -> Vec<u64> {
    let notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    let mut stuck = Vec::new();
    for note in notes.iter().filter_map(Weak::upgrade) {
        let begun = note.begun.load(Ordering::Relaxed);
        let function = note.function.load(Ordering::Relaxed);
        let before = note.seen.swap(begun, Ordering::Relaxed);
        if function != 0 && before == begun {
            stuck.push(function);
        }
    }
    stuck.sort_unstable();
    stuck.dedup();
    stuck
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poll_that_lasts_from_one_look_to_the_next_is_seen() {
        // Far from what other tests do meanwhile.
        const FUNCTIONS: [u64; 2] = [0xfeed_0001, 0xfeed_0002];
        let seen = || {
            let mut stuck = stuck();
            stuck.retain(|function| FUNCTIONS.contains(function));
            stuck
        };
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
}
