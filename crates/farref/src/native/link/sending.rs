//! Writing to streams: whoever has something to send writes it itself.
//!
//! A thread that wants frames written takes the stream's writer lock, writes what the session has for this
//! stream until that is all, and releases the lock. A thread that finds the lock held leaves a mark and goes on.
//! If the stream takes no more for now, the lock is handed over to the stream's own task, which waits, or to
//! whoever [writes in its place](SendStream::write_for_task) where the program keeps that task from running.
//!
//! Writing oneself is the quickest way for a message on an idle stream and the most expensive one for
//! many. So after a few writes without hearing from the peer, and for all that follows from a read that brought
//! several messages, the lock is handed over to the task too, which first lets all others run and then writes
//! together what they have queued. And so it is for what nobody waits for: references that were dropped, say. But that
//! leaves with whatever is written before the task runs.
//!
//! # Invariants
//!
//! - **SD-1** What a session had for a stream when [`write_pending`](SendStream::write_pending) was called is written
//!   without another call: the caller takes the writer lock, or its mark makes the holder look once more.
//!   The lock is released only in one step with seeing that there is no mark, and the mark is cleared
//!   only before looking. A lock that was handed over needs no mark: whoever takes it over looks first.
//! - **SD-2** One thread at a time writes to a stream, and frames leave in the order in which the
//!   session gave them.
//! - **SD-3** No lock of the link is held while writing.
//! - **SD-4** Nobody drops the program's buffers, or large regions, while it holds the writer lock, and the stream's task
//!   never: their destructors may take long.

use std::error::Error;
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use farref_proto::{Frame, Lane};
use tokio::task::yield_now;
use tracing::error;

use super::send_stream::{MAIN, SendStream};
use super::{ConnectionState, Link};
use crate::codec::{BadSource, Part};
use crate::native::frame::{Batch, UserCodeBarred, large_regions};
use crate::native::transport::WriteHalf;
use crate::support::lock::lock;

/// So many bytes are taken from the session at once: what is taken is beyond the reach of more urgent
/// frames.
const BATCH_BYTES: usize = 128 << 10;
/// And at most so many frames.
const BATCH_FRAMES: usize = 128;

/// So many writes in a row, with nothing heard from the peer in between, are made by callers. A read that brought several
/// messages counts as so many: what follows from them is gathered.
pub(super) const BURST: u32 = 3;
/// After so many batches a caller has done enough and leaves the rest to the task.
const CALLER_QUOTA: u32 = 16;
/// After so many batches the task lets other tasks run.
const TASK_QUOTA: u32 = 64;

/// The connection that a stream belongs to is not the present one.
struct Outdated;

/// How bytes are given to the stream.
type Write = fn(&WriteHalf, &[IoSlice<'_>]) -> io::Result<usize>;

/// How far the holder of the writer lock got.
enum WriteOutcome {
    /// All is written, the lock is released.
    Done,
    /// The stream takes no more for now.
    Blocked,
    /// There is more to write, but it is somebody else's turn.
    QuotaSpent,
    /// What comes next is behind code of the program, which must not run here.
    NeedsUserCode,
    /// The stream or the connection is closed. The lock is never released.
    Closed,
}

impl SendStream {
    /// Sees to it that what the session has for this stream is written (SD-1).
    pub(super) fn write_pending(&self, link: &Arc<Link>) {
        if !self.writer_lock.acquire_or_mark() {
            return;
        }
        if link.burst.fetch_add(1, Ordering::Relaxed) < BURST {
            self.write_share(link, WriteHalf::try_write_vectored);
        } else {
            self.writer_lock.hand_over_to_task();
        }
    }

    /// The same for what is not urgent: it leaves with the next that is, or else the task writes it.
    pub(super) fn write_later(&self) {
        self.writer_lock.hand_over_or_mark();
    }

    /// Writes in place of the stream's task, whatever the program's runtime believes of the stream.
    /// If that takes code of the program, it goes on where that may run.
    pub(crate) fn write_for_task(self: &Arc<Self>, link: &Arc<Link>) {
        if !self.writer_lock.take_over() {
            return;
        }
        let outcome = self.write_share(link, WriteHalf::try_write_now);
        if matches!(outcome, WriteOutcome::NeedsUserCode)
            && !self.asked.swap(true, Ordering::SeqCst)
        {
            let (stream, link) = (Arc::clone(self), Arc::clone(link));
            self.user_code.defer(move || {
                stream.asked.store(false, Ordering::SeqCst);
                stream.write_for_task(&link);
            });
        }
    }

    /// Writes a caller's share, and hands the writer lock over to the task if there is more to do.
    fn write_share(&self, link: &Arc<Link>, write: Write) -> WriteOutcome {
        let mut written = Vec::new();
        let outcome = self.drive(link, CALLER_QUOTA, write, &mut written);
        if !matches!(outcome, WriteOutcome::Done | WriteOutcome::Closed) {
            self.writer_lock.hand_over_to_task();
        }
        // SD-4: without the writer lock.
        if !written.is_empty() {
            self.user_code.run(move || drop(written));
        }
        outcome
    }

    /// The task that goes on where callers cannot.
    pub(super) async fn run(self: Arc<Self>, link: Arc<Link>) {
        loop {
            self.writer_lock.handed_over().await;
            self.turns.fetch_add(1, Ordering::Relaxed);
            // Whoever is about to say something may say it first.
            yield_now().await;
            while self.writer_lock.take_over() {
                let mut written = Vec::new();
                let write = WriteHalf::try_write_vectored;
                let outcome = self.drive(&link, TASK_QUOTA, write, &mut written);
                if !written.is_empty() {
                    self.user_code.defer(move || drop(written));
                }
                match outcome {
                    WriteOutcome::Done => {
                        // What was to be gathered is. What comes alone from now on is written at once.
                        link.burst.store(0, Ordering::Relaxed);
                        break;
                    }
                    WriteOutcome::QuotaSpent | WriteOutcome::NeedsUserCode => {
                        self.writer_lock.hand_over();
                        yield_now().await;
                        self.turns.fetch_add(1, Ordering::Relaxed);
                    }
                    WriteOutcome::Blocked => {
                        self.writer_lock.hand_over();
                        if self.write.writable().await.is_err() {
                            return;
                        }
                        self.turns.fetch_add(1, Ordering::Relaxed);
                    }
                    WriteOutcome::Closed => return,
                }
            }
        }
    }

    /// Writes as the holder of the writer lock. What was `written` of the program's is the caller's to drop
    /// (SD-4).
    fn drive(
        &self,
        link: &Arc<Link>,
        quota: u32,
        write: Write,
        written: &mut Vec<Part>,
    ) -> WriteOutcome {
        let mut batch = lock(&self.batch);
        let mut batches = 0;
        // Whether the session had nothing beyond what is in the batch.
        let mut emptied = false;
        loop {
            if batch.is_empty() {
                // What the stream has taken is perhaps not written.
                if self.write.has_unsent() {
                    match write(&self.write, &[]) {
                        Ok(_) => {}
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                            return WriteOutcome::Blocked;
                        }
                        Err(_) => return WriteOutcome::Closed,
                    }
                }
                if emptied && self.writer_lock.try_release() {
                    return WriteOutcome::Done;
                }
                if batches == quota {
                    return WriteOutcome::QuotaSpent;
                }
                batches += 1;
                self.writer_lock.clear_mark();
                match link.fill(self, &mut batch) {
                    Ok(all) => emptied = all,
                    Err(Outdated) => return WriteOutcome::Closed,
                }
                if batch.is_empty() {
                    continue;
                }
            }
            let regions = batch.due_regions();
            let written_bytes = batch.write(|slices| match &*regions {
                [] => write(&self.write, slices),
                #[cfg(all(test, target_os = "linux"))]
                _ if link.peer_reads.passing_fails.swap(false, Ordering::SeqCst) => {
                    Err(rustix::io::Errno::TOOMANYREFS.into())
                }
                regions => self.write.try_pass(slices, regions),
            });
            match written_bytes {
                Ok(0) => return WriteOutcome::Closed,
                Ok(bytes) => {
                    link.wrote(self, bytes, batch.is_under_way());
                    written.append(&mut batch.take_written());
                    written.extend(large_regions(regions.into_iter()));
                }
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock => return WriteOutcome::Blocked,
                    io::ErrorKind::Interrupted => {}
                    _ if is_caused_by::<UserCodeBarred>(&error) => {
                        return WriteOutcome::NeedsUserCode;
                    }
                    _ if is_caused_by::<BadSource>(&error) => {
                        // The peer cannot notice this one: it waits for the rest.
                        drop(batch);
                        error!(peer = %link.peer, %error, "a message cannot be sent");
                        link.lose_connection(self.epoch, &error);
                        return WriteOutcome::Closed;
                    }
                    _ if !regions.is_empty() && !is_over(&error) => {
                        // PM-5: more of them are on their way than the system allows, say.
                        drop(batch);
                        link.peer_reads.rest_passing(&link.endpoint);
                        link.lose_connection(self.epoch, &error);
                        return WriteOutcome::Closed;
                    }
                    // The reader notices too, and ends the connection once it has delivered what
                    // came before.
                    _ => return WriteOutcome::Closed,
                },
            }
        }
    }
}

/// Whether the peer has closed the stream.
fn is_over(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | NotConnected)
}

fn is_caused_by<E: Error + 'static>(error: &io::Error) -> bool {
    error.get_ref().is_some_and(|inner| inner.is::<E>())
}

impl Link {
    /// Writes what is queued, as far as that can be done without waiting.
    pub(crate) fn flush(self: &Arc<Self>) {
        let (main, bulk) = {
            let state = self.state();
            let ConnectionState::Established(connection) = &state.connection else {
                return;
            };
            let bulk = connection.bulk.as_ref();
            let bulk = bulk.filter(|_| state.session.stored_bytes(Lane::Bulk) > 0);
            let bulk = bulk.map(|bulk| Arc::clone(&bulk.send));
            (Arc::clone(&connection.main.send), bulk)
        };
        main.write_pending(self);
        if let Some(bulk) = bulk {
            bulk.write_pending(self);
        }
    }

    /// Sees to it that what is queued is written before long.
    pub(super) fn flush_later(&self) {
        let main = match &self.state().connection {
            ConnectionState::Established(connection) => Arc::clone(&connection.main.send),
            ConnectionState::Disconnected | ConnectionState::Handshaking => return,
        };
        main.write_later();
    }

    /// Takes frames for a stream from the session. Says whether those were all.
    fn fill(self: &Arc<Self>, stream: &SendStream, batch: &mut Batch) -> Result<bool, Outdated> {
        let now = self.endpoint.now();
        let mut ask_for_bulk = false;
        let mut emptied;
        let mut timeout = None;
        let acknowledged;
        {
            let mut state = self.state();
            let state = &mut *state;
            if state.epoch != stream.epoch {
                return Err(Outdated);
            }
            acknowledged = state.session.acknowledged(Lane::Bulk);
            let mut bytes = 0;
            // PM-6
            emptied = stream.memory.awaits_answer();
            while !emptied && bytes < BATCH_BYTES && batch.waiting() < BATCH_FRAMES {
                let Some(frame) = state.session.poll_transmit_on(now, stream.lanes) else {
                    emptied = true;
                    break;
                };
                if let Frame::Data { payload, .. } = &frame {
                    bytes += payload.size();
                }
                batch.push(frame);
            }
            if stream.lanes == MAIN
                && let ConnectionState::Established(connection) = &mut state.connection
                && connection.lacks_bulk()
                && state.session.stored_bytes(Lane::Bulk) > 0
            {
                ask_for_bulk = self.ask_for_bulk(connection);
            }
            // What was taken makes the session want to be woken some time later.
            if !self
                .alarm
                .fires_by(now + self.endpoint.config.earliest_wake())
            {
                timeout = state.session.poll_timeout();
            }
        }
        self.wake_by(timeout);
        if ask_for_bulk {
            batch.push_open_bulk();
        }
        for frame in stream.memory.take_owed(&self.endpoint) {
            batch.push_memory(frame);
        }
        let may_pass = stream.memory.may_pass() && self.peer_reads.passes_regions(now);
        batch.permit_regions(may_pass, acknowledged);
        batch.encode(now, stream.memory.may_name());
        let named = batch.take_named();
        if named > 0 {
            self.sent.fetch_add(named, Ordering::Relaxed);
            self.endpoint.metrics.bytes_sent.add(named);
        }
        Ok(emptied)
    }

    /// A stream has taken so many bytes. `partly` says that a frame is written in part.
    fn wrote(&self, stream: &SendStream, bytes: usize, partly: bool) {
        self.sent.fetch_add(bytes as u64, Ordering::Relaxed);
        self.endpoint.metrics.bytes_sent.add(bytes as u64);
        if partly {
            let now = self.endpoint.now();
            let mut state = self.state();
            if state.epoch == stream.epoch {
                for lane in stream.lanes {
                    state.session.handle_bytes_written(now, *lane);
                }
            }
        }
    }
}
