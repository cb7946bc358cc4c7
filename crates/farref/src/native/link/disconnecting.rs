//! How a link loses its connection, or ends.

use std::fmt;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use farref_proto::SessionEvent;
use tracing::{debug, error, warn};

use super::connection::Connection;
use super::{Fate, Link, Stage, State};

/// What is to be done outside the lock after a connection was lost.
pub(super) struct Parted {
    connection: Option<Connection>,
    epoch: u64,
    events: Vec<SessionEvent>,
}

impl Link {
    /// The connection with this epoch is of no use any more: it is closed, and another is made.
    pub(super) fn lose(self: &Arc<Self>, epoch: u64, why: &dyn fmt::Display) {
        let mut state = self.state();
        if state.epoch != epoch || matches!(state.stage, Stage::Apart) {
            return;
        }
        debug!(peer = %self.peer, %why, "connection lost");
        let greeting = matches!(state.stage, Stage::Greeting);
        let parted = self.part(&mut state, true);
        drop(state);
        if greeting {
            self.abandon.notify_waiters();
        }
        self.finish_parting(parted);
    }

    /// The peer broke the rules on the connection with this epoch: it is cut off.
    pub(super) fn cut_off(self: &Arc<Self>, epoch: u64, reason: String) {
        let state = self.state();
        if state.epoch == epoch {
            self.condemn_locked(state, reason);
        }
    }

    /// The peer broke the rules: it is cut off, whatever connection there is.
    pub(super) fn condemn(self: &Arc<Self>, reason: String) {
        self.condemn_locked(self.state(), reason);
    }

    fn condemn_locked(self: &Arc<Self>, mut state: MutexGuard<'_, State>, reason: String) {
        if state.fate == Fate::Over {
            return;
        }
        state.fate = Fate::Over;
        let parted = self.part(&mut state, false);
        drop(state);
        self.finish_parting(parted);
        warn!(peer = %self.peer, reason, "peer misbehaved and is cut off");
        if let Some(inbound) = self.endpoint.inbound() {
            inbound.misbehaved(self.peer, reason);
        }
    }

    /// What the peer said on the connection with this epoch could not be handed in, for a fault of ours.
    /// The message is lost, so nothing that comes after it can be relied on: the link is over.
    pub(super) fn give_up(self: &Arc<Self>, epoch: u64, fault: &str) {
        let mut state = self.state();
        if state.epoch != epoch || state.fate == Fate::Over {
            return;
        }
        state.fate = Fate::Over;
        let parted = self.part(&mut state, false);
        drop(state);
        error!(peer = %self.peer, fault, "a message could not be handed in: this is a bug of farref's, \
            and the peer is given up");
        self.finish_parting(parted);
        if let Some(inbound) = self.endpoint.inbound() {
            inbound.suspect(self.peer, Duration::ZERO);
        }
    }

    pub(super) fn part(self: &Arc<Self>, state: &mut State, redial: bool) -> Parted {
        let connection = state.take_connection();
        state.epoch += 1;
        state.failures = state.failures.saturating_add(1);
        state.session.connection_lost(self.endpoint.now());
        if redial {
            self.ensure_dialing(state);
        }
        Parted {
            connection,
            epoch: state.epoch,
            events: state.events(),
        }
    }

    pub(super) fn finish_parting(self: &Arc<Self>, parted: Parted) {
        drop(parted.connection);
        self.act(parted.epoch, parted.events);
        self.progress.notify_waiters();
    }

    /// Ends the link: closes its connection and stops its tasks. What is queued goes with the link.
    pub(crate) fn discard(&self) {
        let (old, dialer) = {
            let mut state = self.state();
            state.fate = Fate::Over;
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
