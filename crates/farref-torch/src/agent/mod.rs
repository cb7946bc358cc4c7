//! The runtime's [`Agent`] on PyTorch's wire.
//!
//! | part | job |
//! | --- | --- |
//! | [`ids`] | PyTorch's names for workers, references, contexts and types, and the runtime's |
//! | [`links`] | what there is with each peer |
//! | [`pipes`] | the tasks that write pipes and read answers |
//! | [`inlets`] | pipes that peers open, and whose they are |
//! | [`outgoing`], [`answering`] | what this worker says, as PyTorch's messages |
//! | [`incoming`], [`calls`], [`responses`] | what peers say, as the runtime takes it |
//! | [`fitting`] | what the wire does not take |
//! | [`load`] | how much of a peer's is open, and when no more is read |
//! | [`pickled`], [`tensors`] | values and tensors inside of messages |
//! | [`group`] | what workers of a group tell each other about it |
//! | [`removal`] | workers of a dynamic group that died |
//! | [`autograd`] | gradients |
//! | [`ending`] | how the workers of a group end together |
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

mod answering;
mod autograd;
mod calls;
mod ending;
mod fitting;
mod group;
mod ids;
mod incoming;
mod inlets;
mod links;
mod load;
mod outgoing;
mod pickled;
mod pipes;
mod removal;
mod responses;
mod tensors;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, Weak};
use std::time::Duration;

use farref::agent::{
    Agent, CallHead, Control, Departure, Ending, Inbound, LinkStatistics, Message, NodeId, Target,
};
use farref::functions::Functions;
use farref::{Codec, CodecError, Payload, StoreServer, ValueCodec, WeakWorker, Worker};
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;
use tokio::task::JoinSet;

pub(crate) use ending::Way;
use ids::{Lives, Types};
pub(crate) use ids::{context_number, split_number};
use links::{Link, MessageIds, Pending, ToSend, lock};

use crate::group::Meeting;
use crate::rpc;
use crate::transport::{Limits, Listener};
use crate::value::{Arrivals, PickleCodec};

/// How many calls a PyTorch worker is sent at once: it sets no limit of its own.
const MAX_CALLS: u32 = 4096;

/// The agent.
pub(crate) struct TorchAgent {
    codec: Codec,
    shared: Arc<Shared>,
}

/// What the agent and its tasks share.
pub(crate) struct Shared {
    me: u16,
    name: String,
    inbound: Weak<dyn Inbound>,
    functions: Functions,
    arrivals: Arc<Arrivals>,
    lives: Lives,
    types: Types,
    ids: MessageIds,
    unrecorded: AtomicU64,
    limits: Limits,
    members: RwLock<Members>,
    unclaimed: inlets::Unclaimed,
    group: group::Group,
    removals: removal::Removals,
    meeting: Arc<Meeting>,
    way: Way,
    ending: tokio::sync::Mutex<ending::Progress>,
    /// All have counted out: from here on whoever is through closes its pipes (TA-7).
    parting: AtomicBool,
    /// From here on pipes that break mean nothing.
    closing: AtomicBool,
    /// Where tasks run. Messages are queued by any thread, also by one that belongs to no runtime (TA-6).
    runtime: Handle,
    tasks: Mutex<JoinSet<()>>,
    writers: Mutex<JoinSet<()>>,
    worker: OnceLock<WeakWorker>,
    server: Mutex<Option<StoreServer>>,
}

/// Who is in the group.
#[derive(Debug, Default)]
struct Members {
    by_node: HashMap<NodeId, Arc<Link>>,
    by_name: HashMap<String, NodeId>,
}

/// A member, as the group's store has it.
pub(crate) struct Neighbour {
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) address: String,
}

/// What the agent is made of.
pub(crate) struct Parts {
    pub(crate) id: u16,
    pub(crate) name: String,
    pub(crate) neighbours: Vec<Neighbour>,
    pub(crate) listener: Listener,
    pub(crate) limits: Limits,
    pub(crate) meeting: Arc<Meeting>,
    pub(crate) way: Way,
    pub(crate) functions: Functions,
    /// The group's store, if this worker hosts it.
    pub(crate) server: Option<StoreServer>,
}

impl TorchAgent {
    /// Begins to listen to peers.
    pub(crate) fn start(parts: Parts, inbound: Weak<dyn Inbound>) -> Arc<Self> {
        let codec = PickleCodec::default();
        let shared = Arc::new(Shared {
            me: parts.id,
            name: parts.name,
            inbound,
            functions: parts.functions,
            arrivals: Arc::clone(&codec.arrivals),
            lives: Lives::default(),
            types: Types::default(),
            ids: MessageIds::default(),
            unrecorded: AtomicU64::new(outgoing::UNRECORDED),
            limits: parts.limits,
            members: RwLock::default(),
            unclaimed: inlets::Unclaimed::default(),
            group: group::Group::default(),
            removals: removal::Removals::default(),
            meeting: parts.meeting,
            way: parts.way,
            ending: tokio::sync::Mutex::default(),
            parting: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            runtime: Handle::current(),
            tasks: Mutex::default(),
            writers: Mutex::default(),
            worker: OnceLock::new(),
            server: Mutex::new(parts.server),
        });
        for neighbour in parts.neighbours {
            shared.enter(&mut shared.members_mut(), neighbour);
        }
        shared.spawn(Shared::listen(Arc::clone(&shared), parts.listener));
        Arc::new(Self {
            codec: Codec::Custom(Arc::new(codec)),
            shared,
        })
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// The worker is there that this is the agent of.
    pub(crate) fn belongs_to(&self, worker: &Worker) {
        drop(self.shared.worker.set(worker.downgrade()));
        autograd::connect(&self.shared, worker);
        self.shared.open_up();
    }
}

impl Shared {
    fn members(&self) -> std::sync::RwLockReadGuard<'_, Members> {
        self.members.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn members_mut(&self) -> std::sync::RwLockWriteGuard<'_, Members> {
        self.members.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// What there is with a member.
    fn link(&self, node: NodeId) -> Option<Arc<Link>> {
        self.members().by_node.get(&node).cloned()
    }

    fn link_by_name(&self, name: &str) -> Option<Arc<Link>> {
        let members = self.members();
        members.by_node.get(members.by_name.get(name)?).cloned()
    }

    /// All other members.
    fn others(&self) -> Vec<Arc<Link>> {
        self.members().by_node.values().cloned().collect()
    }

    fn enter(&self, members: &mut Members, neighbour: Neighbour) -> Arc<Link> {
        let node = self.lives.begin(neighbour.id);
        let link = Link::new(node, neighbour.name.clone(), neighbour.address);
        members.by_name.insert(neighbour.name, node);
        members.by_node.insert(node, Arc::clone(&link));
        link
    }

    /// One that is gone is no member any more, and its number begins another life with the next.
    fn forget_member(&self, node: NodeId) {
        let mut members = self.members_mut();
        let gone = members.by_node.remove(&node);
        if let Some(gone) = &gone
            && members.by_name.get(&gone.name) == Some(&node)
        {
            members.by_name.remove(&gone.name);
        }
        drop(members);
        self.lives.end(node);
        if let Some(gone) = gone {
            gone.end();
        }
    }

    /// How many calls of one peer this worker takes at once.
    fn max_calls(&self) -> usize {
        let inbound = self.inbound.upgrade();
        inbound.map_or(usize::MAX, |inbound| inbound.max_calls() as usize)
    }

    fn next_unrecorded(&self) -> u64 {
        self.unrecorded.fetch_add(1, Ordering::Relaxed)
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = lock(&self.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &self.runtime);
    }

    /// Reads a value of this worker's own that has no references and no tensors in it.
    fn decode<T: DeserializeOwned>(&self, payload: &Payload) -> Result<T, CodecError> {
        let mut value = None;
        let codec = PickleCodec {
            arrivals: Arc::clone(&self.arrivals),
        };
        codec.decode(&payload.body, &mut |reader| {
            value = Some(erased_serde::deserialize(reader)?);
            Ok(())
        })?;
        value.ok_or_else(|| CodecError::new("there is no value"))
    }

    /// The peer has no place in the group any more.
    fn misbehaves(self: &Arc<Self>, link: &Arc<Link>, reason: &str) {
        tracing::error!(worker = %self.name, peer = %link.name, reason, "a peer misbehaves and is cut off");
        self.lost(link, Departure::Died);
    }

    /// A member is gone.
    fn lost(self: &Arc<Self>, link: &Arc<Link>, departure: Departure) {
        if self.closing.load(Ordering::Relaxed) || !link.end() {
            return;
        }
        if let Some(inbound) = self.inbound.upgrade() {
            inbound.dismissed(link.node, departure);
        }
        // Whoever waits for it looks again, and finds it gone.
        self.group.lose(&self.way, &link.name);
        self.clear_up_after(link);
    }

    /// What the runtime's tables say to a peer.
    fn enqueue_control(self: &Arc<Self>, link: &Arc<Link>, control: Control) {
        match control {
            Control::Register(list) => {
                for registration in list {
                    let share = registration.share;
                    let message = rpc::Message::ForkRequest {
                        rref: ids::rref_id(share.rref),
                        fork: ids::fork_id(share.fork),
                    };
                    self.ask(link, &message, Pending::Register(share));
                }
            }
            Control::Release(list) => {
                for share in list {
                    let message = rpc::Message::UserDelete {
                        rref: ids::rref_id(share.rref),
                        fork: ids::fork_id(share.fork),
                    };
                    self.ask(link, &message, Pending::Quiet);
                }
            }
            Control::Accept(list) => {
                for share in list {
                    let fork = ids::fork_id(share.fork);
                    self.ask(link, &rpc::Message::ChildAccept { fork }, Pending::Quiet);
                }
            }
            Control::ContextCleanup(list) => {
                for (context, _) in list {
                    let message = rpc::Message::Cleanup {
                        context: context_number(context),
                    };
                    self.ask(link, &message, Pending::Cleanup(context));
                }
            }
            Control::Confirm(list) => {
                for share in list {
                    let Some(confirming) = link.confirming(share) else {
                        continue;
                    };
                    let message = match confirming.kind {
                        rpc::Kind::RemoteRet => rpc::Message::RemoteRet {
                            rref: ids::rref_id(share.rref),
                            fork: ids::fork_id(share.fork),
                        },
                        _ => rpc::Message::Ack,
                    };
                    let answer = answering::profiled(message.encode(), confirming.profile);
                    let (kind, bytes) = answer;
                    let ready = answering::ready(kind, confirming.id, bytes);
                    drop(confirming.back.send(ToSend::Ready(ready)));
                }
            }
            Control::Decline(list) => {
                for declined in list {
                    if let Some(confirming) = link.confirming(declined.share) {
                        let text = format!("the value is not there: {:?}", declined.reason);
                        let (kind, bytes) = answering::exception_message(&text);
                        let ready = answering::ready(kind, confirming.id, bytes);
                        drop(confirming.back.send(ToSend::Ready(ready)));
                    }
                }
            }
            // TA-1, TA-2: what PyTorch has no word for.
            _ => {}
        }
    }

    /// Queues a request of ours.
    fn ask(self: &Arc<Self>, link: &Arc<Link>, message: &rpc::Message<'_>, pending: Pending) {
        let id = self.ids.next();
        if link.expect(id, pending) {
            let (kind, bytes) = message.encode();
            self.queue(link, ToSend::Ready(answering::ready(kind, id, bytes)));
        }
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
