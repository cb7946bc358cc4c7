//! Whether the peer is alive: heartbeats, and the silence that makes it suspected.
//!
//! Holds SE-6. A silence begins with the last sign of life and knows neither connections nor sizes:
//! a peer that keeps sending pieces of one huge frame is alive, one that cannot be reached is not.

use std::time::Duration;

use crate::time::Time;

use super::config::SessionConfig;

/// The pings of this end and the signs of life of the other.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Liveness {
    last_heard: Time,
    /// Whether the present silence has been reported or is about to be.
    suspected: bool,
    /// A suspicion that the owner has not fetched yet.
    suspicion: Option<Duration>,
    /// The generation of the latest ping; also bumped by each connection, so that no answer to a
    /// ping of an earlier one is taken for an answer on this one.
    generation: u64,
    /// When the next ping falls due; none while disconnected or while one waits to leave.
    next_ping: Option<Time>,
    ping_due: bool,
    /// When a ping left, if nothing has been heard since.
    unanswered_since: Option<Time>,
    /// The latest ping of the peer that is not answered yet.
    pong_due: Option<u64>,
}

impl Liveness {
    pub(super) const fn new(now: Time) -> Self {
        Self {
            last_heard: now,
            suspected: false,
            suspicion: None,
            generation: 0,
            next_ping: None,
            ping_due: false,
            unanswered_since: None,
            pong_due: None,
        }
    }

    /// A connection stands: heartbeats begin.
    pub(super) fn connected(&mut self, now: Time, config: &SessionConfig) {
        self.heard(now);
        self.generation += 1;
        self.next_ping = Some(now + config.heartbeat_interval);
    }

    /// The connection is gone, and with it the heartbeats; the silence goes on.
    pub(super) fn disconnected(&mut self) {
        self.next_ping = None;
        self.ping_due = false;
        self.unanswered_since = None;
        self.pong_due = None;
    }

    /// The peer gave a sign of life.
    pub(super) fn heard(&mut self, now: Time) {
        self.last_heard = now;
        self.suspected = false;
        // Not fetched yet and no longer true.
        self.suspicion = None;
        self.unanswered_since = None;
    }

    /// The peer asks for an answer. The latest answer speaks for all earlier ones.
    pub(super) fn handle_ping(&mut self, generation: u64) {
        self.pong_due = self.pong_due.max(Some(generation));
    }

    /// The peer answers. Says whether it answers the latest ping; any other answer is late and shows
    /// only that the peer was alive when it was asked.
    pub(super) fn handle_pong(&mut self, now: Time, generation: u64) -> bool {
        let current = generation == self.generation;
        if current {
            self.heard(now);
        }
        current
    }

    /// Whether a ping or an answer to one is to leave now.
    pub(super) const fn is_due(&self) -> bool {
        self.ping_due || self.pong_due.is_some()
    }

    /// The generation of a ping of the peer that is to be answered now.
    pub(super) fn take_pong(&mut self) -> Option<u64> {
        self.pong_due.take()
    }

    /// The generation of a ping that is to leave now.
    pub(super) fn take_ping(&mut self, now: Time, config: &SessionConfig) -> Option<u64> {
        if !self.ping_due {
            return None;
        }
        self.ping_due = false;
        self.generation += 1;
        self.next_ping = Some(now + config.heartbeat_interval);
        self.unanswered_since.get_or_insert(now);
        Some(self.generation)
    }

    pub(super) const fn unanswered_since(&self) -> Option<Time> {
        self.unanswered_since
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(super) fn timeout(&self, config: &SessionConfig) -> Option<Time> {
        let suspect_at = (!self.suspected).then(|| self.last_heard + config.peer_timeout);
        [self.next_ping, suspect_at].into_iter().flatten().min()
    }

    pub(super) fn handle_timeout(&mut self, now: Time, config: &SessionConfig) {
        if self.next_ping.is_some_and(|at| at <= now) {
            self.next_ping = None;
            self.ping_due = true;
        }
        self.judge_silence(now, config);
    }

    /// Suspects the peer if it has been silent for too long.
    pub(super) fn judge_silence(&mut self, now: Time, config: &SessionConfig) {
        if self.last_heard + config.peer_timeout <= now {
            self.suspect(now);
        }
    }

    /// Suspects the peer, unless that has been said of the present silence.
    pub(super) fn suspect(&mut self, now: Time) {
        if !self.suspected {
            self.suspected = true;
            self.suspicion = Some(now.since(self.last_heard));
        }
    }

    /// The suspicion that is to be reported now.
    pub(super) fn take_suspicion(&mut self) -> Option<Duration> {
        self.suspicion.take()
    }
}
