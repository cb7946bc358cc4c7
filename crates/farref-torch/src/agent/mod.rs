//! The runtime's [`Agent`] on PyTorch's wire.
//!
//! | part | job |
//! | --- | --- |
//! | [`ending`] | how the workers of a group end together |
//! | [`autograd`] | gradients |
//! | [`pipes`] | the tasks that write pipes and read answers |
//! | [`accepting`] | pipes that peers open, and whose they are |
//! | [`removal`] | workers of a dynamic group that died |
//! | [`gathering`] | how the workers of a static group come together |
//! | [`group`] | what workers of a group tell each other about it |
//! | [`incoming`], [`calls`], [`responses`] | what peers say, as the runtime takes it |
//! | [`request`] | their requests, and the calls that these are |
//! | [`outgoing`], [`answering`], [`control`] | what this worker says, as PyTorch's messages |
//! | [`departures`] | members that are gone, or have to go |
//! | [`fitting`] | what the wire does not take |
//! | [`messages`] | messages that are ready to be sent |
//! | [`pickled`], [`tensors`] | values and tensors inside of messages |
//! | [`state`] | what the agent and its tasks share |
//!
//! All of them are `impl` blocks of what is shared ([`AgentShared`]), and import only from those below.
//!
//! # How the protocols meet
//!
//! The runtime's tables of references and contexts were made after PyTorch's, so most of what they say has a
//! message there, one for one:
//!
//! | runtime | PyTorch |
//! | --- | --- |
//! | `Register`, and its `Confirm` | `RREF_FORK_REQUEST`, `RREF_ACK` |
//! | a creation, and its `Confirm` | `PYTHON_REMOTE_CALL`, `REMOTE_RET` |
//! | `Release`, `Accept` | `RREF_USER_DELETE`, `RREF_CHILD_ACCEPT` |
//! | `ContextCleanup`, `ContextCleaned` | `CLEANUP_AUTOGRAD_CONTEXT_REQ`, its answer |
//! | a parcel of gradients | `BACKWARD_AUTOGRAD_REQ` for each message, and their answers |
//!
//! What PyTorch has no word for is made up or left out here:
//!
//! - **TA-1** A call in a context is done when it is answered (`ContextDone`).
//! - **TA-2** Members come and go as the group's store, its calls and broken pipes say. What the runtime's
//!   own protocol would tell others about that is not sent.
//! - **TA-3** A call cannot be called back: its answer is awaited and thrown away.
//! - **TA-4** A peer's request is answered exactly once, whatever is wrong with it. One that breaks the rules of
//!   references costs the peer its place.
//! - **TA-5** What a message carries (references, a result that is to stay, a context) is taken in also if the message
//!   is refused, by one way for all refusals: the runtime carries out a call that fails, or is given an answer that is
//!   an error. PyTorch's workers count on it, as theirs do so.
//! - **TA-6** Whatever is queued for a peer is queued by any thread, with or without a runtime.
//! - **TA-7** A worker that has counted out with all others has ended in good order when it closes its pipes. Before
//!   that, whoever waits for a member that is gone is told at once which one went first.
//! - **TA-8** While an owner has not answered a creation of this worker's, this worker deletes no other reference to the same
//!   value, of the first thousand that the owner hands it. PyTorch's owners count the creation's reference when its function has run, and forget a value with the
//!   last reference they know of: one that they hand out before that, and that is deleted before that, takes the value
//!   with it, and whoever holds it at the owner waits for ever. (Between PyTorch's own workers that happens.)

mod accepting;
mod answering;
mod autograd;
mod calls;
mod control;
mod departures;
mod ending;
mod fitting;
mod gathering;
mod group;
mod incoming;
mod messages;
mod outgoing;
mod pickled;
mod pipes;
mod removal;
mod request;
mod responses;
mod state;
mod tensors;
#[cfg(test)]
mod tests;

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use farref::agent::{
    Agent, CallHead, Departure, Ending, Inbound, LinkStatistics, Message, NodeId, Target,
};
use farref::{Codec, CodecError, Payload, Worker};

pub(crate) use state::ending::GroupKind;
pub(crate) use state::ids::{context_number, split_number};
use state::links::{Link, Pending, ToSend, lock};
pub(crate) use state::{AgentShared, Parts};

use crate::transport::{Listener, Traffic};
use crate::value::PickleCodec;

/// The agent.
pub(crate) struct TorchAgent {
    codec: Codec,
    shared: Arc<AgentShared>,
}

impl TorchAgent {
    /// Begins to listen to peers.
    pub(crate) fn start(parts: Parts, listener: Listener, inbound: Weak<dyn Inbound>) -> Arc<Self> {
        let codec = PickleCodec::default();
        let shared = AgentShared::new(parts, inbound, Arc::clone(&codec.arrivals));
        shared.spawn(AgentShared::listen(Arc::clone(&shared), listener));
        Arc::new(Self {
            codec: Codec::Custom(Arc::new(codec)),
            shared,
        })
    }

    pub(crate) fn shared(&self) -> &Arc<AgentShared> {
        &self.shared
    }

    /// The worker is there that this is the agent of.
    pub(crate) fn belongs_to(&self, worker: &Worker) {
        drop(self.shared.worker.set(worker.downgrade()));
        autograd::connect(&self.shared, worker);
        self.shared.open_up();
    }
}

impl Agent for TorchAgent {
    fn codec(&self) -> &Codec {
        &self.codec
    }

    fn check_call(&self, head: &CallHead, arguments: &Payload) -> Result<(), CodecError> {
        self.shared.judge_call(head, arguments)
    }

    fn enqueue(&self, to: NodeId, message: Message) {
        let shared = &self.shared;
        let Some(link) = shared.link(to) else {
            return; // which the runtime learns by other means
        };
        match message {
            Message::Control(control) => shared.enqueue_control(&link, control),
            Message::Call(call) => {
                let context = call.head.context;
                let pending = match &call.head.target {
                    Target::Answer(request) | Target::Fetch(request, ..) => Pending::Call {
                        request: *request,
                        context,
                    },
                    Target::Stay(creation) => Pending::Create {
                        share: creation.share,
                        context,
                        weight: call.weight(),
                    },
                };
                let id = shared.ids.next();
                if link.expect(id, pending) {
                    shared.queue(&link, ToSend::Call(id, call));
                }
            }
            Message::Answer(answer) => {
                if let Some(served) = link.served(answer.head.id) {
                    let back = served.back.clone();
                    drop(back.send(ToSend::Answer(served, answer)));
                }
            }
            // PyTorch counts none of it, so this worker does (LO-1).
            Message::Credit { calls, bytes } => link.load.remove(calls, bytes),
            // TA-3
            _ => {}
        }
    }

    fn has_windows(&self) -> bool {
        false
    }

    // Python workers know nothing of them.
    fn has_names(&self) -> bool {
        false
    }

    fn flush(&self, _: NodeId) {}

    fn forget(&self, node: NodeId, _: Departure) {
        self.shared.forget_member(node);
    }

    fn close(&self, patience: Duration) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(self.shared.close(patience))
    }

    fn links(&self) -> Vec<LinkStatistics> {
        let links = self.shared.others();
        links.iter().map(|link| statistics(link)).collect()
    }

    fn ending(&self) -> Option<&dyn Ending> {
        Some(self)
    }
}

fn statistics(link: &Link) -> LinkStatistics {
    let mut statistics = LinkStatistics::new(link.node);
    let pipes = lock(&link.traffic);
    statistics.connections = pipes.len() as u64;
    statistics.transport = (!pipes.is_empty()).then_some("tcp");
    let from_memory = |traffic: &Traffic| traffic.bytes_from_memory.load(Ordering::Relaxed);
    statistics.bytes_from_memory = pipes.iter().map(|traffic| from_memory(traffic)).sum();
    for traffic in pipes.iter() {
        statistics.bytes_sent += traffic.bytes_sent.load(Ordering::Relaxed);
        statistics.bytes_received += traffic.bytes_received.load(Ordering::Relaxed);
    }
    statistics
}

impl fmt::Debug for TorchAgent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TorchAgent")
            .field("id", &self.shared.me)
            .field("name", &self.shared.name)
            .finish_non_exhaustive()
    }
}
