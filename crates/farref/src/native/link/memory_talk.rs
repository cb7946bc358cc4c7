//! What the two ends of a stream have told each other of their memory, and have still to say.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use crate::native::endpoint::Endpoint;
use crate::native::frame::MemoryFrame;

/// What one end of a stream has said of its memory, and is to say of the other's.
#[derive(Debug, Default)]
pub(super) struct MemoryTalk {
    owed: AtomicU8,
    pub(super) has_offered: AtomicBool,
    /// Whether nothing large is sent yet, because the peer is about to answer the offer.
    awaits_answer: AtomicBool,
    pub(super) may_name: AtomicBool,
    pub(super) may_pass: AtomicBool,
}

const OFFER: u8 = 1;
pub(super) const MAY_NAME: u8 = 2;
pub(super) const READING: u8 = 4;
const TAKES_REGIONS: u8 = 8;
pub(super) const DECLINED: u8 = 16;

impl MemoryTalk {
    /// Offers this process' memory to the peer, with the next write.
    pub(super) fn offer(&self) {
        self.has_offered.store(true, Ordering::SeqCst);
        self.awaits_answer.store(true, Ordering::SeqCst);
        self.owe(OFFER);
    }

    /// Whether what the stream has to send waits for the peer's answer (PM-6).
    pub(super) fn awaits_answer(&self) -> bool {
        self.awaits_answer.load(Ordering::SeqCst)
    }

    /// The answer has come, or takes too long. Says whether something may have waited for it.
    pub(super) fn stop_awaiting(&self) -> bool {
        self.awaits_answer.swap(false, Ordering::SeqCst)
    }

    /// Says that descriptors are taken, with the next write.
    pub(super) fn take_regions(&self) {
        self.owe(TAKES_REGIONS);
    }

    pub(super) fn owe(&self, what: u8) {
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
        let declined = (owed & DECLINED != 0).then_some(MemoryFrame::Declined);
        let may_name = (owed & MAY_NAME != 0).then_some(MemoryFrame::MayName);
        let reading = (owed & READING != 0).then_some(MemoryFrame::Reading);
        let takes = (owed & TAKES_REGIONS != 0).then_some(MemoryFrame::TakesRegions);
        // Answers last: whoever awaits one knows then what else it may do.
        [offer, takes, declined, may_name, reading]
            .into_iter()
            .flatten()
    }
}
