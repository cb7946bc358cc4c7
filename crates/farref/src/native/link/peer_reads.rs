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
//! - **PM-2** At most one thread reads or copies for a link, whatever the peer does, and holds up nothing but the link's
//!   stream for bulk data. What it copies it leaves when the connection is over.
//! - **PM-3** What was read is delivered only if afterwards the peer still had its end of the socket, and the connection
//!   was still the present one. A sender hangs up before it gives memory back that was not acknowledged
//!   ([`Connection`](super::Connection)), and a message that was acknowledged on a later connection is not taken from an
//!   earlier one.
//! - **PM-4** If memory cannot be read that a peer has named, the connection is lost, and on all later ones of the link
//!   everything comes through the socket. If no thread can be had for that, it is asked for again; if there is none for
//!   long, the connection is lost, and on those that are made within a
//!   [rest](crate::native::NativeConfig::memory_rest) everything comes through the socket.
//! - **PM-5** If descriptors that a peer sent cannot be opened here, the connection is lost, and on all later ones of the
//!   link regions go as other parts do in that direction. If one cannot be sent, because there are too many on their way,
//!   the connection is lost, and regions go as other parts do for as long as such a rest.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use farref_proto::{Lane, Time};
use tokio::time::sleep;
use tracing::debug;

use super::Link;
use super::recv_stream::RecvStream;
use super::send_stream::{BULK, SendStream};
use crate::native::endpoint::Endpoint;
use crate::native::frame::MemoryFrame;
use crate::native::transport::{MemoryClaim, PeerMemory};
use crate::support::lock::lock;
use crate::support::user_code;
use crate::support::waiting_threads::NoThread;

/// After so long memory that was offered is looked at that no thread could look at before.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What a link knows of its peer's memory, over all connections.
#[derive(Debug, Default)]
pub(super) struct PeerReads {
    /// Whether a thread looks at it (PM-2).
    is_busy: AtomicBool,
    /// Whether it turned out to be unreadable (PM-4).
    is_refused: AtomicBool,
    /// A stream whose peer has offered its memory, until a thread looks at that.
    offered: Mutex<Option<(Weak<RecvStream>, MemoryClaim)>>,
    /// Whether that is looked at again before long, because there was no thread.
    looks_again: AtomicBool,
    /// How many bytes were read.
    bytes: AtomicU64,
    /// Until when nothing is read, because there was no thread for it (PM-4).
    reads_from: AtomicU64,
    /// Whether descriptors could not be taken: regions come another way then (PM-5).
    takes_no_regions: AtomicBool,
    /// Until when none are sent, because too many were on their way (PM-5).
    passes_from: AtomicU64,
    /// How many bytes came in regions that are read in place.
    in_place: AtomicU64,
    /// Has the next write with descriptors fail.
    #[cfg(all(test, target_os = "linux"))]
    pub(super) passing_fails: AtomicBool,
}

/// The right to have a thread look at the peer's memory, as long as it is kept.
pub(super) struct ReadPermit(Arc<PeerReads>);

impl PeerReads {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub(super) fn in_place(&self) -> u64 {
        self.in_place.load(Ordering::Relaxed)
    }

    /// Whether the peer is told that it may send descriptors.
    pub(super) fn takes_regions(&self, now: Time) -> bool {
        // It may take a thread to copy one.
        !self.takes_no_regions.load(Ordering::SeqCst) && self.has_threads(now)
    }

    /// Takes no descriptors any more (PM-5).
    pub(super) fn refuse_regions(&self) {
        self.takes_no_regions.store(true, Ordering::SeqCst);
    }

    /// Sends no descriptors for a while (PM-5).
    pub(super) fn rest_passing(&self, endpoint: &Endpoint) {
        let until = endpoint.now() + endpoint.config.memory_rest;
        self.passes_from.store(until.0, Ordering::SeqCst);
    }

    /// Whether descriptors are sent where the peer takes them.
    pub(super) fn passes_regions(&self, now: Time) -> bool {
        now >= Time(self.passes_from.load(Ordering::Relaxed))
    }

    /// Has no thread read for a while (PM-4).
    pub(super) fn rest(&self, endpoint: &Endpoint) {
        let until = endpoint.now() + endpoint.config.memory_rest;
        self.reads_from.store(until.0, Ordering::SeqCst);
    }

    fn has_threads(&self, now: Time) -> bool {
        now >= Time(self.reads_from.load(Ordering::SeqCst))
    }

    /// A peer's memory is to be looked at, as that of a later connection than any before.
    fn offer(&self, stream: Weak<RecvStream>, claim: MemoryClaim) {
        *lock(&self.offered) = Some((stream, claim));
    }

    /// Nobody could look at it. If there is a later one, that counts.
    fn offer_again(&self, stream: Weak<RecvStream>, claim: MemoryClaim) {
        lock(&self.offered).get_or_insert((stream, claim));
    }

    /// Only one at a time reads for a link (PM-2).
    pub(super) fn begin(self: &Arc<Self>) -> Option<ReadPermit> {
        let was_busy = self.is_busy.swap(true, Ordering::SeqCst);
        (!was_busy).then(|| ReadPermit(Arc::clone(self)))
    }
}

impl ReadPermit {
    /// So many bytes were read.
    pub(super) fn count(&self, bytes: u64) {
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The peer's memory cannot be read (PM-4).
    pub(super) fn refuse(&self) {
        self.0.is_refused.store(true, Ordering::SeqCst);
    }

    /// Gives it back, and to whoever waits for it: a connection may be made while a thread still reads for the one before.
    pub(super) fn give_back(self, link: &Weak<Link>) {
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
pub(super) const READING: u8 = 4;
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

    /// Whether regions may leave as descriptors on this stream.
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
    pub(super) fn say(&self, what: u8, link: &Arc<Link>) {
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
                // It may have to copy a region.
                if !self.send.memory.may_name() && !self.send.memory.may_pass() {
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
                let may_pass = self.send.write.is_local() && link.endpoint.own_memory.is_some();
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
        let weak = Arc::downgrade(link);
        let offered = claim.clone();
        // PM-1
        let begun = self.spawn(&weak, move |link| {
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
            debug!(%peer, %error, "the peer's memory is not read yet: large values go through the socket");
            link.peer_reads
                .offer_again(Weak::clone(&self.this), offered);
            link.confirm_later();
        }
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
}

impl Link {
    /// Has a thread look at the memory that the peer has offered. Where one is at it (PM-2), it sees to that when it is done;
    /// until then the connection makes do with the socket.
    pub(super) fn confirm_offered(self: &Arc<Self>) {
        let reads = &self.peer_reads;
        let may_read = || {
            let is_refused = reads.is_refused.load(Ordering::SeqCst);
            !is_refused && reads.has_threads(self.endpoint.now())
        };
        while let Some(permit) = reads.begin() {
            let offered = lock(&reads.offered).take();
            match offered {
                Some(_) if !may_read() => return,
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

    /// The same when there may be a thread again (PM-4).
    fn confirm_later(self: &Arc<Self>) {
        if self.peer_reads.looks_again.swap(true, Ordering::SeqCst) {
            return;
        }
        let link = Arc::downgrade(self);
        self.endpoint.spawn_io(async move {
            sleep(LOOK_AGAIN).await;
            if let Some(link) = link.upgrade() {
                link.peer_reads.looks_again.store(false, Ordering::SeqCst);
                link.confirm_offered();
            }
        });
    }

    /// Has the next write with descriptors fail, as if too many were on their way.
    #[cfg(all(test, target_os = "linux"))]
    pub(crate) fn fail_passing(&self) {
        self.peer_reads.passing_fails.store(true, Ordering::SeqCst);
    }

    /// So many bytes came that are read in place: they count as received.
    pub(super) fn count_in_place(&self, bytes: u64) {
        self.peer_reads.in_place.fetch_add(bytes, Ordering::Relaxed);
        self.received.fetch_add(bytes, Ordering::Relaxed);
        self.endpoint.metrics.bytes_received.add(bytes);
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
