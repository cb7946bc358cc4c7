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
//! - **PM-6** An offer is answered before long, also if the answer is no, and after it was said whether descriptors are
//!   taken. Until then nothing is sent on the stream for bulk data, so that the first large part of a connection goes the
//!   way of all later ones; but a peer that does not answer is not waited for longer than
//!   [that](crate::native::NativeConfig::memory_answer).

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use farref_proto::Time;

use super::recv_stream::RecvStream;
use crate::native::endpoint::Endpoint;
use crate::native::transport::MemoryClaim;
use crate::support::lock::lock;

/// What a link knows of its peer's memory, over all connections.
#[derive(Debug, Default)]
pub(super) struct PeerReads {
    /// Whether a thread looks at it (PM-2).
    is_busy: AtomicBool,
    /// Whether it turned out to be unreadable (PM-4).
    pub(super) is_refused: AtomicBool,
    /// A stream whose peer has offered its memory, until a thread looks at that.
    pub(super) offered: Mutex<Option<(Weak<RecvStream>, MemoryClaim)>>,
    /// Whether that is looked at again before long, because there was no thread.
    pub(super) looks_again: AtomicBool,
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

    pub(super) fn count_in_place(&self, bytes: u64) {
        self.in_place.fetch_add(bytes, Ordering::Relaxed);
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

    pub(super) fn has_threads(&self, now: Time) -> bool {
        now >= Time(self.reads_from.load(Ordering::SeqCst))
    }

    /// A peer's memory is to be looked at, as that of a later connection than any before.
    pub(super) fn offer(&self, stream: Weak<RecvStream>, claim: MemoryClaim) {
        *lock(&self.offered) = Some((stream, claim));
    }

    /// Nobody could look at it. If there is a later one, that counts.
    pub(super) fn offer_again(&self, stream: Weak<RecvStream>, claim: MemoryClaim) {
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
}

impl Drop for ReadPermit {
    fn drop(&mut self) {
        self.0.is_busy.store(false, Ordering::SeqCst);
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

    /// PM-4: memory that nobody could look at is not looked at in place of that of a later connection.
    #[cfg(target_os = "linux")]
    #[test]
    fn pm_4_the_offer_of_a_later_connection_counts() {
        use crate::native::transport::OwnMemory;

        let claim = || OwnMemory::new().expect("Linux").claim();
        let reads = PeerReads::default();
        let (earlier, later) = (claim(), claim());
        reads.offer_again(Weak::new(), earlier.clone());
        reads.offer(Weak::new(), later.clone());
        reads.offer_again(Weak::new(), earlier);
        let offered = lock(&reads.offered).take();
        assert_eq!(offered.map(|(_, claim)| claim), Some(later));
    }
}
