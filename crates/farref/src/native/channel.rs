//! The sending half of one stream: whoever has something to say writes it himself.
//!
//! A thread that wants frames written takes the *baton*, writes what the session has for this stream
//! until that is all, and lays the baton down. A thread that finds the baton taken leaves a mark and
//! goes its way. If the stream takes no more for now, the baton is left for the stream's own task, which
//! waits, or for whoever [helps out](Channel::help_out) where the program keeps that task from running.
//!
//! Writing oneself is the quickest way for a message on an idle stream and the most expensive one for
//! many. So after a few writes without hearing from the peer the baton is left for the task too, which
//! first lets all others run and then writes together what they have left.
//!
//! # Invariants
//!
//! - **CH-1** What a session had for a stream when [`pump`](Channel::pump) was called is written
//!   without another call: the caller takes the baton, or its mark makes the holder look once more.
//!   The baton is laid down only in one step with seeing that there is no mark, and the mark is wiped
//!   only before looking. A baton that was left needs no mark: whoever takes it up looks first.
//! - **CH-2** One thread at a time writes to a stream, and frames leave in the order in which the
//!   session gave them.
//! - **CH-3** No lock of the link is held while writing.
//! - **CH-4** Nobody lets go of the program's buffers while it has the baton, and the stream's task never:
//!   their destructors may take long.

use std::io::{self, IoSlice};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use farref_proto::Lane;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tracing::error;

use super::frame::{Batch, NotHere};
use super::link::{Link, Outdated};
use super::shared::lock;
use super::stream::WriteHalf;
use crate::codec::{BadSource, Part};
use crate::support::user_code::UserCode;

/// The lanes of a connection's first stream, and of its second.
pub(super) const MAIN: &[Lane] = &[Lane::Control, Lane::Call];
pub(super) const BULK: &[Lane] = &[Lane::Bulk];

/// So many writes in a row, with nothing heard from the peer in between, are made by callers.
const BURST: u32 = 3;
/// After so many batches a caller has done its share and leaves the rest to the task.
const CALLERS_SHARE: u32 = 16;
/// After so many batches the task lets other tasks run.
const TASKS_SHARE: u32 = 64;

/// The sending half of one stream of one connection.
#[derive(Debug)]
pub(super) struct Channel {
    /// Which connection of the link it belongs to.
    pub(super) epoch: u64,
    pub(super) lanes: &'static [Lane],
    pub(super) write: WriteHalf,
    baton: Baton,
    /// What is being written. Only the holder of the baton locks it.
    batch: Mutex<Batch>,
    handover: Notify,
    /// How often the stream's task was woken: a baton that is left while this stands still waits for a task
    /// that does not run.
    turns: AtomicU64,
    /// Whether the thread for the program's code was asked to write, and has not begun.
    asked: AtomicBool,
    user_code: Arc<UserCode>,
}

/// How bytes are given to the stream.
type Write = fn(&WriteHalf, &[IoSlice<'_>]) -> io::Result<usize>;

/// How far the holder of the baton got.
enum Outcome {
    /// All is written, the baton is laid down.
    Done,
    /// The stream takes no more for now.
    Blocked,
    /// There is more to write, but it is somebody else's turn.
    Tired,
    /// What comes next is behind code of the program, which must not run here.
    NotHere,
    /// The stream or the connection is over. The baton is kept for ever.
    Over,
}

impl Channel {
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

    /// Sees to it that what the session has for this stream is written (CH-1).
    pub(super) fn pump(&self, link: &Arc<Link>) {
        if self.baton.take_or_mark() {
            if link.burst.fetch_add(1, Ordering::Relaxed) < BURST {
                let mut written = Vec::new();
                let write = WriteHalf::try_write_vectored;
                let outcome = self.drive(link, CALLERS_SHARE, write, &mut written);
                self.after_callers_share(&outcome);
                self.let_go(written);
            } else {
                self.hand_over();
            }
        }
    }

    /// Leaves the baton for the task if there is more to do.
    fn after_callers_share(&self, outcome: &Outcome) {
        match outcome {
            Outcome::Done | Outcome::Over => {}
            Outcome::Blocked | Outcome::Tired | Outcome::NotHere => self.hand_over(),
        }
    }

    fn hand_over(&self) {
        self.baton.leave();
        // Also if the task looked for it meanwhile, in vain.
        self.handover.notify_one();
    }

    /// CH-4: without the baton.
    fn let_go(&self, written: Vec<Part>) {
        if !written.is_empty() {
            self.user_code.run(move || drop(written));
        }
    }

    /// Whether the baton is left for somebody to take up, and a number that changes when the task runs.
    pub(super) fn is_left(&self) -> (bool, u64) {
        let turns = self.turns.load(Ordering::Relaxed);
        (self.baton.is_left(), turns)
    }

    /// Writes in place of the stream's task, whatever the program's runtime believes of the stream.
    /// If that takes code of the program, it goes on where that may run.
    pub(super) fn help_out(self: &Arc<Self>, link: &Arc<Link>) {
        if !self.baton.take_up() {
            return;
        }
        let mut written = Vec::new();
        let outcome = self.drive(link, CALLERS_SHARE, WriteHalf::try_write_now, &mut written);
        self.after_callers_share(&outcome);
        self.let_go(written);
        if matches!(outcome, Outcome::NotHere) && !self.asked.swap(true, Ordering::SeqCst) {
            let (channel, link) = (Arc::clone(self), Arc::clone(link));
            self.user_code.put_off(move || {
                channel.asked.store(false, Ordering::SeqCst);
                channel.help_out(&link);
            });
        }
    }

    /// The task that goes on where callers cannot.
    pub(super) async fn run(self: Arc<Self>, link: Arc<Link>) {
        loop {
            self.handover.notified().await;
            self.turns.fetch_add(1, Ordering::Relaxed);
            // Whoever is about to say something may say it first.
            yield_now().await;
            while self.baton.take_up() {
                let mut written = Vec::new();
                let write = WriteHalf::try_write_vectored;
                let outcome = self.drive(&link, TASKS_SHARE, write, &mut written);
                if !written.is_empty() {
                    self.user_code.put_off(move || drop(written));
                }
                match outcome {
                    Outcome::Done => break,
                    Outcome::Tired | Outcome::NotHere => {
                        self.baton.leave();
                        yield_now().await;
                        self.turns.fetch_add(1, Ordering::Relaxed);
                    }
                    Outcome::Blocked => {
                        self.baton.leave();
                        if self.write.writable().await.is_err() {
                            return;
                        }
                        self.turns.fetch_add(1, Ordering::Relaxed);
                    }
                    Outcome::Over => return,
                }
            }
        }
    }

    /// Writes as the holder of the baton. What was `written` of the program's is the caller's to let go of
    /// (CH-4).
    fn drive(
        &self,
        link: &Arc<Link>,
        share: u32,
        write: Write,
        written: &mut Vec<Part>,
    ) -> Outcome {
        let mut batch = lock(&self.batch);
        let mut batches = 0;
        // Whether the session had nothing beyond what is in the batch.
        let mut emptied = false;
        loop {
            if batch.is_empty() {
                if emptied && self.baton.lay_down() {
                    return Outcome::Done;
                }
                if batches == share {
                    return Outcome::Tired;
                }
                batches += 1;
                self.baton.wipe_mark();
                match link.fill(self, &mut batch) {
                    Ok(all) => emptied = all,
                    Err(Outdated) => return Outcome::Over,
                }
                if batch.is_empty() {
                    continue;
                }
            }
            match batch.write(|slices| write(&self.write, slices)) {
                Ok(0) => return Outcome::Over,
                Ok(bytes) => {
                    link.wrote(self, bytes, batch.is_under_way());
                    written.append(&mut batch.take_written());
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Outcome::Blocked,
                    io::ErrorKind::Interrupted => {}
                    _ if error.get_ref().is_some_and(|inner| inner.is::<NotHere>()) => {
                        return Outcome::NotHere;
                    }
                    _ if error.get_ref().is_some_and(|inner| inner.is::<BadSource>()) => {
                        // The peer cannot notice this one: it waits for the rest.
                        drop(batch);
                        error!(peer = %link.peer, %error, "a message cannot be sent");
                        link.lose(self.epoch, &error);
                        return Outcome::Over;
                    }
                    // The reader notices too, and ends the connection once it has handed in what
                    // came before.
                    _ => return Outcome::Over,
                },
            }
        }
    }
}

impl Drop for Channel {
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
struct Baton(AtomicU8);

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const MARKED: u8 = 2;
const LEFT: u8 = 3;

impl Baton {
    /// Takes the baton if it is free, or else leaves a mark with its holder. Says whether it was taken.
    fn take_or_mark(&self) -> bool {
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
    fn leave(&self) {
        self.0.store(LEFT, Ordering::SeqCst);
    }

    fn is_left(&self) -> bool {
        self.0.load(Ordering::SeqCst) == LEFT
    }

    /// Takes a baton that was left. Says whether it was.
    fn take_up(&self) -> bool {
        self.0
            .compare_exchange(LEFT, TAKEN, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// As the holder, before looking whether there is more.
    fn wipe_mark(&self) {
        self.0.store(TAKEN, Ordering::SeqCst);
    }

    /// As the holder, after having found that there is no more. Fails if there is a mark.
    fn lay_down(&self) -> bool {
        self.0
            .compare_exchange(TAKEN, FREE, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }
}
