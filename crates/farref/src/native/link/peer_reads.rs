//! Large parts that are read straight out of the peer's memory, on one host.
//!
//! Each end of a Unix socket for bulk data offers its memory ([`MemoryFrame::Offer`]). Whoever finds that it can be read,
//! and is the peer's, says so ([`MemoryFrame::MayName`]). From then on the end that was told sends of a large part only
//! the address, and the other one copies it from there: once, where a socket takes two copies. Each direction is on its
//! own. Nothing is released by a message: the part stays where it is until the message that it belongs to is
//! acknowledged, as a message does that is sent through the socket.
//!
//! All of this ends with the connection. What is sent again on another one is encoded anew, as that one allows.
//!
//! # Invariants
//!
//! - **PM-1** The memory of a peer is read by a thread that may wait, never by one of the runtime's: a peer can have
//!   memory that takes long to read, or for ever.
//! - **PM-2** At most one thread reads for a link, whatever the peer does, and holds up nothing but the link's stream for
//!   bulk data.
//! - **PM-3** What was read is delivered only if afterwards the peer still had its end of the socket, and the connection
//!   was still the present one. A sender hangs up before it gives memory back that was not acknowledged
//!   ([`Connection`](super::Connection)), and a message that was acknowledged on a later connection is not taken from an
//!   earlier one.
//! - **PM-4** If memory cannot be read that a peer has named, the connection is lost, and on all later ones of the link
//!   everything comes through the socket.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use farref_proto::{Lane, Time};
use tokio::sync::oneshot;
use tracing::debug;

use super::Link;
use super::recv_stream::RecvStream;
use super::send_stream::{BULK, SendStream};
use crate::native::endpoint::Endpoint;
use crate::native::frame::{Filling, FrameError, MemoryFrame, NamedPiece};
use crate::native::transport::{MemoryClaim, MemoryError, PeerMemory};
use crate::support::user_code;

/// So much is read before it is looked at the clock and at the socket.
const TURN: usize = 4 << 20;
/// How often the peer hears that its memory is still being read: it has nothing to write meanwhile, so only this shows
/// it that the connection is not stuck.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// A part that is being read: where it will be in the end.
pub(super) type Reading = oneshot::Receiver<Result<Filling, ReadFailure>>;

/// Why a part could not be read. Neither is more than the end of the connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadFailure {
    #[error("cannot read the peer's memory: {0}")]
    Memory(#[from] MemoryError),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// What a link knows of its peer's memory, over all connections.
#[derive(Debug, Default)]
pub(super) struct PeerReads {
    /// Whether a thread looks at it (PM-2).
    is_busy: AtomicBool,
    /// Whether it turned out to be unreadable (PM-4).
    is_refused: AtomicBool,
    /// How many bytes were read.
    bytes: AtomicU64,
}

/// The right to have a thread look at the peer's memory, as long as it is kept.
struct ReadPermit(Arc<PeerReads>);

impl PeerReads {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn begin(self: &Arc<Self>) -> Option<ReadPermit> {
        let was_busy = self.is_busy.swap(true, Ordering::SeqCst);
        (!was_busy).then(|| ReadPermit(Arc::clone(self)))
    }
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::SeqCst);
    }
}

/// What one end of a stream has said of its memory, and is to say of the other's.
#[derive(Debug, Default)]
pub(super) struct MemoryTalk {
    owed: AtomicU8,
    has_offered: AtomicBool,
    may_name: AtomicBool,
}

const OFFER: u8 = 1;
const MAY_NAME: u8 = 2;
const READING: u8 = 4;

impl MemoryTalk {
    /// Offers this process' memory to the peer, with the next write.
    pub(super) fn offer(&self) {
        self.has_offered.store(true, Ordering::SeqCst);
        self.owe(OFFER);
    }

    fn owe(&self, what: u8) {
        self.owed.fetch_or(what, Ordering::SeqCst);
    }

    /// Whether large parts are named on this stream.
    pub(super) fn may_name(&self) -> bool {
        self.may_name.load(Ordering::Relaxed)
    }

    /// What is to be said now.
    pub(super) fn take_owed(&self, endpoint: &Endpoint) -> impl Iterator<Item = MemoryFrame> {
        let owed = match self.owed.load(Ordering::SeqCst) {
            0 => 0,
            _ => self.owed.swap(0, Ordering::SeqCst),
        };
        let offered = endpoint.own_memory.as_ref().filter(|_| owed & OFFER != 0);
        let offer = offered.map(|memory| MemoryFrame::Offer(memory.claim()));
        let may_name = (owed & MAY_NAME != 0).then_some(MemoryFrame::MayName);
        let reading = (owed & READING != 0).then_some(MemoryFrame::Reading);
        [offer, may_name, reading].into_iter().flatten()
    }
}

impl SendStream {
    /// Says something about the peer's memory.
    fn say(&self, what: u8, link: &Arc<Link>) {
        self.memory.owe(what);
        // Whatever else is to be written then may be behind code of the program, which is not for this thread.
        user_code::forbid_during(|| self.write_pending(link));
    }
}

impl RecvStream {
    /// The peer has said something about its memory, or ours. Fails if it could not have.
    pub(super) fn handle_memory(
        &self,
        link: &Arc<Link>,
        frame: MemoryFrame,
    ) -> Result<(), &'static str> {
        match frame {
            MemoryFrame::Offer(claim) => {
                if self.lanes != BULK || self.was_offered.swap(true, Ordering::Relaxed) {
                    return Err("peer offers its memory where it does not belong");
                }
                // The socket may be a Unix socket at the peer's end only.
                if self.send.write.is_local() && link.endpoint.own_memory.is_some() {
                    self.confirm(link, claim);
                }
            }
            MemoryFrame::MayName => {
                if !self.send.memory.has_offered.load(Ordering::SeqCst) {
                    return Err("peer wants to read memory that it was not offered");
                }
                self.send.memory.may_name.store(true, Ordering::Relaxed);
            }
            MemoryFrame::Reading => {
                if !self.send.memory.may_name() {
                    return Err("peer reads memory that it was not offered");
                }
                let now = link.endpoint.now();
                let mut state = link.state();
                if state.epoch == self.epoch {
                    state.session.handle_bytes_written(now, Lane::Bulk);
                }
            }
        }
        Ok(())
    }

    /// Looks whether the peer's memory can be read and is the peer's, and tells it so.
    fn confirm(&self, link: &Arc<Link>, claim: MemoryClaim) {
        let reads = &link.peer_reads;
        if reads.is_refused.load(Ordering::SeqCst) {
            return;
        }
        // PM-2: without it this connection makes do with the socket.
        let (Some(stream), Some(permit)) = (self.this.upgrade(), reads.begin()) else {
            return;
        };
        let peer = link.peer;
        let link = Arc::downgrade(link);
        // PM-1
        self.spawn(&link, move |link| {
            let confirmed = PeerMemory::confirm(&stream.send.write, &claim);
            drop(permit);
            match confirmed {
                Ok(memory) => {
                    // Before the peer hears of it.
                    let _ = stream.memory.set(memory);
                    if let Some(link) = link.upgrade() {
                        stream.send.say(MAY_NAME, &link);
                    }
                }
                Err(error) => {
                    debug!(%peer, %error, "the peer's memory is not read: large values go through the socket");
                }
            }
        });
    }

    /// Begins to read a part out of the peer's memory.
    pub(super) fn read_memory(&self, link: &Arc<Link>, piece: NamedPiece) -> Option<Reading> {
        let stream = self.this.upgrade()?;
        let permit = link.peer_reads.begin()?;
        let (done, reading) = oneshot::channel();
        self.spawn(&Arc::downgrade(link), move |link| {
            let read = stream.read_piece(link, piece);
            match &read {
                Ok(filling) => {
                    let bytes = filling.length() as u64;
                    permit.0.bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                Err(ReadFailure::Memory(MemoryError::Unreadable(_))) => {
                    // PM-4
                    permit.0.is_refused.store(true, Ordering::SeqCst);
                }
                Err(_) => {}
            }
            // Before the next one is asked for.
            drop(permit);
            // Nobody waits any more if the connection is over.
            let _ = done.send(read);
        });
        Some(reading)
    }

    /// Has a thread do something that may take long (PM-1). It does not keep the link.
    fn spawn(&self, link: &Weak<Link>, job: impl FnOnce(&Weak<Link>) + Send + 'static) {
        let link = Weak::clone(link);
        if let Some(alive) = link.upgrade() {
            alive.endpoint.spawn_blocking(move || job(&link));
        }
    }

    fn read_piece(&self, link: &Weak<Link>, piece: NamedPiece) -> Result<Filling, ReadFailure> {
        let NamedPiece {
            address,
            mut filling,
        } = piece;
        let memory = self.memory.get().ok_or(FrameError::Unpermitted)?;
        loop {
            let missing = filling.read_with(TURN, |from, count, into| {
                let address = address.saturating_add(from as u64);
                let read = memory.read(&self.send.write, address, count, into);
                read.map_err(ReadFailure::from)
            })?;
            if let Some(link) = link.upgrade() {
                self.tell_reading(&link);
            }
            if missing == 0 {
                return Ok(filling);
            }
        }
    }

    /// Shows every now and then that this stream is not stuck: to the peer, to the session, and to whoever watches its
    /// tasks.
    fn tell_reading(&self, link: &Arc<Link>) {
        let now = link.endpoint.now();
        let told = Time(self.told.load(Ordering::Relaxed));
        if now.since(told) < TELL_EVERY {
            return;
        }
        self.told.store(now.0, Ordering::Relaxed);
        self.polls.fetch_add(1, Ordering::Relaxed);
        {
            let mut state = link.state();
            if state.epoch == self.epoch {
                state.session.handle_bytes_read(now);
            }
        }
        self.send.say(READING, link);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_reads_for_a_link_at_a_time() {
        // PM-2
        let reads = Arc::new(PeerReads::default());
        let permit = reads.begin();
        assert!(permit.is_some());
        assert!(reads.begin().is_none());
        drop(permit);
        assert!(reads.begin().is_some());
    }
}
