//! Reading from streams, and delivering what peers sent.
//!
//! A task on the program's runtime does it. Where the program keeps that task from running, others
//! [read in its place](RecvStream::read_for_task). Everything that has been read is delivered before anything
//! else is read. Whoever reads is also the one that notices the end of a stream, so what came before the end is
//! not lost.
//!
//! # Invariants
//!
//! - **RE-1** No code of the program runs while a message is delivered (UC-1): what takes long there holds
//!   up this stream's other messages, and heartbeats.
//! - **RE-2** A message that was acknowledged is delivered, or the link is closed: whatever goes wrong, no
//!   message is missing in silence.

use std::mem::take;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll};
use std::{future, io};

use farref_proto::{Frame, SessionError, Time};
use tokio::task::yield_now;

use super::busy_poll::Idle;
use super::disconnecting::Offence;
use super::recv_stream::{RecvState, RecvStream};
use super::sending::BURST;
use super::{ConnectionState, Link, LinkState};
use crate::agent::Message;
use crate::native::frame::{DecodedFrame, FrameError, ReceivedMessage};
use crate::native::transport::{RegionFault, descriptor_fault};
use crate::support::clock::Instant;
use crate::support::lock::{lock, try_lock};
use crate::support::mutation::mutated;
use crate::support::user_code;

/// After so many reads the task lets others run.
const TASK_QUOTA: u32 = 64;
/// After so many reads of one stream whoever reads for tasks turns to the next.
const FALLBACK_QUOTA: u32 = 64;

/// So many bytes are read by a look: a short message or two.
const LOOK_BYTES: usize = 512;
/// And so many more, if those were there.
const READ_ON: usize = 64 << 10;

/// So many frames are taken out of what was read before they are delivered.
const FRAMES_AT_ONCE: usize = 64;

/// Why a stream is read no more.
enum StopReason {
    /// The stream is closed or of no use.
    Lost(String),
    /// The peer did what no correct peer does.
    Misbehaved(Offence),
    /// Something of ours panicked (RE-2).
    Panicked(String),
    /// Another connection has taken the place of this one.
    Outdated,
    /// There is nobody to deliver anything to.
    NoRuntime,
}

impl RecvStream {
    /// The task that reads the stream to its end.
    pub(super) async fn run(self: Arc<Self>, link: Arc<Link>) {
        future::poll_fn(|context| self.poll(&link, context)).await;
    }

    fn poll(&self, link: &Arc<Link>, context: &mut Context<'_>) -> Poll<()> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let mut state = lock(&self.state);
        for _ in 0..TASK_QUOTA {
            if state.closed {
                return Poll::Ready(());
            }
            let polled = state.poll_read(context);
            let read = match polled {
                Poll::Ready(read) => read,
                Poll::Pending => match self.look(link, &mut state, context) {
                    Some(read) => read,
                    None => return Poll::Pending,
                },
            };
            state.busy_poll.read(Instant::now);
            if let Err(reason) = self.handle_read(link, &mut state, read, None) {
                self.stop(link, state, reason);
                return Poll::Ready(());
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// There is nothing to read. If it is [worth it](super::busy_poll) looks whether there is by now, and has the task look
    /// again if not.
    fn look(
        &self,
        link: &Link,
        state: &mut RecvState,
        context: &mut Context<'_>,
    ) -> Option<io::Result<usize>> {
        let owes = || {
            let inbound = link.endpoint.inbound.upgrade();
            inbound.is_some_and(|inbound| inbound.owes_answers(link.peer))
        };
        if state.busy_poll.idle(Instant::now, owes) == Idle::Wait {
            return None;
        }
        match state.read_now(&mut [0; LOOK_BYTES]) {
            Err(error) if is_transient(&error) => {
                // BP-2: behind all others, also those that let others go first.
                let _ = pin!(yield_now()).poll(context);
                None
            }
            Ok(LOOK_BYTES) => {
                // As far as the runtime knows there is nothing. What is wrong now will be wrong when it is read again.
                let more = state.read_now(&mut vec![0; READ_ON]).unwrap_or(0);
                Some(Ok(LOOK_BYTES + more))
            }
            read => Some(read),
        }
    }

    /// Reads in place of the stream's task, whatever the program's runtime believes of the stream.
    pub(crate) fn read_for_task(&self, link: &Arc<Link>, scratch: &mut [u8]) {
        // Where somebody else has it the task does run.
        let Some(mut state) = try_lock(&self.state) else {
            return;
        };
        for _ in 0..FALLBACK_QUOTA {
            if state.closed {
                return;
            }
            // LI-2; whoever delivers right now is not waited for: all workers of the process need this thread.
            let Some(delivering) = try_lock(&link.delivery_lock) else {
                return;
            };
            let read = match state.read_now(scratch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read,
            };
            if let Err(reason) = self.handle_read(link, &mut state, read, Some(delivering)) {
                return self.stop(link, state, reason);
            }
        }
    }

    /// Takes note of what was read, and delivers what is whole.
    fn handle_read(
        &self,
        link: &Arc<Link>,
        state: &mut RecvState,
        read: io::Result<usize>,
        delivering: Option<MutexGuard<'_, ()>>,
    ) -> Result<(), StopReason> {
        match read {
            Ok(0) => return Err(StopReason::Lost("closed by the peer".to_owned())),
            Ok(read) => {
                link.received.fetch_add(read as u64, Ordering::Relaxed);
                link.endpoint.metrics.bytes_received.add(read as u64);
            }
            Err(error) => {
                return Err(match descriptor_fault(&error) {
                    // FR-6
                    Some(RegionFault::Peers(fault)) => {
                        StopReason::Misbehaved(Offence::new("memory", fault))
                    }
                    Some(RegionFault::Ours(why)) => {
                        // PM-5
                        link.peer_reads.refuse_regions();
                        StopReason::Lost(why)
                    }
                    None => StopReason::Lost(error.to_string()),
                });
            }
        }
        state.sort_descriptors()?;
        let deliver = AssertUnwindSafe(|| self.deliver_all(link, state, delivering));
        // RE-1
        user_code::forbid_during(|| catch_unwind(deliver)).unwrap_or_else(|panic| {
            // RE-2
            let message = user_code::panic_message(&*panic).unwrap_or("a panic");
            Err(StopReason::Panicked(message.to_owned()))
        })?;
        if let Some(pieces) = state.decoder.take_named() {
            let reading = self.read_memory(link, pieces);
            state.reading = Some(reading.map_err(|why| StopReason::Lost(why.to_owned()))?);
        }
        Ok(())
    }

    fn stop(&self, link: &Arc<Link>, mut state: MutexGuard<'_, RecvState>, reason: StopReason) {
        state.closed = true;
        drop(state);
        match reason {
            StopReason::Lost(why) => link.lose_connection(self.epoch, &why),
            StopReason::Misbehaved(offence) => link.cut_off_at(self.epoch, offence),
            StopReason::Panicked(fault) => link.give_up(self.epoch, &fault),
            StopReason::NoRuntime => link.close(),
            StopReason::Outdated => {}
        }
    }

    /// Delivers all frames that have come in full. The caller may have the lock for that already.
    fn deliver_all(
        &self,
        link: &Arc<Link>,
        state: &mut RecvState,
        delivering: Option<MutexGuard<'_, ()>>,
    ) -> Result<(), StopReason> {
        let now = link.endpoint.now();
        // LI-2
        let delivering = delivering.unwrap_or_else(|| lock(&link.delivery_lock));
        let mut frames = 0;
        loop {
            let read = self.decode_some(link, state);
            let is_all = !matches!(read, Ok(Progress::More));
            frames += state.frames.len();
            let handled = self.handle_frames(link, now, state);
            // Answers to several calls, and what follows from several answers, are gathered. Nothing follows from what the
            // protocol says to itself beside them.
            let calls = state.messages.iter().filter(|message| {
                !matches!(*message.0, Message::Control(_) | Message::Credit { .. })
            });
            let burst = if calls.take(2).count() > 1 { BURST } else { 0 };
            link.burst.store(burst, Ordering::Relaxed);
            deliver(link, &mut state.messages)?;
            state.decoder.reclaim(state.messages.drain(..));
            handled?;
            read?;
            if is_all {
                break;
            }
        }
        drop(delivering);

        let (owes, timeout, has_waiters) = {
            let mut state = link.state();
            if frames == 0 && state.epoch == self.epoch {
                state.session.handle_bytes_read(now);
            }
            // What was received makes the session want to be woken when its acknowledgement falls due.
            let due = now + link.endpoint.config.ack_delay;
            let timeout = if link.alarm.fires_by(due) {
                None
            } else {
                state.session.poll_timeout()
            };
            (state.session.owes_frame(now), timeout, state.has_waiters)
        };
        link.wake_by(timeout);
        if has_waiters {
            link.progress.notify_waiters();
        }
        // PM-6
        if owes | take(&mut state.may_send) {
            link.flush();
        }
        Ok(())
    }

    /// Takes frames out of what was read, as far as they are whole and correct.
    fn decode_some(&self, link: &Arc<Link>, state: &mut RecvState) -> Result<Progress, StopReason> {
        if self.memory.get().is_some() {
            state.decoder.permit_names();
        }
        while state.frames.len() < FRAMES_AT_ONCE {
            let Some(received) = state.decoder.next()? else {
                let in_place = state.decoder.take_in_place();
                if in_place > 0 {
                    link.count_in_place(in_place);
                }
                return Ok(Progress::All);
            };
            match received {
                DecodedFrame::Session(Frame::Data { lane, .. }) if !self.lanes.contains(&lane) => {
                    let what = format!("peer sent data of the {lane} lane on the wrong stream");
                    return Err(StopReason::Misbehaved(Offence::new("stream", what)));
                }
                DecodedFrame::Session(frame) => state.frames.push(frame),
                DecodedFrame::Memory(frame) => {
                    let handled = self.handle_memory(link, frame);
                    let may_send = handled
                        .map_err(|fault| StopReason::Misbehaved(Offence::new("memory", fault)))?;
                    state.may_send |= may_send;
                }
                DecodedFrame::OpenBulk => {
                    let mut state = link.state();
                    if state.epoch == self.epoch
                        && let ConnectionState::Established(connection) = &mut state.connection
                        && connection.dialed.is_some()
                    {
                        link.ask_for_bulk(connection);
                    }
                }
            }
        }
        Ok(Progress::More)
    }

    /// Brings frames to the session, and keeps what is new in them.
    fn handle_frames(
        &self,
        link: &Link,
        now: Time,
        state: &mut RecvState,
    ) -> Result<(), StopReason> {
        if state.frames.is_empty() {
            return Ok(());
        }
        let RecvState {
            frames,
            messages,
            acknowledged,
            ..
        } = state;
        let handled = {
            let mut state = link.state();
            let LinkState {
                session,
                bulk_calls,
                failures,
                epoch,
                ..
            } = &mut *state;
            if *epoch != self.epoch {
                frames.clear();
                return Err(StopReason::Outdated);
            }
            *failures = 0;
            let mut handle = |frame: Frame<ReceivedMessage>| {
                let news =
                    session.handle_frame_with(now, frame, |packet| acknowledged.push(packet))?;
                if let Some((_, message)) = news {
                    if let Message::Answer(answer) = &*message.0 {
                        bulk_calls.remove(&answer.head.id);
                    }
                    messages.push(message);
                }
                Ok(())
            };
            frames.drain(..).try_for_each(&mut handle)
        };
        // LI-4
        link.endpoint.drop_packets(acknowledged);
        handled.map_err(|error| match error {
            SessionError::AckOfUnsent { .. } => {
                StopReason::Misbehaved(Offence::new("session", error.to_string()))
            }
            _ => StopReason::Lost(error.to_string()),
        })
    }
}

/// Whether nothing is wrong: there is nothing to read, or the system was interrupted.
fn is_transient(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, WouldBlock};
    matches!(error.kind(), Interrupted | WouldBlock)
}

/// Whether there is more to take out of what was read.
enum Progress {
    All,
    More,
}

/// Hands messages over.
fn deliver(link: &Link, messages: &mut Vec<ReceivedMessage>) -> Result<(), StopReason> {
    if link.endpoint.is_closing() {
        messages.clear();
    }
    if mutated!(LoseLastMessage) && messages.len() > 1 {
        messages.pop();
    }
    if messages.is_empty() {
        return Ok(());
    }
    let inbound = link
        .endpoint
        .inbound
        .upgrade()
        .ok_or(StopReason::NoRuntime)?;
    inbound
        .receive_all(
            link.peer,
            &mut messages.iter_mut().map(|message| &mut *message.0),
        )
        .map_err(|misbehaved| {
            StopReason::Misbehaved(Offence::new(misbehaved.kind(), misbehaved.to_string()))
        })
}

impl From<FrameError> for StopReason {
    fn from(error: FrameError) -> Self {
        match error {
            // Ours; the peer may try again when there is memory.
            FrameError::OutOfMemory(_) | FrameError::RegionUnreadable(_) => {
                Self::Lost(error.to_string())
            }
            _ => Self::Misbehaved(Offence::new("frame", error.to_string())),
        }
    }
}
