//! The sending half of one lane: frames stored from the moment they are enqueued until the peer has
//! acknowledged them, and how far the present connection has got in sending them.
//!
//! Holds SE-2 (stored until acknowledged). Sequence numbers obey
//! `first <= cursor <= sent <= first + stored` at all times.

use std::collections::VecDeque;

/// A frame and what it weighs.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Stored<F> {
    payload: F,
    bytes: usize,
}

/// A frame that is to go out now.
pub(super) struct OutgoingFrame<F> {
    pub(super) seq: u64,
    pub(super) payload: F,
    /// Whether an earlier connection has carried it already.
    pub(super) replayed: bool,
}

/// The sending half of one lane.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Outbox<F> {
    stored: VecDeque<Stored<F>>,
    /// The weight of all that is stored.
    bytes: usize,
    /// The sequence number of the oldest stored frame: all before it are acknowledged and gone.
    first: u64,
    /// The sequence number that the present connection sends next.
    cursor: u64,
    /// The first sequence number that no connection has sent yet.
    sent: u64,
}

impl<F> Outbox<F> {
    pub(super) const fn new() -> Self {
        Self {
            stored: VecDeque::new(),
            bytes: 0,
            first: 0,
            cursor: 0,
            sent: 0,
        }
    }

    pub(super) fn frames(&self) -> usize {
        self.stored.len()
    }

    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) const fn first(&self) -> u64 {
        self.first
    }

    pub(super) const fn sent(&self) -> u64 {
        self.sent
    }

    /// Whether the present connection has carried something that is not acknowledged yet.
    pub(super) const fn in_flight(&self) -> bool {
        self.cursor > self.first
    }

    /// Whether there is something that the present connection has not carried.
    pub(super) fn has_more(&self) -> bool {
        (self.cursor - self.first) < self.stored.len() as u64
    }

    pub(super) fn push(&mut self, payload: F, bytes: usize) {
        self.bytes = self.bytes.saturating_add(bytes);
        self.stored.push_back(Stored { payload, bytes });
    }

    /// Gives every frame before `expected`, which must not exceed `sent`, to `acknowledged`. Says
    /// whether there was any.
    pub(super) fn acknowledge(&mut self, expected: u64, acknowledged: &mut impl FnMut(F)) -> bool {
        let progress = expected > self.first;
        while self.first < expected {
            let Some(frame) = self.stored.pop_front() else {
                break;
            };
            // Saturates like the addition in `push`, though no machine stores that much.
            self.bytes = self.bytes.saturating_sub(frame.bytes);
            self.first += 1;
            acknowledged(frame.payload);
        }
        self.cursor = self.cursor.max(self.first);
        progress
    }

    /// Goes on from `expected` on a fresh connection. Says whether that acknowledged anything.
    pub(super) fn resume(&mut self, expected: u64, acknowledged: &mut impl FnMut(F)) -> bool {
        let progress = self.acknowledge(expected, acknowledged);
        self.cursor = self.first;
        progress
    }

    /// Loses what was sent and not acknowledged, and covers it up by numbering the rest anew.
    #[cfg(feature = "mutations")]
    pub(super) fn forget_sent(&mut self) {
        for _ in self.first..self.sent {
            if let Some(frame) = self.stored.pop_front() {
                self.bytes = self.bytes.saturating_sub(frame.bytes);
            }
        }
        self.sent = self.first;
    }
}

impl<F: Clone> Outbox<F> {
    /// The next frame for the present connection.
    pub(super) fn transmit(&mut self) -> Option<OutgoingFrame<F>> {
        let seq = self.cursor;
        // The cursor is at most as far from the first frame as there are frames stored.
        let payload = self
            .stored
            .get((seq - self.first) as usize)?
            .payload
            .clone();
        self.cursor += 1;
        let replayed = seq < self.sent;
        self.sent = self.sent.max(self.cursor);
        Some(OutgoingFrame {
            seq,
            payload,
            replayed,
        })
    }
}
