//! When a session wants to be woken, and what it does then.
//!
//! Holds SE-7. Every deadline is computed from the state when it is asked for, so a timer of the
//! owner's that fires early, late or twice can do no harm.

use crate::time::Time;

use super::event::ResetReason;
use super::{Connection, Session};

impl<F> Session<F> {
    /// When [`handle_timeout`](Self::handle_timeout) is to be called at the latest. May change with
    /// every other call; none if only an input can bring news.
    pub fn poll_timeout(&self) -> Option<Time> {
        [
            self.inbox.timeout(),
            self.liveness.timeout(&self.config),
            self.stall().map(|(at, _)| at),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Time has passed. Does what has fallen due, which may be nothing.
    ///
    /// Whatever has been read meanwhile is to be handed over first: an owner that slept for long
    /// would otherwise blame the peer for its own sleep.
    pub fn handle_timeout(&mut self, now: Time) {
        self.inbox.handle_timeout(now);
        self.liveness.handle_timeout(now, &self.config);
        if let Some((at, reason)) = self.stall()
            && at <= now
        {
            self.reset = Some(reason);
            self.reset_asked = true;
            self.fruitless_resets = self.fruitless_resets.saturating_add(1);
            self.tally.0.resets += 1;
        }
    }

    /// When the present connection is to be taken for stuck unless it shows progress, and why.
    fn stall(&self) -> Option<(Time, ResetReason)> {
        if self.reset_asked {
            return None;
        }
        let greeting_since = match self.connection {
            Connection::Handshaking { since } => Some(since),
            Connection::Disconnected | Connection::Established => None,
        };
        let patience = self.config.patience(self.fruitless_resets);
        [
            (greeting_since, ResetReason::NoHello),
            (
                self.unacked_since.iter().flatten().min().copied(),
                ResetReason::NoAckProgress,
            ),
            (self.liveness.unanswered_since(), ResetReason::NoAnswer),
        ]
        .into_iter()
        .filter_map(|(since, reason)| Some((since? + patience, reason)))
        .min_by_key(|(at, _)| *at)
    }
}
