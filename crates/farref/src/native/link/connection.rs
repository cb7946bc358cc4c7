//! The present connection of a link: its streams and their tasks.

use std::sync::Arc;

use tokio::task::AbortHandle;

use super::recv_stream::RecvStream;
use super::send_stream::SendStream;
use crate::rendezvous::Address;

/// A connection that stands. Dropping it closes its streams.
#[derive(Debug)]
pub(super) struct Connection {
    /// How both ends call it.
    pub(super) id: u64,
    pub(super) main: Arc<SendStream>,
    pub(super) bulk: Option<Arc<SendStream>>,
    /// The receiving halves of both.
    pub(super) readers: Vec<(Arc<SendStream>, Arc<RecvStream>)>,
    /// Whether the second stream has been asked for.
    pub(super) bulk_asked: bool,
    /// Where this end connected to, if it did.
    pub(super) dialed: Option<Address>,
    pub(super) transport: &'static str,
    pub(super) tasks: Vec<AbortHandle>,
}

impl Connection {
    /// Whether the second stream is missing and nobody sees to it.
    pub(super) fn lacks_bulk(&self) -> bool {
        self.bulk.is_none() && !self.bulk_asked
    }

    /// Remembers a task that ends with the connection.
    pub(super) fn adopt(&mut self, task: Option<AbortHandle>) {
        self.tasks.extend(task);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
