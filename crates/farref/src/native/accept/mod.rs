//! Taking connections: a task for each listener, and one for each handshake.

mod handshake;
mod handshake_limit;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, info, warn};

use super::handshake::HandshakeFailure;
use super::inquiry::MAX_OBSERVERS;
use super::link::LinkTable;
use super::transport::{Listener, Stream};
use crate::support::clock::Instant;
use crate::support::lock::lock;
use crate::support::warnings::Warnings;
use handshake_limit::{HandshakeSlot, PendingHandshakes};

/// The pause after a failure to accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How many processes of other users are told at a time that they are not taken.
const MAX_STRANGERS: usize = 8;

/// How many of those who connect may have the store asked for their names at a time.
const MAX_LOOKUPS: usize = 8;

/// Takes the connections that others make to this worker.
#[derive(Debug)]
pub(crate) struct Acceptor {
    links: Arc<LinkTable>,
    pending: Arc<PendingHandshakes>,
    /// Those of other users, who are told so and take no place of anybody else's.
    strangers: Arc<PendingHandshakes>,
    /// What was said lately of those who were refused.
    warnings: Mutex<Warnings>,
    /// A permit for each observer (OB-2).
    observers: Arc<Semaphore>,
    /// A permit for each who is looked up in the store (HS-4).
    lookups: Semaphore,
}

impl Acceptor {
    pub(crate) fn new(links: &Arc<LinkTable>) -> Arc<Self> {
        Arc::new(Self {
            links: Arc::clone(links),
            pending: PendingHandshakes::new(links.endpoint.config.max_handshakes),
            strangers: PendingHandshakes::new(MAX_STRANGERS),
            warnings: Mutex::default(),
            observers: Arc::new(Semaphore::new(MAX_OBSERVERS)),
            lookups: Semaphore::new(MAX_LOOKUPS),
        })
    }

    /// Begins to accept.
    pub(crate) fn listen(self: &Arc<Self>, listeners: Vec<Listener>) {
        for listener in listeners {
            let accepting = Arc::clone(self).run(listener);
            self.links.endpoint.spawn_io(accepting);
        }
    }

    /// Accepts for ever.
    async fn run(self: Arc<Self>, listener: Listener) {
        let mut listener = match listener.move_here() {
            Ok(listener) => listener,
            Err(error) => {
                return error!(%error, "cannot accept connections: nobody can connect to this worker");
            }
        };
        loop {
            match listener.accept().await {
                Ok(stream) => self.admit(stream),
                Err(error) => {
                    warn!(%error, "cannot accept connections");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Begins the handshake with whoever has connected.
    pub(crate) fn admit(self: &Arc<Self>, stream: Stream) {
        let endpoint = &self.links.endpoint;
        let pending = match stream.stranger {
            Some(_) => &self.strangers,
            None => &self.pending,
        };
        let (slot, oldest) = pending.enter();
        if let Some(oldest) = oldest {
            oldest.abort();
            endpoint.metrics.refused_for("overloaded");
            let more = lock(&self.warnings).note(("overloaded", None), Instant::now());
            if let Some(more) = more {
                info!(
                    reason = "overloaded",
                    more, "too many connections in their handshake: the oldest is dropped"
                );
            }
        }
        let number = slot.number;
        // An agent that has stopped starts no task but drops it, and the slot with it.
        if let Some(task) = endpoint.spawn_io(Arc::clone(self).receive(stream, slot)) {
            pending.set_task(number, task);
        }
    }

    async fn receive(self: Arc<Self>, stream: Stream, slot: HandshakeSlot) {
        let endpoint = &self.links.endpoint;
        let (transport, from) = (stream.transport, stream.remote_address());
        let handshake = self.handshake(stream, slot);
        let handshake = timeout(endpoint.config.handshake_timeout, handshake);
        let Err(failure) = handshake.await.unwrap_or(Err(HandshakeFailure::Timeout)) else {
            return;
        };
        endpoint.metrics.refused(&failure);
        let from = from.map(|from| from.ip());
        let reason = failure.reason();
        let shown = from.map(tracing::field::display);
        let note = |from| lock(&self.warnings).note((reason, from), Instant::now());
        if failure.needs_operator() {
            if let Some(more) = note(from) {
                return warn!(transport, from = shown, reason, %failure, more, "a connection is refused");
            }
        } else if !failure.is_in_order()
            && let Some(more) = note(None)
        {
            // Mostly somebody who looks for open ports, from wherever.
            return info!(transport, from = shown, reason, %failure, more, "a connection is refused");
        }
        debug!(transport, from = shown, reason, %failure, "a connection is refused");
    }
}
