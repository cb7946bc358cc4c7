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

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, ready};
use std::{future, io};

use farref_proto::{Frame, Lane, SessionError, Time};

use super::recv_stream::{RecvState, RecvStream};
use super::{ConnectionState, Link};
use crate::agent::Message;
use crate::native::frame::{DecodedFrame, Decoder, FrameError, ReceivedMessage};
use crate::support::lock::{lock, try_lock};
use crate::support::user_code;

/// After so many reads the task lets others run.
const TASK_QUOTA: u32 = 64;
/// After so many reads of one stream whoever reads for tasks turns to the next.
const FALLBACK_QUOTA: u32 = 64;

/// Why a stream is read no more.
enum StopReason {
    /// The stream is closed or of no use.
    Lost(String),
    /// The peer did what no correct peer does.
    Misbehaved(String),
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
            let read = ready!(state.poll_read(context));
            if let Err(reason) = self.handle_read(link, &mut state, read, None) {
                self.stop(link, state, reason);
                return Poll::Ready(());
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
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
            Err(error) => return Err(StopReason::Lost(error.to_string())),
        }
        let deliver = AssertUnwindSafe(|| self.deliver_all(link, &mut state.decoder, delivering));
        // RE-1
        user_code::forbid_during(|| catch_unwind(deliver)).unwrap_or_else(|panic| {
            // RE-2
            let message = user_code::panic_message(&*panic).unwrap_or("a panic");
            Err(StopReason::Panicked(message.to_owned()))
        })
    }

    fn stop(&self, link: &Arc<Link>, mut state: MutexGuard<'_, RecvState>, reason: StopReason) {
        state.closed = true;
        drop(state);
        match reason {
            StopReason::Lost(why) => link.lose_connection(self.epoch, &why),
            StopReason::Misbehaved(reason) => link.cut_off_at(self.epoch, reason),
            StopReason::Panicked(fault) => link.give_up(self.epoch, &fault),
            StopReason::NoRuntime => link.close(),
            StopReason::Outdated => {}
        }
    }

    /// Delivers all frames that have come in full. The caller may have the lock for that already.
    fn deliver_all(
        &self,
        link: &Arc<Link>,
        decoder: &mut Decoder,
        delivering: Option<MutexGuard<'_, ()>>,
    ) -> Result<(), StopReason> {
        let now = link.endpoint.now();
        link.burst.store(0, Ordering::Relaxed);
        // LI-2
        let delivering = delivering.unwrap_or_else(|| lock(&link.delivery_lock));
        let mut frames = 0_u32;
        while let Some(received) = decoder.next()? {
            frames += 1;
            let frame = match received {
                DecodedFrame::Session(frame) => frame,
                DecodedFrame::OpenBulk => {
                    let mut state = link.state();
                    if state.epoch == self.epoch
                        && let ConnectionState::Established(connection) = &mut state.connection
                        && connection.dialed.is_some()
                    {
                        link.ask_for_bulk(connection);
                    }
                    continue;
                }
            };
            if let Frame::Data { lane, .. } = frame
                && !self.lanes.contains(&lane)
            {
                return Err(StopReason::Misbehaved(format!(
                    "peer sent data of the {lane} lane on the wrong stream"
                )));
            }
            if let Some(message) = handle_frame(link, self.epoch, now, frame)? {
                deliver(link, message)?;
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
        if owes {
            link.flush();
        }
        Ok(())
    }
}

/// Brings a frame to the session. Returns what is new in it.
fn handle_frame(
    link: &Link,
    epoch: u64,
    now: Time,
    frame: Frame<ReceivedMessage>,
) -> Result<Option<Box<Message>>, StopReason> {
    let mut acknowledged = Vec::new();
    let news = {
        let mut state = link.state();
        if state.epoch != epoch {
            return Err(StopReason::Outdated);
        }
        state.failures = 0;
        let news = state
            .session
            .handle_frame_with(now, frame, |packet| acknowledged.push(packet));
        if let Ok(Some((_, ReceivedMessage(message)))) = &news
            && let Message::Answer(answer) = &**message
        {
            state.bulk_calls.remove(&answer.head.id);
        }
        news
    };
    // LI-4
    link.endpoint.drop_packets(acknowledged);
    match news {
        Ok(news) => Ok(news.map(|(_, ReceivedMessage(message)): (Lane, _)| message)),
        Err(error @ SessionError::AckOfUnsent { .. }) => {
            Err(StopReason::Misbehaved(error.to_string()))
        }
        Err(error) => Err(StopReason::Lost(error.to_string())),
    }
}

fn deliver(link: &Link, message: Box<Message>) -> Result<(), StopReason> {
    if link.endpoint.is_closing() {
        return Ok(());
    }
    let inbound = link
        .endpoint
        .inbound
        .upgrade()
        .ok_or(StopReason::NoRuntime)?;
    inbound
        .receive(link.peer, *message)
        .map_err(|misbehaved| StopReason::Misbehaved(misbehaved.to_string()))
}

impl From<FrameError> for StopReason {
    fn from(error: FrameError) -> Self {
        match error {
            // Ours; the peer may try again when there is memory.
            FrameError::OutOfMemory(_) => Self::Lost(error.to_string()),
            _ => Self::Misbehaved(error.to_string()),
        }
    }
}
