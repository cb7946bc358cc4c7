//! Farref's own wire: sessions over TCP, Unix sockets and pipes within the process.
//!
//! | part | job |
//! | --- | --- |
//! | [`link`] | one peer: session, queue, present connection |
//! | [`connection`], [`dial`], [`listen`], [`greet`], [`handshake`] | getting and losing connections |
//! | [`channel`], [`reader`] | writing to and reading from one stream |
//! | [`frame`] | messages as bytes |
//! | [`observe`] | showing the worker to those who only look |
//! | [`presence`] | asking whether an earlier life is still there |
//! | [`timer`] | when sessions want to be woken |
//! | [`helping`] | reading and writing for a program that keeps its runtime from it |
//! | [`stream`], [`memory`] | what carries the bytes |
//!
//! A message goes from the runtime into a session's queue ([`Agent::enqueue`]); [`Agent::flush`]
//! writes it to the socket from the calling thread. The peer's reader parses it out of its buffer and
//! hands it to the runtime ([`Inbound::receive`]). No task is woken on the way but the reader.
//!
//! Streams are read and written on the program's runtime. All else (accepting, dialing, greeting, the timer,
//! helping out) runs on the [I/O thread](IoThread), which no program can keep from running.

mod channel;
mod config;
mod connection;
mod dial;
mod frame;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod greet;
mod handshake;
mod helping;
mod link;
mod listen;
mod memory;
mod metering;
mod observe;
mod presence;
mod reader;
mod shared;
mod stream;
#[cfg(test)]
mod tests;
mod timer;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use farref_proto::{CallHead, Departure, NodeId};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};

pub(crate) use config::NativeConfig;
pub(crate) use config::{BindOptions, Identity};
pub(crate) use handshake::VERSION as WIRE_VERSION;
pub use listen::BindError;
pub(crate) use listen::Bound;
pub use memory::MemoryNetwork;
pub(crate) use observe::{Watch, WatchError};
pub(crate) use presence::Predecessors;

use frame::Packet;
use shared::{Shared, lock};

use crate::agent::{Agent, Inbound, LinkStatistics, Message};
use crate::codec::{Codec, CodecError, Payload};
use crate::rendezvous::Card;
use crate::report::snapshot::Snapshot;
use crate::support::io_thread::IoThread;

/// A future on the heap.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// How long tasks may take to end that have been told to.
const STRAGGLERS: Duration = Duration::from_secs(1);

/// Who can be reached where.
pub(crate) trait Contacts: Send + Sync + 'static {
    /// How to reach a node. Asked again, with growing pauses, for as long as the node is a member.
    fn lookup(&self, node: NodeId) -> BoxFuture<'_, Result<Card, String>>;

    /// A peer has proved itself and will have so many calls of this worker in flight. Said for each
    /// connection, before the first message that comes on it.
    fn met(&self, card: &Card, max_calls: u32);

    /// A peer does not take this worker's connections, for a reason that no later attempt can change.
    fn turned_away(&self, by: NodeId, rejection: Rejection);

    /// Whether the worker is in its group, or about to be.
    fn is_here(&self) -> bool;

    /// The program keeps its runtime from running: said when that begins, with no time at all, and when it
    /// has lasted so long that somebody should know.
    fn starving(&self, lasted: Duration);

    /// What an observer is shown, with at most so many references. None if the worker is gone.
    fn snapshot(&self, references: usize) -> Option<Snapshot>;
}

/// Why a peer does not take this worker's connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rejection {
    /// It has another token.
    Token,
    /// It speaks that version of the wire.
    Version(u16),
}

/// The agent that speaks farref's own wire.
pub(crate) struct NativeAgent {
    shared: Arc<Shared>,
    codec: Codec,
    /// A task on the program's runtime: goes when that does.
    sentinel: Mutex<Option<JoinHandle<()>>>,
}

/// Ends an agent.
struct StopOnDrop(Weak<Shared>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        if let Some(shared) = self.0.upgrade() {
            drop(shared.stop());
        }
    }
}

impl NativeAgent {
    /// Starts to accept, and to connect as needed. To be called within a tokio runtime, where streams are
    /// read.
    pub(crate) fn start(
        bound: Bound,
        identity: Identity,
        contacts: Arc<dyn Contacts>,
        inbound: Weak<dyn Inbound>,
        config: NativeConfig,
        io: Arc<IoThread>,
    ) -> Arc<Self> {
        let network = bound.network.clone();
        let shared = Shared::new(identity, config, contacts, inbound, network, io);
        shared.spawn_io(timer::run(Arc::clone(&shared)));
        shared.spawn_io(helping::run(Arc::clone(&shared)));
        bound.start(&shared);
        // Without the program's runtime there is no program, and no sign of life to give.
        let ends_with_runtime = StopOnDrop(Arc::downgrade(&shared));
        let sentinel = shared.handle.spawn(async move {
            let _held = ends_with_runtime;
            std::future::pending().await
        });
        Arc::new(Self {
            shared,
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
        Packet::check_call(head, arguments, &self.shared.limits).map_err(CodecError::new)
    }

    fn enqueue(&self, to: NodeId, message: Message) {
        match self.shared.link_or_new(to) {
            Some(link) => link.enqueue(message),
            None => {
                let payload = match message {
                    Message::Call(call) => Some(call.arguments),
                    Message::Answer(answer) => answer.outcome.ok(),
                    _ => None,
                };
                // The runtime has locked its tables.
                if let Some(payload) = payload.filter(Payload::has_programs_buffers) {
                    self.shared.user_code.put_off(move || drop(payload));
                }
            }
        }
    }

    fn flush(&self, to: NodeId) {
        if let Some(link) = self.shared.link(to) {
            link.flush();
        }
    }

    fn forget(&self, node: NodeId, departure: Departure) {
        let link = match departure {
            Departure::Died => self.shared.depart(node),
            Departure::Left => self.shared.link(node),
        };
        let shared = Arc::clone(&self.shared);
        let Some(link) = link else {
            self.shared.depart(node);
            return;
        };
        match departure {
            Departure::Died => link.discard(),
            Departure::Left => link.leave(),
        }
        if departure == Departure::Left {
            self.shared.spawn_io(async move {
                link.flush();
                let patience = shared.config.leave_patience;
                // It closes the connection when it has heard from all; its own good-bye may come after
                // somebody else's word of it. Either way it is over.
                let _ = timeout(patience, link.closed()).await;
                link.say_last();
                shared.depart(node);
                link.discard();
            });
        }
    }

    fn close(&self, patience: Duration) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.shared.begin_closing();
            let deadline = Instant::now() + patience;
            for link in self.shared.links() {
                link.flush();
            }
            for link in self.shared.links() {
                // Patience is for all of them together.
                let _ = timeout_at(deadline, link.drained()).await;
            }
            for link in self.shared.links() {
                link.say_last();
            }
            let mut tasks = self.shared.stop();
            let ended = async { while tasks.join_next().await.is_some() {} };
            // One may be in the middle of the program's own code. It ends when that does.
            let _ = timeout(STRAGGLERS, ended).await;
            let sentinel = lock(&self.sentinel).take();
            if let Some(sentinel) = sentinel {
                sentinel.abort();
                // It has nothing to say, and does not end where nobody drives the runtime.
                let _ = timeout(STRAGGLERS, sentinel).await;
            }
        })
    }

    fn links(&self) -> Vec<LinkStatistics> {
        let mut links: Vec<_> = self
            .shared
            .links()
            .iter()
            .map(|link| link.statistics())
            .collect();
        links.sort_unstable_by_key(|link| link.peer);
        links
    }

    fn bytes(&self) -> (u64, u64) {
        let meters = &self.shared.meters;
        (meters.bytes_sent.total(), meters.bytes_received.total())
    }
}

impl fmt::Debug for NativeAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NativeAgent")
            .field("node", &self.shared.node())
            .finish_non_exhaustive()
    }
}

impl Drop for NativeAgent {
    fn drop(&mut self) {
        if let Some(sentinel) = lock(&self.sentinel).take() {
            sentinel.abort();
        }
        // The tasks hold what they share, so they would go on without the agent.
        drop(self.shared.stop());
    }
}
