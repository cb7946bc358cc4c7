//! Taking connections: who accepts them, and how many may be in their handshake.

mod handshake;
mod listen;
mod pending;

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::inquiry::MAX_OBSERVERS;
use super::link::LinkTable;
use pending::PendingHandshakes;

/// Takes the connections that others make to this worker.
#[derive(Debug)]
pub(crate) struct Acceptor {
    links: Arc<LinkTable>,
    pending: Arc<PendingHandshakes>,
    /// Places for those who look on (OB-2).
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
}
