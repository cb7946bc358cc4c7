//! The sending half of one stream, and the right to write to it. How it is used: [`sending`](super::sending).

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farref_proto::Lane;
use tokio::sync::Notify;

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
    pub(super) baton: Baton,
    /// What is being written. Only the holder of the baton locks it.
    pub(super) batch: Mutex<Batch>,
    pub(super) handover: Notify,
    /// How often the stream's task was woken: a baton that is left while this stands still waits for a task
    /// that does not run.
    pub(super) turns: AtomicU64,
    /// Whether the thread for the program's code was asked to write, and has not begun.
    pub(super) asked: AtomicBool,
    pub(super) user_code: Arc<UserCode>,
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
            baton: Baton::default(),
            batch: Mutex::default(),
            handover: Notify::new(),
            turns: AtomicU64::new(0),
            asked: AtomicBool::new(false),
            user_code: Arc::clone(user_code),
        })
    }

    /// Whether the baton is left for somebody to take up, and a number that changes when the task runs.
    pub(crate) fn is_left(&self) -> (bool, u64) {
        let turns = self.turns.load(Ordering::Relaxed);
        (self.baton.is_left(), turns)
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
pub(super) struct Baton(AtomicU8);

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const MARKED: u8 = 2;
const LEFT: u8 = 3;

impl Baton {
    /// Takes the baton if it is free, or else leaves a mark with its holder. Says whether it was taken.
    pub(super) fn take_or_mark(&self) -> bool {
        let mut state = FREE;
        loop {
            let next = match state {
                FREE => TAKEN,
                LEFT => LEFT,
                _ => MARKED,
            };
            match self
                .0
                .compare_exchange_weak(state, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return state == FREE,
                Err(now) => state = now,
            }
        }
    }

    /// As the holder, when somebody else has to go on.
    pub(super) fn leave(&self) {
        self.0.store(LEFT, Ordering::SeqCst);
    }

    pub(super) fn is_left(&self) -> bool {
        self.0.load(Ordering::SeqCst) == LEFT
    }

    /// Takes a baton that was left. Says whether it was.
    pub(super) fn take_up(&self) -> bool {
        self.0
            .compare_exchange(LEFT, TAKEN, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// As the holder, before looking whether there is more.
    pub(super) fn wipe_mark(&self) {
        self.0.store(TAKEN, Ordering::SeqCst);
    }

    /// As the holder, after having found that there is no more. Fails if there is a mark.
    pub(super) fn lay_down(&self) -> bool {
        self.0
            .compare_exchange(TAKEN, FREE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}
