//! The receiving half of one stream: a task that reads, and hands in what peers say.
//!
//! Everything that has been read is handed in before the task waits again. The reader is also the one
//! that notices the end of a stream, so what came before the end is not lost.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use farref_proto::{Frame, Lane, SessionError};

use super::channel::Channel;
use super::dial;
use super::frame::{Decoder, FrameError, Incoming, Received, Space};
use super::link::{Link, Stage};
use super::shared::lock;
use super::stream::ReadHalf;
use crate::agent::Message;

/// Why a reader stops.
enum End {
    /// The stream is over or of no use.
    Lost(String),
    /// The peer did what no correct peer does.
    Misbehaved(String),
    /// Another connection has taken the place of this one.
    Outdated,
    /// There is nobody to hand anything to.
    Orphaned,
}

/// Reads to its end the stream that `channel` writes to.
pub(super) async fn run(link: Arc<Link>, channel: Arc<Channel>, mut stream: ReadHalf) {
    let epoch = channel.epoch;
    let mut decoder = Decoder::new(link.shared.limits, Arc::clone(&link.shared.recycler));
    let end = loop {
        let read = match decoder.space() {
            Space::Buffer(buffer) => stream.read_buf(buffer).await,
            Space::Piece(mut piece) => stream.read_buf(&mut piece).await,
            Space::Elements(mut room, filled) => {
                let read = stream.read_buf(&mut room).await;
                *filled += read.as_ref().map_or(0, |read| *read);
                read
            }
        };
        match read {
            Ok(0) => break End::Lost("closed by the peer".to_owned()),
            Ok(read) => {
                link.received.fetch_add(read as u64, Ordering::Relaxed);
                link.shared.meters.bytes_received.add(read as u64);
            }
            Err(error) => break End::Lost(error.to_string()),
        }
        if let Err(end) = hand_in(&link, &channel, &mut decoder) {
            break end;
        }
    };
    match end {
        End::Lost(why) => link.lose(epoch, &why),
        End::Misbehaved(reason) => link.cut_off(epoch, reason),
        End::Orphaned => link.discard(),
        End::Outdated => {}
    }
}

/// Hands in all frames that have come in full.
fn hand_in(link: &Arc<Link>, channel: &Channel, decoder: &mut Decoder) -> Result<(), End> {
    let epoch = channel.epoch;
    let now = link.shared.now();
    link.burst.store(0, Ordering::Relaxed);
    // LI-2
    let gate = lock(&link.gate);
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
                    dial::ask_for_bulk(link, connection);
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

    let shared = &link.shared;
    let (owes, timeout, watched) = {
        let mut state = link.state();
        if frames == 0 && state.epoch == epoch {
            state.session.handle_bytes_read(now);
        }
        // What was received makes the session want to be woken when its acknowledgement falls due.
        let timeout = if shared.timer.fires_by(now + shared.config.ack_delay) {
            None
        } else {
            state.session.poll_timeout()
        };
        (state.session.owes_frame(now), timeout, state.watched)
    };
    shared.timer.arm(timeout);
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
    drop(acknowledged);
    match news {
        Ok(news) => Ok(news.map(|(_, Incoming(message)): (Lane, _)| message)),
        Err(error @ SessionError::AckOfUnsent { .. }) => Err(End::Misbehaved(error.to_string())),
        Err(error) => Err(End::Lost(error.to_string())),
    }
}

fn deliver(link: &Link, message: Box<Message>) -> Result<(), End> {
    if link.shared.is_closing() {
        return Ok(());
    }
    let inbound = link.shared.inbound.upgrade().ok_or(End::Orphaned)?;
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
