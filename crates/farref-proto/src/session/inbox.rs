//! The receiving half of all lanes: which frame is due next on each, and when to say so.
//!
//! Holds the receiver's part of SE-1. Nothing is stored here: a frame is handed over at once or not
//! taken at all, so a peer cannot make this end's memory grow.

use crate::time::Time;

use super::config::SessionConfig;
use super::wire::{Acks, Lane};

/// The receiving half of all lanes.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Inbox {
    next: [u64; Lane::COUNT],
    /// Frames received since the last acknowledgement left.
    unannounced: u32,
    /// When they are to be acknowledged at the latest.
    announce_by: Option<Time>,
    /// Whether they are to be acknowledged now.
    due: bool,
}

impl Inbox {
    pub(super) const fn acks(&self) -> Acks {
        Acks(self.next)
    }

    pub(super) const fn expected(&self, lane: Lane) -> u64 {
        self.next[lane.index()]
    }

    /// The frame due on `lane` has come.
    pub(super) fn advance(&mut self, lane: Lane) {
        self.next[lane.index()] += 1;
    }

    /// A frame has come that the sender waits to hear about. One that came before counts too: its
    /// sender would not have sent it had it heard.
    pub(super) fn owe_ack(&mut self, now: Time, config: &SessionConfig) {
        self.unannounced = self.unannounced.saturating_add(1);
        if self.unannounced >= config.ack_every {
            self.fall_due();
        } else if !self.due {
            self.announce_by.get_or_insert(now + config.ack_delay);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(super) const fn timeout(&self) -> Option<Time> {
        self.announce_by
    }

    pub(super) fn handle_timeout(&mut self, now: Time) {
        if self.announce_by.is_some_and(|by| by <= now) {
            self.fall_due();
        }
    }

    /// Does not wait any longer with what is owed.
    pub(super) fn hurry(&mut self) {
        if self.unannounced > 0 {
            self.fall_due();
        }
    }

    fn fall_due(&mut self) {
        self.due = true;
        self.announce_by = None;
    }

    /// Whether an acknowledgement is not to wait for company any longer.
    pub(super) fn ack_is_due(&self, now: Time) -> bool {
        self.due || self.announce_by.is_some_and(|by| by <= now)
    }

    /// The acknowledgements for a frame that leaves now; nothing is owed afterwards.
    pub(super) fn announce(&mut self) -> Acks {
        self.settle();
        self.acks()
    }

    /// Nothing is owed: it has just been said, or the next greeting will say it.
    pub(super) fn settle(&mut self) {
        self.unannounced = 0;
        self.announce_by = None;
        self.due = false;
    }
}
