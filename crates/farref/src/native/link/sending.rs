//! The sending half of one stream: whoever has something to say writes it himself.
//!
//! A thread that wants frames written takes the *baton*, writes what the session has for this stream
//! until that is all, and lays the baton down. A thread that finds the baton taken leaves a mark and
//! goes its way. If the stream takes no more for now, the baton is left for the stream's own task, which
//! waits, or for whoever [helps out](SendStream::help_out) where the program keeps that task from running.
//!
//! Writing oneself is the quickest way for a message on an idle stream and the most expensive one for
//! many. So after a few writes without hearing from the peer the baton is left for the task too, which
//! first lets all others run and then writes together what they have left.
//!
//! # Invariants
//!
//! - **CH-1** What a session had for a stream when [`pump`](SendStream::pump) was called is written
//!   without another call: the caller takes the baton, or its mark makes the holder look once more.
//!   The baton is laid down only in one step with seeing that there is no mark, and the mark is wiped
//!   only before looking. A baton that was left needs no mark: whoever takes it up looks first.
//! - **CH-2** One thread at a time writes to a stream, and frames leave in the order in which the
//!   session gave them.
//! - **CH-3** No lock of the link is held while writing.
//! - **CH-4** Nobody lets go of the program's buffers while it has the baton, and the stream's task never:
//!   their destructors may take long.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farref_proto::{Frame, Lane};
use tokio::task::yield_now;
use tracing::error;

use super::send_stream::{MAIN, SendStream};
use super::{Link, Outdated, Stage};
use crate::codec::{BadSource, Part};
use crate::native::frame::{Batch, NotHere};
use crate::native::transport::WriteHalf;
use crate::support::lock::lock;

/// So many bytes are taken from the session at once: what is taken is beyond the reach of more urgent
/// frames.
const BATCH_BYTES: usize = 128 << 10;
/// And at most so many frames.
const BATCH_FRAMES: usize = 128;

/// So many writes in a row, with nothing heard from the peer in between, are made by callers.
const BURST: u32 = 3;
/// After so many batches a caller has done its share and leaves the rest to the task.
const CALLERS_SHARE: u32 = 16;
/// After so many batches the task lets other tasks run.
const TASKS_SHARE: u32 = 64;

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

impl SendStream {
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

    /// Writes in place of the stream's task, whatever the program's runtime believes of the stream.
    /// If that takes code of the program, it goes on where that may run.
    pub(crate) fn help_out(self: &Arc<Self>, link: &Arc<Link>) {
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

impl Link {
    /// Writes what is queued, as far as that can be done without waiting.
    pub(crate) fn flush(self: &Arc<Self>) {
        let (main, bulk) = {
            let state = self.state();
            let Stage::Standing(connection) = &state.stage else {
                return;
            };
            let bulk = connection
                .bulk
                .as_ref()
                .filter(|_| state.session.stored_bytes(Lane::Bulk) > 0);
            (Arc::clone(&connection.main), bulk.cloned())
        };
        main.pump(self);
        if let Some(bulk) = bulk {
            bulk.pump(self);
        }
    }

    /// Takes frames for a stream from the session. Says whether those were all.
    pub(super) fn fill(
        self: &Arc<Self>,
        channel: &SendStream,
        batch: &mut Batch,
    ) -> Result<bool, Outdated> {
        let now = self.endpoint.now();
        let mut ask_for_bulk = false;
        let mut emptied = false;
        let mut timeout = None;
        {
            let mut state = self.state();
            let state = &mut *state;
            if state.epoch != channel.epoch {
                return Err(Outdated);
            }
            let mut bytes = 0;
            while bytes < BATCH_BYTES && batch.waiting() < BATCH_FRAMES {
                let Some(frame) = state.session.poll_transmit_on(now, channel.lanes) else {
                    emptied = true;
                    break;
                };
                if let Frame::Data { payload, .. } = &frame {
                    bytes += payload.size();
                }
                batch.push(frame);
            }
            if channel.lanes == MAIN
                && let Stage::Standing(connection) = &mut state.stage
                && connection.lacks_bulk()
                && state.session.stored_bytes(Lane::Bulk) > 0
            {
                ask_for_bulk = self.ask_for_bulk(connection);
            }
            // What was taken makes the session want to be woken some time later.
            if !self.alarm.fires_by(now + self.endpoint.config.patience()) {
                timeout = state.session.poll_timeout();
            }
        }
        self.wake_by(timeout);
        if ask_for_bulk {
            batch.push_open_bulk();
        }
        batch.encode(now);
        Ok(emptied)
    }

    /// A stream has taken so many bytes. `partly` says that a frame is written in part.
    pub(super) fn wrote(&self, channel: &SendStream, bytes: usize, partly: bool) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.endpoint.meters.bytes_sent.add(bytes as u64);
        if partly {
            let now = self.endpoint.now();
            let mut state = self.state();
            if state.epoch == channel.epoch {
                for lane in channel.lanes {
                    state.session.handle_bytes_written(now, *lane);
                }
            }
        }
    }
}
