//! The sending half of one stream: whoever has something to say writes it himself.
//!
//! A thread that wants frames written takes the *baton*, writes what the session has for this stream
//! until that is all, and lays the baton down. A thread that finds the baton taken leaves a mark and
//! goes its way. If the stream takes no more for now, the baton goes to the stream's own task, which
//! waits.
//!
//! Writing oneself is the quickest way for a message on an idle stream and the most expensive one for
//! many. So after a few writes without hearing from the peer the baton goes to the task too, which
//! first lets all others run and then writes together what they have left.
//!
//! # Invariants
//!
//! - **CH-1** What a session had for a stream when [`pump`](Channel::pump) was called is written
//!   without another call: the caller takes the baton, or its mark makes the holder look once more.
//!   The baton is laid down only in one step with seeing that there is no mark, and the mark is wiped
//!   only before looking.
//! - **CH-2** One thread at a time writes to a stream, and frames leave in the order in which the
//!   session gave them.
//! - **CH-3** No lock of the link is held while writing.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, Ordering};

use farref_proto::Lane;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tracing::error;

use super::frame::Batch;
use super::link::{Link, Outdated};
use super::shared::lock;
use super::stream::WriteHalf;
use crate::codec::BadSource;

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
    write: WriteHalf,
    baton: Baton,
    /// What is being written. Only the holder of the baton locks it.
    batch: Mutex<Batch>,
    handover: Notify,
}

/// How far the holder of the baton got.
enum Outcome {
    /// All is written, the baton is laid down.
    Done,
    /// The stream takes no more for now.
    Blocked,
    /// There is more to write, but it is somebody else's turn.
    Tired,
    /// The stream or the connection is over. The baton is kept for ever.
    Over,
}

impl Channel {
    pub(super) fn new(epoch: u64, lanes: &'static [Lane], write: WriteHalf) -> Arc<Self> {
        Arc::new(Self {
            epoch,
            lanes,
            write,
            baton: Baton::default(),
            batch: Mutex::default(),
            handover: Notify::new(),
        })
    }

    /// Sees to it that what the session has for this stream is written (CH-1).
    pub(super) fn pump(&self, link: &Arc<Link>) {
        if self.baton.take_or_mark() {
            if link.burst.fetch_add(1, Ordering::Relaxed) >= BURST {
                self.handover.notify_one();
                return;
            }
            match self.drive(link, CALLERS_SHARE) {
                Outcome::Done | Outcome::Over => {}
                Outcome::Blocked | Outcome::Tired => self.handover.notify_one(),
            }
        }
    }

    /// The task that goes on where callers cannot.
    pub(super) async fn run(self: Arc<Self>, link: Arc<Link>) {
        loop {
            self.handover.notified().await;
            // Whoever is about to say something may say it first.
            yield_now().await;
            loop {
                match self.drive(&link, TASKS_SHARE) {
                    Outcome::Done => break,
                    Outcome::Tired => yield_now().await,
                    Outcome::Blocked => {
                        if self.write.writable().await.is_err() {
                            return;
                        }
                    }
                    Outcome::Over => return,
                }
            }
        }
    }

    /// Writes as the holder of the baton.
    fn drive(&self, link: &Arc<Link>, share: u32) -> Outcome {
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
            match batch.write(|slices| self.write.try_write_vectored(slices)) {
                Ok(0) => return Outcome::Over,
                Ok(written) => link.wrote(self, written, batch.is_under_way()),
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return Outcome::Blocked,
                    io::ErrorKind::Interrupted => {}
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

/// The right to write, and a mark that there is more.
#[derive(Debug, Default)]
struct Baton(AtomicU8);

const FREE: u8 = 0;
const TAKEN: u8 = 1;
const MARKED: u8 = 2;

impl Baton {
    /// Takes the baton if it is free, or else leaves a mark. Says whether it was taken.
    fn take_or_mark(&self) -> bool {
        let mut state = FREE;
        loop {
            let next = if state == FREE { TAKEN } else { MARKED };
            match self
                .0
                .compare_exchange_weak(state, next, Ordering::SeqCst, Ordering::SeqCst)
            {
                Ok(_) => return state == FREE,
                Err(now) => state = now,
            }
        }
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
