//! The right to write to a stream. How it is used: [`sending`](super::sending), whose SD-1 it is for.

use tokio::sync::Notify;

use crate::support::mutation::mutated;
use crate::support::sync::{AtomicU8, Ordering};

/// The right to write, and a mark that there is more.
#[derive(Debug, Default)]
pub(crate) struct WriterLock {
    state: AtomicU8,
    /// It was handed over to the stream's task.
    handover: Notify,
}

const FREE: u8 = 0;
const HELD: u8 = 1;
const MARKED: u8 = 2;
const HANDED_OVER: u8 = 3;
/// Handed over, and whoever has something to write at once may take it as well.
const NOT_URGENT: u8 = 4;

impl WriterLock {
    /// Takes the lock if it is free or not urgent, or else leaves a mark for its holder. Says whether it was taken.
    pub(crate) fn acquire_or_mark(&self) -> bool {
        self.become_from(|state| match state {
            FREE | NOT_URGENT => (HELD, true),
            HANDED_OVER => (HANDED_OVER, false),
            _ => (MARKED, false),
        })
    }

    /// Hands the lock over if it is free, or else leaves a mark for its holder: to the task, or to whoever has something
    /// to write before that runs.
    pub(crate) fn hand_over_or_mark(&self) {
        let is_handed_over = self.become_from(|state| match state {
            FREE => (NOT_URGENT, true),
            HANDED_OVER | NOT_URGENT => (state, false),
            _ => (MARKED, false),
        });
        if is_handed_over {
            self.handover.notify_one();
        }
    }

    /// Goes from the present state to the one that this says, in one step.
    fn become_from(&self, next: impl Fn(u8) -> (u8, bool)) -> bool {
        let mut state = FREE;
        loop {
            let (next, result) = next(state);
            match self
                .state
                .compare_exchange_weak(state, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return result,
                Err(now) => state = now,
            }
        }
    }

    /// Whether it waits for somebody to take it over.
    pub(crate) fn is_handed_over(&self) -> bool {
        matches!(self.state.load(Ordering::SeqCst), HANDED_OVER | NOT_URGENT)
    }

    /// Whether it waits for somebody, and for nobody else.
    pub(crate) fn is_awaited(&self) -> bool {
        self.state.load(Ordering::SeqCst) == HANDED_OVER
    }

    /// As the holder, when the stream's task has to go on.
    pub(crate) fn hand_over_to_task(&self) {
        self.hand_over();
        // Also if the task looked for it meanwhile, in vain.
        if !mutated!(HandOverInSilence) {
            self.handover.notify_one();
        }
    }

    /// Waits until it is handed over to the task, which has to look whether it still is.
    pub(crate) async fn handed_over(&self) {
        self.handover.notified().await;
    }

    /// As the holder that is the task, or by whom the task was told before: somebody else has to go on.
    pub(crate) fn hand_over(&self) {
        self.state.store(HANDED_OVER, Ordering::SeqCst);
    }

    /// Takes a lock that was handed over. Says whether it was.
    pub(crate) fn take_over(&self) -> bool {
        self.become_from(|state| match state {
            HANDED_OVER | NOT_URGENT => (HELD, true),
            _ => (state, false),
        })
    }

    /// As the holder, before looking whether there is more.
    pub(crate) fn clear_mark(&self) {
        self.state.store(HELD, Ordering::SeqCst);
    }

    /// As the holder, after having found that there is no more. Fails if there is a mark.
    pub(crate) fn try_release(&self) -> bool {
        if mutated!(ReleaseMarked) {
            self.state.store(FREE, Ordering::SeqCst);
            return true;
        }
        self.state
            .compare_exchange(HELD, FREE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}
