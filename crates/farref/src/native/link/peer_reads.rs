//! Large parts that are read straight out of the peer's memory, on one host.
//!
//! Each end of a Unix socket for bulk data offers its memory ([`MemoryFrame::Offer`]). Whoever finds that it can be read,
//! and is the peer's, says so ([`MemoryFrame::MayName`]). From then on the end that was told sends of a large part only
//! the address, and the other one copies it from there: once, where a socket takes two copies. Each direction is on its
//! own. Nothing is released by a message: the part stays where it is until the message that it belongs to is
//! acknowledged, as a message does that is sent through the socket.
//!
//! Parts that the program keeps in [shared memory](crate::Blob::shared) are not even copied: whoever takes descriptors on a
//! stream says so ([`MemoryFrame::TakesRegions`]), and gets theirs instead.
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
//! - **PM-4** If memory cannot be read that a peer has named, or no thread can be had for that, the connection is lost, and
//!   on all later ones of the link everything comes through the socket.
//! - **PM-5** If descriptors that a peer sent cannot be opened here, or one cannot be sent, the connection is lost, and on all
//!   later ones of the link regions go as other parts do in that direction.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::BufMut;
use farref_proto::{Lane, Time};
use tokio::sync::oneshot;
use tracing::debug;

use super::Link;
use super::recv_stream::RecvStream;
use super::send_stream::{BULK, SendStream};
use crate::native::endpoint::Endpoint;
use crate::native::frame::{Filling, FrameError, MemoryFrame, NamedPiece, PieceSource};
use crate::native::transport::{MemoryClaim, MemoryError, PeerMemory, SealedRegion};
use crate::support::lock::lock;
use crate::support::user_code;
use crate::support::waiting_threads::NoThread;

/// So much is read before it is looked at the clock and at the socket: enough for a second thread to be worth it.
const TURN: usize = 32 << 20;
/// So much of a region is copied at once.
const COPY: usize = 64 << 10;
/// How often the peer hears that its memory is still being read: it has nothing to write meanwhile, so only this shows
/// it that the connection is not stuck.
const TELL_EVERY: Duration = Duration::from_millis(20);

/// Parts that are being read: where they will be in the end.
pub(super) type Reading = oneshot::Receiver<Result<Vec<Filling>, ReadFailure>>;

/// Why a part could not be read. Neither is more than the end of the connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadFailure {
    #[error("cannot read the peer's memory: {0}")]
    Memory(#[from] MemoryError),
    #[error("cannot read a region of the peer's: {0}")]
    Region(#[from] io::Error),
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
    /// A stream whose peer has offered its memory, until a thread looks at that.
    offered: Mutex<Option<(Weak<RecvStream>, MemoryClaim)>>,
    /// How many bytes were read.
    bytes: AtomicU64,
    /// Whether descriptors could not be taken, or sent: regions go another way then (PM-5).
    takes_no_regions: AtomicBool,
    sends_no_regions: AtomicBool,
    /// How many bytes came in regions that are read in place.
    in_place: AtomicU64,
}

/// The right to have a thread look at the peer's memory, as long as it is kept.
struct ReadPermit(Arc<PeerReads>);

impl PeerReads {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn in_place(&self) -> u64 {
        self.in_place.load(Ordering::Relaxed)
    }

    /// Whether the peer is told that it may send descriptors.
    pub(super) fn takes_regions(&self) -> bool {
        !self.takes_no_regions.load(Ordering::SeqCst)
    }

    /// Takes no descriptors any more (PM-5).
    pub(super) fn refuse_regions(&self) {
        self.takes_no_regions.store(true, Ordering::SeqCst);
    }

    /// Sends no descriptors any more (PM-5).
    pub(super) fn stop_passing(&self) {
        self.sends_no_regions.store(true, Ordering::SeqCst);
    }

    /// A peer's memory is to be looked at, as that of a later connection than any before.
    fn offer(&self, stream: Weak<RecvStream>, claim: MemoryClaim) {
        *lock(&self.offered) = Some((stream, claim));
    }

    fn begin(self: &Arc<Self>) -> Option<ReadPermit> {
        let was_busy = self.is_busy.swap(true, Ordering::SeqCst);
        (!was_busy).then(|| ReadPermit(Arc::clone(self)))
    }
}

impl ReadPermit {
    /// Gives it back, and to whoever waits for it: a connection may be made while a thread still reads for the one before.
    fn give_back(self, link: &Weak<Link>) {
        drop(self);
        if let Some(link) = link.upgrade() {
            link.confirm_offered();
        }
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
    may_pass: AtomicBool,
}

const OFFER: u8 = 1;
const MAY_NAME: u8 = 2;
const READING: u8 = 4;
const TAKES_REGIONS: u8 = 8;

impl MemoryTalk {
    /// Offers this process' memory to the peer, with the next write.
    pub(super) fn offer(&self) {
        self.has_offered.store(true, Ordering::SeqCst);
        self.owe(OFFER);
    }

    /// Says that descriptors are taken, with the next write.
    pub(super) fn take_regions(&self) {
        self.owe(TAKES_REGIONS);
    }

    fn owe(&self, what: u8) {
        self.owed.fetch_or(what, Ordering::SeqCst);
    }

    /// Whether large parts are named on this stream.
    pub(super) fn may_name(&self) -> bool {
        self.may_name.load(Ordering::Relaxed)
    }

    /// Whether regions leave as descriptors on this stream.
    pub(super) fn may_pass(&self) -> bool {
        self.may_pass.load(Ordering::Relaxed)
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
        let takes = (owed & TAKES_REGIONS != 0).then_some(MemoryFrame::TakesRegions);
        [offer, may_name, reading, takes].into_iter().flatten()
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
                    link.peer_reads.offer(Weak::clone(&self.this), claim);
                    link.confirm_offered();
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
            MemoryFrame::TakesRegions => {
                if self.lanes != BULK {
                    return Err("peer takes regions where they do not belong");
                }
                let is_willing = self.send.write.is_local() && link.endpoint.own_memory.is_some();
                let sends_none = link.peer_reads.sends_no_regions.load(Ordering::SeqCst);
                let may_pass = is_willing && !sends_none;
                self.send.memory.may_pass.store(may_pass, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Looks whether the peer's memory can be read and is the peer's, and tells it so.
    fn confirm(&self, link: &Arc<Link>, claim: MemoryClaim, permit: ReadPermit) {
        let Some(stream) = self.this.upgrade() else {
            return;
        };
        let peer = link.peer;
        let link = Arc::downgrade(link);
        // PM-1
        let begun = self.spawn(&link, move |link| {
            let confirmed = PeerMemory::confirm(&stream.send.write, &claim);
            permit.give_back(link);
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
        if let Err(error) = begun {
            debug!(%peer, %error, "the peer's memory is not read: large values go through the socket");
        }
    }

    /// Begins to read parts out of the peer's memory. Fails if nobody can now.
    pub(super) fn read_memory(
        &self,
        link: &Arc<Link>,
        pieces: Vec<NamedPiece>,
    ) -> Result<Reading, &'static str> {
        let stream = self.this.upgrade().ok_or("the stream is closed")?;
        // A region is there, whatever the peer does.
        let is_memory = |piece: &NamedPiece| matches!(piece.source, PieceSource::Memory(_));
        let permit = match pieces.iter().any(is_memory) {
            true => {
                let permit = link.peer_reads.begin();
                Some(permit.ok_or("the peer's memory is being read already")?)
            }
            false => None,
        };
        let (done, reading) = oneshot::channel();
        let begun = self.spawn(&Arc::downgrade(link), move |link| {
            let read: Result<Vec<_>, _> = pieces
                .into_iter()
                .map(|piece| stream.read_piece(link, piece))
                .collect();
            match (&read, &permit) {
                (Ok(fillings), Some(permit)) => {
                    let bytes = fillings.iter().map(Filling::length).sum::<usize>() as u64;
                    permit.0.bytes.fetch_add(bytes, Ordering::Relaxed);
                }
                (Err(ReadFailure::Memory(MemoryError::Unreadable(_))), Some(permit)) => {
                    // PM-4
                    permit.0.is_refused.store(true, Ordering::SeqCst);
                }
                _ => {}
            }
            // Before the next one is asked for.
            if let Some(permit) = permit {
                permit.give_back(link);
            }
            // Nobody waits any more if the connection is over.
            let _ = done.send(read);
        });
        if begun.is_err() {
            // PM-4, PM-5
            link.peer_reads.is_refused.store(true, Ordering::SeqCst);
            link.peer_reads.refuse_regions();
            return Err("there is no thread to read the peer's memory");
        }
        Ok(reading)
    }

    /// Has a thread do something that may take long (PM-1), if there is one. It does not keep the link.
    fn spawn(
        &self,
        link: &Weak<Link>,
        job: impl FnOnce(&Weak<Link>) + Send + 'static,
    ) -> Result<(), NoThread> {
        let link = Weak::clone(link);
        let alive = link.upgrade().ok_or(NoThread)?;
        alive.endpoint.run_waiting(move || job(&link))
    }

    fn read_piece(&self, link: &Weak<Link>, piece: NamedPiece) -> Result<Filling, ReadFailure> {
        let NamedPiece {
            source,
            mut filling,
        } = piece;
        loop {
            let missing = filling.read_with(TURN, |from, count, into| match &source {
                PieceSource::Memory(address) => {
                    let memory = self.memory.get().ok_or(FrameError::Unpermitted)?;
                    let address = address.saturating_add(from as u64);
                    let read = memory.read(&self.send.write, address, count, into);
                    read.map_err(ReadFailure::from)
                }
                PieceSource::Region(region) => copy_region(region, from, count, into),
            })?;
            if let Some(link) = link.upgrade() {
                self.tell_reading(&link);
            }
            if missing == 0 {
                return Ok(filling);
            }
        }
    }

    /// Shows every now and then that this stream is not stuck: to the peer, and to the session.
    fn tell_reading(&self, link: &Arc<Link>) {
        let now = link.endpoint.now();
        let told = Time(self.told.load(Ordering::Relaxed));
        if now.since(told) < TELL_EVERY {
            return;
        }
        self.told.store(now.0, Ordering::Relaxed);
        {
            let mut state = link.state();
            if state.epoch == self.epoch {
                state.session.handle_bytes_read(now);
            }
        }
        self.send.say(READING, link);
    }
}

impl Link {
    /// Has a thread look at the memory that the peer has offered. Where one is at it (PM-2), it sees to that when it is done;
    /// until then the connection makes do with the socket.
    fn confirm_offered(self: &Arc<Self>) {
        let reads = &self.peer_reads;
        while let Some(permit) = reads.begin() {
            let offered = lock(&reads.offered).take();
            match offered {
                Some(_) if reads.is_refused.load(Ordering::SeqCst) => return,
                Some((stream, claim)) => match stream.upgrade() {
                    Some(stream) => return stream.confirm(self, claim, permit),
                    None => drop(permit),
                },
                None => drop(permit),
            }
            // Somebody may have come meanwhile, and found it busy.
            if lock(&reads.offered).is_none() {
                return;
            }
        }
    }

    /// So many bytes came that are read in place: they count as received.
    pub(super) fn count_in_place(&self, bytes: u64) {
        self.peer_reads.in_place.fetch_add(bytes, Ordering::Relaxed);
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.endpoint.metrics.bytes_received.add(bytes);
    }
}

/// Copies some bytes of a region, by way of a few at a time.
fn copy_region(
    region: &SealedRegion,
    from: usize,
    count: usize,
    into: &mut dyn BufMut,
) -> Result<(), ReadFailure> {
    let mut some = vec![0; count.min(COPY)];
    let mut done = 0;
    while done < count {
        let now = some.len().min(count - done);
        let some = some.get_mut(..now).unwrap_or_default();
        region.copy(from + done, some)?;
        into.put_slice(some);
        done += now;
    }
    Ok(())
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
