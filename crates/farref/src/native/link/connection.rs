//! The present connection of a link: its streams and their tasks.

use std::sync::Arc;

use tokio::task::AbortHandle;

use super::recv_stream::RecvStream;
use super::send_stream::SendStream;
use crate::rendezvous::Address;

/// An established connection. Dropping it closes its streams: at once where a peer may read this process' memory, though
/// tasks that end a little later still have them (PM-3).
#[derive(Debug)]
pub(super) struct Connection {
    /// How both ends call it.
    pub(super) id: u64,
    pub(super) main: StreamHalves,
    pub(super) bulk: Option<StreamHalves>,
    /// Whether the second stream has been asked for.
    pub(super) bulk_asked: bool,
    /// Where this end connected to, if it did.
    pub(super) dialed: Option<Address>,
    pub(super) transport: &'static str,
    /// They end with the connection.
    pub(super) tasks: Vec<AbortHandle>,
}

/// Both halves of one of its streams.
#[derive(Clone, Debug)]
pub(crate) struct StreamHalves {
    pub(crate) send: Arc<SendStream>,
    pub(crate) recv: Arc<RecvStream>,
}

impl Connection {
    /// Whether the second stream is missing and nobody sees to it.
    pub(super) fn lacks_bulk(&self) -> bool {
        self.bulk.is_none() && !self.bulk_asked
    }

    /// All its streams.
    pub(super) fn streams(&self) -> Vec<StreamHalves> {
        [&self.main]
            .into_iter()
            .chain(&self.bulk)
            .cloned()
            .collect()
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        for stream in [Some(&self.main), self.bulk.as_ref()].into_iter().flatten() {
            stream.send.write.hang_up();
        }
    }
}
