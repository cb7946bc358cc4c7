//! The sending half of one stream. How it is used: [`sending`](super::sending).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farref_proto::Lane;

use super::memory_talk::MemoryTalk;
use super::writer_lock::WriterLock;
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
