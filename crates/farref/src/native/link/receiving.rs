//! The receiving half of one stream: reading, and handing in what peers say.
//!
//! A task on the program's runtime does it. Where the program keeps that task from running, others
//! [help out](RecvStream::help_out). Everything that has been read is handed in before anything else is read.
//! Whoever reads is also the one that notices the end of a stream, so what came before the end is not
//! lost.
//!
//! # Invariants
//!
//! - **RE-1** No code of the program runs while a message is handed in (UC-1): what takes long there holds
//!   up this stream's other messages, and signs of life.
//! - **RE-2** A message that was acknowledged is handed in, or the link is over: whatever goes wrong, no
//!   message is missing in silence.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, ready};
use std::{future, io};

use farref_proto::{Frame, Lane, SessionError};

use super::recv_stream::{Reading, RecvStream};
use super::send_stream::SendStream;
use super::{Link, Stage};
use crate::agent::Message;
use crate::native::frame::{Decoder, FrameError, Incoming, Received};
use crate::support::lock::{lock, try_lock};
use crate::support::user_code;

/// After so many reads the task lets others run.
const TASKS_SHARE: u32 = 64;
/// After so many reads of one stream a helper turns to the next.
const HELPERS_SHARE: u32 = 64;

/// Why a reader stops.
enum End {
    /// The stream is over or of no use.
    Lost(String),
    /// The peer did what no correct peer does.
    Misbehaved(String),
    /// Something of ours panicked (RE-2).
    Broken(String),
    /// Another connection has taken the place of this one.
    Outdated,
    /// There is nobody to hand anything to.
    Orphaned,
}

impl RecvStream {
    /// The task that reads the stream to its end.
    pub(super) async fn run(self: Arc<Self>, link: Arc<Link>, channel: Arc<SendStream>) {
        future::poll_fn(|context| self.poll(&link, &channel, context)).await;
    }

    fn poll(&self, link: &Arc<Link>, channel: &SendStream, context: &mut Context<'_>) -> Poll<()> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        let mut reading = lock(&self.state);
        for _ in 0..TASKS_SHARE {
            if reading.over {
                return Poll::Ready(());
            }
            let read = ready!(reading.poll_read(context));
            if let Err(end) = reading.take_in(link, channel, read, None) {
                reading.over = true;
                drop(reading);
                finish(link, channel.epoch, end);
                return Poll::Ready(());
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Reads in place of the stream's task, whatever the program's runtime believes of the stream.
    pub(crate) fn help_out(&self, link: &Arc<Link>, channel: &SendStream, scratch: &mut [u8]) {
        // Where somebody else has it the task does run.
        let Some(mut reading) = try_lock(&self.state) else {
            return;
        };
        for _ in 0..HELPERS_SHARE {
            if reading.over {
                return;
            }
            // LI-2; whoever hands in right now is not waited for: all workers of the process need this thread.
            let Some(gate) = try_lock(&link.gate) else {
                return;
            };
            let read = match reading.read_now(scratch) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                read => read,
            };
            if let Err(end) = reading.take_in(link, channel, read, Some(gate)) {
                reading.over = true;
                drop(reading);
                return finish(link, channel.epoch, end);
            }
        }
    }
}

impl Reading {
    /// Takes note of what was read, and hands in what is whole.
    fn take_in(
        &mut self,
        link: &Arc<Link>,
        channel: &SendStream,
        read: io::Result<usize>,
        gate: Option<MutexGuard<'_, ()>>,
    ) -> Result<(), End> {
        match read {
            Ok(0) => return Err(End::Lost("closed by the peer".to_owned())),
            Ok(read) => {
                link.received.fetch_add(read as u64, Ordering::Relaxed);
                link.endpoint.meters.bytes_received.add(read as u64);
            }
            Err(error) => return Err(End::Lost(error.to_string())),
        }
        let handed_in = AssertUnwindSafe(|| hand_in(link, channel, &mut self.decoder, gate));
        // RE-1
        user_code::without(|| catch_unwind(handed_in)).unwrap_or_else(|panic| {
            // RE-2
            let message = user_code::panic_message(&*panic).unwrap_or("a panic");
            Err(End::Broken(message.to_owned()))
        })
    }
}

fn finish(link: &Arc<Link>, epoch: u64, end: End) {
    match end {
        End::Lost(why) => link.lose(epoch, &why),
        End::Misbehaved(reason) => link.cut_off(epoch, reason),
        End::Broken(reason) => link.give_up(epoch, &reason),
        End::Orphaned => link.discard(),
        End::Outdated => {}
    }
}

/// Hands in all frames that have come in full, through the gate that the caller may have locked already.
fn hand_in(
    link: &Arc<Link>,
    channel: &SendStream,
    decoder: &mut Decoder,
    gate: Option<MutexGuard<'_, ()>>,
) -> Result<(), End> {
    let epoch = channel.epoch;
    let now = link.endpoint.now();
    link.burst.store(0, Ordering::Relaxed);
    // LI-2
    let gate = gate.unwrap_or_else(|| lock(&link.gate));
    let mut frames = 0_u32;
    while let Some(received) = decoder.next().map_err(End::from)? {
        frames += 1;
        let frame = match received {
            Received::Session(frame) => frame,
            Received::OpenBulk => {
                let mut state = link.state();
                if state.epoch == epoch
                    && let Stage::Standing(connection) = &mut state.stage
                    && connection.dialed.is_some()
                {
                    link.ask_for_bulk(connection);
                }
                continue;
            }
        };
        if let Frame::Data { lane, .. } = frame
            && !channel.lanes.contains(&lane)
        {
            return Err(End::Misbehaved(format!(
                "peer sent data of the {lane} lane on the wrong stream"
            )));
        }
        if let Some(message) = accept(link, epoch, now, frame)? {
            deliver(link, message)?;
        }
    }
    drop(gate);

    let endpoint = &link.endpoint;
    let (owes, timeout, watched) = {
        let mut state = link.state();
        if frames == 0 && state.epoch == epoch {
            state.session.handle_bytes_read(now);
        }
        // What was received makes the session want to be woken when its acknowledgement falls due.
        let timeout = if link.alarm.fires_by(now + endpoint.config.ack_delay) {
            None
        } else {
            state.session.poll_timeout()
        };
        (state.session.owes_frame(now), timeout, state.watched)
    };
    link.wake_by(timeout);
    if watched {
        link.progress.notify_waiters();
    }
    if owes {
        link.flush();
    }
    Ok(())
}

/// Brings a frame to the session. Returns what is new in it.
fn accept(
    link: &Link,
    epoch: u64,
    now: farref_proto::Time,
    frame: Frame<Incoming>,
) -> Result<Option<Box<Message>>, End> {
    let mut acknowledged = Vec::new();
    let news = {
        let mut state = link.state();
        if state.epoch != epoch {
            return Err(End::Outdated);
        }
        state.failures = 0;
        let news = state
            .session
            .handle_frame_with(now, frame, |packet| acknowledged.push(packet));
        if let Ok(Some((_, Incoming(message)))) = &news
            && let Message::Answer(answer) = &**message
        {
            state.bulk_calls.remove(&answer.head.id);
        }
        news
    };
    // LI-4
    link.endpoint.let_go(acknowledged);
    match news {
        Ok(news) => Ok(news.map(|(_, Incoming(message)): (Lane, _)| message)),
        Err(error @ SessionError::AckOfUnsent { .. }) => Err(End::Misbehaved(error.to_string())),
        Err(error) => Err(End::Lost(error.to_string())),
    }
}

fn deliver(link: &Link, message: Box<Message>) -> Result<(), End> {
    if link.endpoint.is_closing() {
        return Ok(());
    }
    let inbound = link.endpoint.inbound.upgrade().ok_or(End::Orphaned)?;
    inbound
        .receive(link.peer, *message)
        .map_err(|misbehaved| End::Misbehaved(misbehaved.to_string()))
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        match error {
            // Ours; the peer may try again when there is memory.
            FrameError::OutOfMemory(_) => Self::Lost(error.to_string()),
            _ => Self::Misbehaved(error.to_string()),
        }
    }
}
