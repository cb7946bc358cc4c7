//! The sending half of one stream, and its writer lock. How they are used: [`sending`](super::sending).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farref_proto::Lane;
use tokio::sync::Notify;

use super::memory_talk::MemoryTalk;
use crate::native::frame::Batch;
use crate::native::transport::WriteHalf;
use crate::support::user_code::UserCode;

/// The lanes of a connection's first stream, and of its second.
pub(crate) const MAIN: &[Lane] = &[Lane::Control, Lane::Call];
pub(crate) const BULK: &[Lane] = &[Lane::Bulk];

/// The sending half of one stream of one connection.
#[derive(Debug)]
pub(crate) struct SendStream {
    /// Which connection of the link it belongs to.
    pub(crate) epoch: u64,
    pub(crate) lanes: &'static [Lane],
    pub(crate) write: WriteHalf,
    pub(super) writer_lock: WriterLock,
    /// What is being written. Only the holder of the writer lock locks it.
    pub(super) batch: Mutex<Batch>,
    /// The writer lock was handed over to the task.
    pub(super) handover: Notify,
    /// How often the stream's task was woken: a lock that is handed over while this stands still waits for a
    /// task that does not run.
    pub(super) turns: AtomicU64,
    /// Whether the thread for the program's code was asked to write, and has not begun.
    pub(super) asked: AtomicBool,
    pub(super) user_code: Arc<UserCode>,
    /// What is said of either end's memory.
    pub(super) memory: MemoryTalk,
}

impl SendStream {
    pub(super) fn new(
        epoch: u64,
        lanes: &'static [Lane],
        write: WriteHalf,
        user_code: &Arc<UserCode>,
    ) -> Arc<Self> {
        Arc::new(Self {
            epoch,
            lanes,
            write,
            writer_lock: WriterLock::default(),
            batch: Mutex::default(),
            handover: Notify::new(),
            turns: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            user_code: Arc::clone(user_code),
            memory: MemoryTalk::default(),
        })
    }

    /// Whether the writer lock waits for somebody to take it over.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.writer_lock.is_handed_over()
    }

    /// A number that changes when the task runs.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }
}

impl Drop for SendStream {
    fn drop(&mut self) {
        let batch = self.batch.get_mut().unwrap_or_else(PoisonError::into_inner);
        let abandoned = batch.abandon();
        if !abandoned.0.is_empty() || !abandoned.1.is_empty() {
            self.user_code.run(move || drop(abandoned));
        }
    }
}

/// The right to write, and a mark that there is more.
#[derive(Debug, Default)]
pub(super) struct WriterLock(AtomicU8);

const FREE: u8 = 0;
const HELD: u8 = 1;
const MARKED: u8 = 2;
const HANDED_OVER: u8 = 3;
/// Handed over, and whoever has something to write at once may take it as well.
const NOT_URGENT: u8 = 4;

impl WriterLock {
    /// Takes the lock if it is free or not urgent, or else leaves a mark for its holder. Says whether it was taken.
    pub(super) fn acquire_or_mark(&self) -> bool {
        self.become_from(|state| match state {
            FREE | NOT_URGENT => (HELD, true),
            HANDED_OVER => (HANDED_OVER, false),
            _ => (MARKED, false),
        })
    }

    /// Hands the lock over if it is free, or else leaves a mark for its holder. Says whether it was handed over: to the
    /// task, or to whoever has something to write before that runs.
    pub(super) fn hand_over_or_mark(&self) -> bool {
        self.become_from(|state| match state {
            FREE => (NOT_URGENT, true),
            HANDED_OVER | NOT_URGENT => (state, false),
            _ => (MARKED, false),
        })
    }

    /// Goes from the present state to the one that this says, in one step.
    fn become_from(&self, next: impl Fn(u8) -> (u8, bool)) -> bool {
        let mut state = FREE;
        loop {
            let (next, result) = next(state);
            match self
                .0
                .compare_exchange_weak(state, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return result,
                Err(now) => state = now,
            }
        }
    }

    /// Whether it waits for somebody to take it over.
    pub(super) fn is_handed_over(&self) -> bool {
        matches!(self.0.load(Ordering::SeqCst), HANDED_OVER | NOT_URGENT)
    }

    /// Whether it waits for somebody, and for nobody else.
    pub(super) fn is_awaited(&self) -> bool {
        self.0.load(Ordering::SeqCst) == HANDED_OVER
    }

    /// As the holder, when somebody else has to go on.
    pub(super) fn hand_over(&self) {
        self.0.store(HANDED_OVER, Ordering::SeqCst);
    }

    /// Takes a lock that was handed over. Says whether it was.
    pub(super) fn take_over(&self) -> bool {
        self.become_from(|state| match state {
            HANDED_OVER | NOT_URGENT => (HELD, true),
            _ => (state, false),
        })
    }

    /// As the holder, before looking whether there is more.
    pub(super) fn clear_mark(&self) {
        self.0.store(HELD, Ordering::SeqCst);
    }

    /// As the holder, after having found that there is no more. Fails if there is a mark.
    pub(super) fn try_release(&self) -> bool {
        self.0
            .compare_exchange(HELD, FREE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}
