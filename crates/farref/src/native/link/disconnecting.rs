//! How a link loses its connection, or ends.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use farref_proto::{SessionEvent, Time};
use tracing::{debug, error};

use super::connection::Connection;
use super::{ConnectionState, Lifecycle, Link, LinkState};
use crate::support::mutation::mutated;

/// What a peer did that no correct peer does.
#[derive(Debug)]
pub(super) struct Offence {
    /// A word for counters.
    kind: &'static str,
    text: String,
}

impl Offence {
    pub(super) fn new(kind: &'static str, text: impl Into<String>) -> Self {
        let text = text.into();
        Self { kind, text }
    }
}

/// What is to be done outside the lock after a connection was lost.
pub(super) struct Disconnected {
    connection: Option<Connection>,
    epoch: u64,
    events: Vec<SessionEvent>,
}

impl Link {
    /// The connection with this epoch is of no use any more: it is closed, and another is made.
    pub(super) fn lose_connection(self: &Arc<Self>, epoch: u64, why: &dyn fmt::Display) {
        let mut state = self.state();
        if state.epoch != epoch || matches!(state.connection, ConnectionState::Disconnected) {
            return;
        }
        debug!(peer = %self.peer, %why, "connection lost");
        let handshaking = matches!(state.connection, ConnectionState::Handshaking);
        let disconnected = self.disconnect(&mut state, true);
        drop(state);
        if handshaking {
            self.abandon.notify_waiters();
        }
        self.finish_disconnecting(disconnected);
    }

    /// The peer broke the rules on the connection with this epoch: it is cut off.
    pub(super) fn cut_off_at(self: &Arc<Self>, epoch: u64, offence: Offence) {
        let state = self.state();
        if state.epoch == epoch {
            self.cut_off_locked(state, offence);
        }
    }

    /// The peer broke the rules: it is cut off, whatever connection there is.
    pub(super) fn cut_off(self: &Arc<Self>, offence: Offence) {
        self.cut_off_locked(self.state(), offence);
    }

    fn cut_off_locked(self: &Arc<Self>, state: MutexGuard<'_, LinkState>, offence: Offence) {
        let Offence { kind, text } = offence;
        if self.close_for_good(state) {
            // The runtime says it to whoever reads the log.
            debug!(peer = %self.peer, kind, reason = text, "peer misbehaved and is cut off");
            if let Some(inbound) = self.endpoint.inbound() {
                inbound.misbehaved(self.peer, kind, text);
            }
        }
    }

    /// What the peer said on the connection with this epoch could not be delivered, for a fault of ours.
    /// The message is lost, so nothing that comes after it can be relied on: the link is closed.
    pub(super) fn give_up(self: &Arc<Self>, epoch: u64, fault: &str) {
        let state = self.state();
        if state.epoch == epoch && self.close_for_good(state) {
            error!(peer = %self.peer, fault, "a message could not be delivered: this is a bug of farref's, \
                and the peer is given up");
            if let Some(inbound) = self.endpoint.inbound() {
                inbound.suspect(self.peer, Duration::ZERO);
            }
        }
    }

    /// Gives the connection up and makes no other. Says whether the link was not closed before.
    fn close_for_good(self: &Arc<Self>, mut state: MutexGuard<'_, LinkState>) -> bool {
        if state.lifecycle == Lifecycle::Closed {
            return false;
        }
        state.lifecycle = Lifecycle::Closed;
        let disconnected = self.disconnect(&mut state, false);
        drop(state);
        self.finish_disconnecting(disconnected);
        true
    }

    /// Takes the connection away, whatever state it is in. The caller finishes that without the lock.
    pub(super) fn disconnect(
        self: &Arc<Self>,
        state: &mut LinkState,
        redial: bool,
    ) -> Disconnected {
        let connection = state.take_connection();
        state.epoch += 1;
        state.failures = state.failures.saturating_add(1);
        // How long the silence was is for the timer to judge, which knows of a sleep of this process (TI-2): peers that have closed their
        // connections during it are not to blame. So no time has passed here.
        state.session.connection_lost(Time::ZERO);
        if redial && !mutated!(NoRedial) {
            self.ensure_dialing(state);
        }
        Disconnected {
            connection,
            epoch: state.epoch,
            events: state.events(),
        }
    }

    pub(super) fn finish_disconnecting(self: &Arc<Self>, disconnected: Disconnected) {
        drop(disconnected.connection);
        self.handle_events(disconnected.epoch, disconnected.events);
        self.progress.notify_waiters();
    }

    /// LT-2: the link takes part in nothing any more, if that can harm nobody; it is still to be [closed](Self::close). One that is
    /// connected only if `connected_too`.
    pub(in crate::native) fn close_if_unused(&self, connected_too: bool) -> bool {
        let mut state = self.state();
        if state.lifecycle == Lifecycle::Closed {
            return true;
        }
        let is_idle = matches!(state.connection, ConnectionState::Disconnected);
        let is_wanted = state.watched || state.lifecycle == Lifecycle::Closing;
        if is_wanted || !state.session.is_unused() || !(is_idle || connected_too) {
            return false;
        }
        state.lifecycle = Lifecycle::Closed;
        state.forgotten = true;
        // Whatever is being read or written for the connection comes too late.
        state.epoch += 1;
        true
    }

    /// Whether something was said on the link, or is about to be.
    pub(super) fn is_used(&self) -> bool {
        !self.state().session.is_unused()
    }

    /// Closes the link: ends its connection and its tasks. What is queued goes with the link.
    pub(crate) fn close(&self) {
        let (old, dialer) = {
            let mut state = self.state();
            state.lifecycle = Lifecycle::Closed;
            state.epoch += 1;
            state.session.connection_lost(self.endpoint.now());
            let _nobody_is_told = state.events();
            (state.take_connection(), state.dialer.take())
        };
        drop(old);
        if let Some(dialer) = dialer {
            dialer.abort();
        }
        self.progress.notify_waiters();
    }
}
