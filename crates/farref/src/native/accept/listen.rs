//! The tasks that accept, one for each listener, and one for each handshake.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};
use tracing::{debug, error, warn};

use super::Acceptor;
use super::handshake::accept;
use super::pending::Ticket;
use crate::native::handshake::HandshakeFailure;
use crate::native::transport::{Listener, Stream};

/// The pause after a failure to accept, which is mostly a lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

impl Acceptor {
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
        let (ticket, oldest) = self.pending.enter();
        if let Some(oldest) = oldest {
            oldest.abort();
            endpoint.meters.refused_for("overloaded");
            debug!("too many connections in their handshake: the oldest is dropped");
        }
        let number = ticket.number;
        // An agent that has stopped starts no task but drops it, and the ticket with it.
        if let Some(task) = endpoint.spawn_io(Arc::clone(self).receive(stream, ticket)) {
            self.pending.set_task(number, task);
        }
    }

    async fn receive(self: Arc<Self>, stream: Stream, ticket: Ticket) {
        let endpoint = &self.links.endpoint;
        let transport = stream.transport;
        let handshake = accept(&self, stream, ticket);
        let failure = match timeout(endpoint.config.handshake_timeout, handshake).await {
            Ok(Ok(())) => return,
            Ok(Err(failure)) => failure,
            Err(_) => HandshakeFailure::Timeout,
        };
        endpoint.meters.refused(&failure);
        if failure.needs_operator() {
            warn!(transport, %failure, "a connection is refused");
        } else {
            debug!(transport, %failure, "a connection is refused");
        }
    }
}
