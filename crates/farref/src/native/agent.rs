//! The agent that speaks farref's own wire.

use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use farref_proto::{CallHead, Departure, NodeId};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

use super::accept::Acceptor;
use super::endpoint::{BoxFuture, Endpoint, Identity, NativeConfig, WireCallbacks};
use super::frame::Packet;
use super::link::LinkTable;
use super::starvation;
use super::transport::Bound;
use crate::agent::{Agent, Inbound, LinkStatistics, Message};
use crate::codec::{Codec, CodecError, Payload};
use crate::support::io_thread::IoThread;
use crate::support::lock::lock;
use crate::support::mutation::mutated;

/// How long tasks may take to end that have been told to.
const TASK_END_TIMEOUT: Duration = Duration::from_secs(1);

/// The agent that speaks farref's own wire.
pub(crate) struct NativeAgent {
    pub(super) links: Arc<LinkTable>,
    codec: Codec,
    /// A task on the program's runtime: ends when that does.
    sentinel: Mutex<Option<JoinHandle<()>>>,
}

/// Ends an agent.
struct StopOnDrop(Weak<LinkTable>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(links) = self.0.upgrade() {
            drop(links.stop());
        }
    }
}

impl NativeAgent {
    /// Starts to accept, and to connect as needed. To be called within a tokio runtime, where streams are
    /// read.
    pub(crate) fn start(
        bound: Bound,
        identity: Identity,
        callbacks: Arc<dyn WireCallbacks>,
        inbound: Weak<dyn Inbound>,
        config: NativeConfig,
        io: Arc<IoThread>,
    ) -> Arc<Self> {
        let (listeners, reach) = bound.into_parts();
        let endpoint = Endpoint::new(identity, config, callbacks, inbound, reach, io);
        let links = LinkTable::new(Arc::clone(&endpoint));
        endpoint.spawn_io(Arc::clone(&links.timer).run(Arc::clone(&endpoint)));
        endpoint.spawn_io(starvation::run(Arc::clone(&links)));
        Acceptor::new(&links).listen(listeners);
        // Without the program's runtime there is no program, and no heartbeat to send.
        let ends_with_runtime = StopOnDrop(Arc::downgrade(&links));
        let sentinel = endpoint.runtime.spawn(async move {
            let _held = ends_with_runtime;
            std::future::pending().await
        });
        Arc::new(Self {
            links,
            codec: Codec::default(),
            sentinel: Mutex::new(Some(sentinel)),
        })
    }
}

impl Agent for NativeAgent {
    fn codec(&self) -> &Codec {
        &self.codec
    }

    fn check_call(&self, head: &CallHead, arguments: &Payload) -> Result<(), CodecError> {
        Packet::check_call(head, arguments, &self.links.endpoint.limits).map_err(CodecError::new)
    }

    fn enqueue(&self, to: NodeId, message: Message) {
        self.enqueue_needs_flush(to, message);
    }

    fn enqueue_needs_flush(&self, to: NodeId, mut message: Message) -> bool {
        match self.links.link_or_new(to) {
            Some(link) => link.enqueue(&mut message),
            None => {
                let payload = match message {
                    Message::Call(call) => Some(call.arguments),
                    Message::Answer(answer) => answer.outcome.ok(),
                    _ => None,
                };
                // The runtime has locked its tables.
                if let Some(payload) = payload.filter(Payload::has_programs_buffers) {
                    self.links.endpoint.user_code.defer(move || drop(payload));
                }
                false
            }
        }
    }

    fn flush(&self, to: NodeId) {
        if let Some(link) = self.links.link(to) {
            link.flush_queued();
        }
    }

    fn watch(&self, peer: NodeId) {
        while let Some(link) = self.links.link_or_new(peer) {
            if mutated!(OutOfSight) || link.keep_connected() {
                break;
            }
        }
    }

    fn forget(&self, node: NodeId, departure: Departure) {
        let links = &self.links;
        let depart = move |links: &LinkTable| {
            let over = links.depart(node);
            over.into_iter().for_each(|link| link.close());
        };
        // Who began to watch one that has left a moment ago has made a link since, or none.
        let link = match departure {
            Departure::Died => None,
            Departure::Left => links.link(node),
        };
        let Some(link) = link else {
            return depart(links);
        };
        link.begin_closing();
        let links = Arc::clone(links);
        self.links.endpoint.spawn_io(async move {
            link.flush();
            let limit = links.endpoint.config.leave_timeout;
            // It closes the connection when it has heard from all; its own good-bye may come after
            // somebody else's word of it. Either way it is over.
            let _ = timeout(limit, link.disconnected()).await;
            link.acknowledge_and_flush();
            depart(&links);
            link.close();
        });
    }

    fn close(&self, limit: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.links.endpoint.begin_closing();
            let deadline = Instant::now() + limit;
            for link in self.links.links() {
                link.flush();
            }
            for link in self.links.links() {
                // The limit is for all of them together.
                let _ = timeout_at(deadline, link.drained()).await;
            }
            for link in self.links.links() {
                link.acknowledge_and_flush();
            }
            let mut tasks = self.links.stop();
            let ended = async { while tasks.join_next().await.is_some() {} };
            // One may be in the middle of the program's own code. It ends when that does.
            let _ = timeout(TASK_END_TIMEOUT, ended).await;
            let sentinel = lock(&self.sentinel).take();
            if let Some(sentinel) = sentinel {
                sentinel.abort();
                // It has nothing to say, and does not end where nobody drives the runtime.
                let _ = timeout(TASK_END_TIMEOUT, sentinel).await;
            }
        })
    }

    fn links(&self) -> Vec<LinkStatistics> {
        let mut links: Vec<_> = self
            .links
            .links()
            .iter()
            .map(|link| link.statistics())
            .collect();
        links.sort_unstable_by_key(|link| link.peer);
        links
    }

    fn bytes(&self) -> (u64, u64) {
        let metrics = &self.links.endpoint.metrics;
        (metrics.bytes_sent.total(), metrics.bytes_received.total())
    }
}

impl fmt::Debug for NativeAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeAgent")
            .field("node", &self.links.endpoint.node())
            .finish_non_exhaustive()
    }
}

impl Drop for NativeAgent {
    fn drop(&mut self) {
        if let Some(sentinel) = lock(&self.sentinel).take() {
            sentinel.abort();
        }
        // The tasks hold what they share, so they would go on without the agent.
        drop(self.links.stop());
    }
}
