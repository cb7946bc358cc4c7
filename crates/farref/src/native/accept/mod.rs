//! Taking connections: a task for each listener, and one for each handshake.

mod handshake;
mod handshake_limit;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::{debug, error, warn};

use super::handshake::HandshakeFailure;
use super::inquiry::MAX_OBSERVERS;
use super::link::LinkTable;
use super::transport::{Listener, Stream};
use handshake_limit::{HandshakeSlot, PendingHandshakes};

/// The pause after a failure to accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Takes the connections that others make to this worker.
#[derive(Debug)]
pub(crate) struct Acceptor {
    links: Arc<LinkTable>,
    pending: Arc<PendingHandshakes>,
    /// A permit for each observer (OB-2).
    observers: Arc<Semaphore>,
}

impl Acceptor {
    pub(crate) fn new(links: &Arc<LinkTable>) -> Arc<Self> {
        Arc::new(Self {
            links: Arc::clone(links),
            pending: PendingHandshakes::new(links.endpoint.config.max_handshakes),
            observers: Arc::new(Semaphore::new(MAX_OBSERVERS)),
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
        let (slot, oldest) = self.pending.enter();
        if let Some(oldest) = oldest {
            oldest.abort();
            endpoint.metrics.refused_for("overloaded");
            debug!("too many connections in their handshake: the oldest is dropped");
        }
        let number = slot.number;
        // An agent that has stopped starts no task but drops it, and the slot with it.
        if let Some(task) = endpoint.spawn_io(Arc::clone(self).receive(stream, slot)) {
            self.pending.set_task(number, task);
        }
    }

    async fn receive(self: Arc<Self>, stream: Stream, slot: HandshakeSlot) {
        let endpoint = &self.links.endpoint;
        let transport = stream.transport;
        let handshake = self.handshake(stream, slot);
        let handshake = timeout(endpoint.config.handshake_timeout, handshake);
        let Err(failure) = handshake.await.unwrap_or(Err(HandshakeFailure::Timeout)) else {
            return;
        };
        endpoint.metrics.refused(&failure);
        if failure.needs_operator() {
            warn!(transport, %failure, "a connection is refused");
        } else {
            debug!(transport, %failure, "a connection is refused");
        }
    }
}
