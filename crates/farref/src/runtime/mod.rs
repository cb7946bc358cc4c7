//! The driver of the protocol: one [`Node`], its lock, and what follows from its events.
//!
//! All rules are in `farref-proto`. This module brings inputs to the node one at a time and carries out
//! what comes of them. Nothing is done while the lock is held but to change tables and to queue
//! messages: user code runs, values are dropped, sockets are written and wakers are woken after it.
//!
//! # Invariants
//!
//! - **PR-1** Messages are queued with the agent while the lock is held, so that their order is the
//!   order of the inputs that caused them.
//! - **PR-2** No handle, no value and no waker is dropped or woken while the lock is held ([`Work`]).
//! - **PR-3** Every request that arrives is answered exactly once, or its asker is gone.
//! - **PR-4** Calls that wait for a value take their tickets under the lock, in the order in which
//!   the protocol admits them.

mod answering;
mod answers;
pub(crate) mod callers;
pub(crate) mod carrying;
pub(crate) mod context;
pub(crate) mod current;
mod ending;
mod events;
pub(crate) mod extensions;
pub(crate) mod failure;
mod flow;
pub(crate) mod function;
pub(crate) mod handle;
pub(crate) mod holds;
mod incoming;
pub(crate) mod names;
mod outgoing;
pub(crate) mod registry;
pub(crate) mod serve;
pub(crate) mod settings;
pub(crate) mod trace;
mod work;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use farref_proto::{
    CallHead, Carried, ContextError, ContextId, Fingerprint, Membership, MessageId, Node,
    NodeConfig, NodeId, Outbox, RRefId, RefError, Target, Time, WorkerId,
};
use tokio::sync::{Notify, oneshot, watch};

use crate::agent::{Agent, CallMessage, Caller, Origins, TraceContext};
use crate::codec::Payload;
use crate::error::Error;
use extensions::Extensions;
use crate::runtime::handle::Handle;
use crate::runtime::holds::Holds;
use crate::runtime::names::Names;
use crate::runtime::registry::{Called, Entry, Registry};
use crate::runtime::settings::Settings;
use crate::support::blocking::BlockingPool;
use crate::support::polled;
use crate::support::signal::CancelSignal;
use crate::support::telemetry::Telemetry;
use crate::support::user_code::{self, UserCode};
use crate::values::Value;
use crate::values::queue::Queues;

pub(crate) use answers::{Answers, DEFAULT_MAX_ANSWER_BYTES, Expected, Reservation, Reserve};
pub(crate) use flow::{DEFAULT_MAX_PARKED, weigh};
pub(crate) use flow_limits::DEFAULT_MAX_CALLS;
pub(crate) use outgoing::{NotMade, Receipt, Request};
pub(crate) use work::Reply;

use flow::Flow;
use work::Work;

mod flow_limits {
    /// Calls of one peer that a worker accepts at once unless told otherwise.
    pub(crate) const DEFAULT_MAX_CALLS: u32 = 16_384;
}

/// What looking at a value in place is called, in errors and snapshots.
pub(crate) const LOCAL: &str = "local";
/// What copying a value is called.
pub(crate) const FETCH: &str = "to_here";

/// How many shards the reference table has: enough that growing one never takes long.
const REF_SHARDS: u32 = 16;

/// How many places for those who wait for a peer's answers are kept for the next ones.
const SPARE_WAITERS: usize = 64;

/// One worker's protocol, and all that it needs to act.
pub(crate) struct Core {
    pub(crate) me: NodeId,
    pub(crate) name: Arc<str>,
    pub(crate) settings: Settings,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Whether there still is one.
    has_runtime: AtomicBool,
    pub(crate) pool: BlockingPool,
    pub(crate) answers: Answers,
    /// Where code of the program runs that came up where it must not.
    pub(crate) user_code: Arc<UserCode>,
    pub(crate) registry: &'static Registry,
    pub(crate) names: Names,
    pub(crate) holds: Holds,
    /// Whose turn it is to use which value of this worker's.
    pub(crate) queues: Arc<Queues>,
    pub(crate) telemetry: Telemetry,
    pub(crate) extensions: Extensions<Self>,
    pub(crate) stage: watch::Sender<Stage>,
    agent: OnceLock<Arc<dyn Agent>>,
    state: Mutex<State>,
    /// Wakes the pump: there are control messages that nobody has queued yet.
    pub(crate) pump: Notify,
    /// Members that this worker could not reach, for as long as they are not known to be gone.
    pub(crate) unreachable: watch::Sender<BTreeSet<NodeId>>,
    /// A worker died, which may have been the host of the group's store.
    pub(crate) store_lost: Notify,
    began: Instant,
    numbers: AtomicU64,
    /// What was seen of the program's threads.
    looks: Mutex<polled::Looks>,
}

/// What is open with one peer at some moment.
#[derive(Default)]
pub(crate) struct Traffic {
    /// Calls to it that wait because it has enough to do.
    pub(crate) held_back: usize,
    /// Calls to it that it has not answered, those that wait among them.
    pub(crate) made: usize,
    /// Its calls that this worker has not answered.
    pub(crate) served: usize,
    /// Of those, the ones that have been taken up.
    pub(crate) running: Vec<Taken>,
    /// Those that wait for room for their answers, since then.
    pub(crate) held_back_here: Vec<Taken>,
    /// And those that wait for a value to be made.
    pub(crate) waiting: Vec<AwaitsValue>,
}

/// A call that has been taken up: it runs, or waits for its turn to use a value.
#[derive(Clone, Copy)]
pub(crate) struct Taken {
    pub(crate) function: &'static str,
    pub(crate) since: Instant,
    /// The value that it is on, and what the value's queue calls it if it had to wait.
    pub(crate) on: Option<(RRefId, Option<u64>)>,
}

/// A call on a value that is not made yet.
#[derive(Clone, Copy)]
pub(crate) struct AwaitsValue {
    pub(crate) function: &'static str,
    pub(crate) caller: NodeId,
    pub(crate) rref: RRefId,
    pub(crate) since: Instant,
}

/// Where the worker is in its life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Stage {
    /// Asked to be let in.
    Joining,
    /// A member.
    Member,
    /// The graceful shutdown is complete.
    ShutDown,
    /// Said good-bye, and all know.
    Departed,
    /// Declared dead.
    Evicted,
}

/// All that the lock guards.
struct State {
    node: Node<Value>,
    out: Outbox<Value>,
    peers: HashMap<NodeId, PeerState>,
    /// Whether new calls of peers are refused, because the worker is about to say good-bye.
    refuses: bool,
    /// Who waits for a reference to be confirmed.
    confirmations: HashMap<RRefId, Vec<oneshot::Sender<Result<(), RefError>>>>,
    /// Who waits for a context of this worker to be released.
    releases: HashMap<ContextId, Vec<oneshot::Sender<()>>>,
}

/// What is open with one peer, this worker itself among them.
#[derive(Default)]
struct PeerState {
    /// Who waits for answers, by the low half of the request's id.
    waiters: Vec<Option<Waiter>>,
    /// Calls of the peer that are being carried out.
    running: HashMap<MessageId, Running, foldhash::fast::RandomState>,
    /// Calls of the peer that wait for a value, and since when.
    waiting: HashMap<MessageId, (Held, Instant)>,
    flow: Flow,
    /// Calls of the peer whose results stay: open ones, and those it has not been told are done.
    creations_open: u32,
    creations_done: u32,
    bytes_done: u64,
    /// Whether it is told when the program has caught up with its destructors (UC-3).
    credit_put_off: bool,
    /// Calls to the peer that were cancelled and whose answers have not come, with their weight.
    cancelled: HashMap<MessageId, u64>,
}

/// A call of a peer that is being carried out.
struct Running {
    signal: Arc<CancelSignal>,
    taken: Taken,
}

struct Waiter {
    request: MessageId,
    /// A hash of what was called; zero if a value is fetched.
    function: u64,
    bytes: u64,
    reply: oneshot::Sender<Reply>,
}

/// A call that waits for the value that it is on.
enum Held {
    /// A call of a peer or of this worker.
    Call(Arrived),
    /// Somebody on this worker wants to look at the value, which is this one.
    Local(RRefId, oneshot::Sender<Result<Value, RefError>>),
    /// The receiver of a call whose result stays, looked up by a fetch of this worker's own.
    Receiver(Arrived),
}

/// A call that has arrived and been admitted by the protocol.
pub(crate) struct Arrived {
    pub(crate) from: NodeId,
    pub(crate) target: serve::Target,
    /// What to call; none only fetches the value.
    pub(crate) called: Option<Called>,
    /// The value that it is called on.
    pub(crate) on: Option<RRefId>,
    pub(crate) arguments: Payload,
    pub(crate) references: Vec<Arc<Handle>>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) trace: TraceContext,
    /// The calls that wait for it.
    pub(crate) callers: Vec<Caller>,
    pub(crate) context: Option<ContextId>,
}

impl Core {
    pub(crate) fn new(
        name: Arc<str>,
        settings: Settings,
        membership: Membership,
        runtime: tokio::runtime::Handle,
        registry: &'static Registry,
        names: Names,
        seed: u64,
    ) -> Arc<Self> {
        let me = membership.me();
        let mut config = NodeConfig::default();
        config.ref_shards = REF_SHARDS;
        config.seed = seed;
        let stage = match membership.phase() {
            farref_proto::Phase::Member => Stage::Member,
            _ => Stage::Joining,
        };
        Arc::new(Self {
            me,
            telemetry: Telemetry::new(&name),
            name,
            pool: BlockingPool::new(settings.blocking_threads),
            answers: Answers::new(settings.max_answer_bytes, runtime.clone()),
            settings,
            user_code: Arc::new(UserCode::new(runtime.clone())),
            runtime,
            has_runtime: AtomicBool::new(true),
            registry,
            names,
            holds: Holds::default(),
            queues: Arc::default(),
            extensions: Extensions::default(),
            stage: watch::Sender::new(stage),
            agent: OnceLock::new(),
            state: Mutex::new(State {
                node: Node::new(me, membership, config),
                out: Outbox::new(),
                peers: HashMap::new(),
                refuses: false,
                confirmations: HashMap::new(),
                releases: HashMap::new(),
            }),
            pump: Notify::new(),
            unreachable: watch::Sender::default(),
            store_lost: Notify::new(),
            began: Instant::now(),
            numbers: AtomicU64::new(1),
            looks: Mutex::default(),
        })
    }

    /// Ties the wire to the protocol. Must be done once, before anything else.
    pub(crate) fn attach(&self, agent: Arc<dyn Agent>) {
        let attached = self.agent.set(agent);
        debug_assert!(attached.is_ok(), "an agent is attached once");
    }

    /// The wire. Waits for [`attach`](Self::attach) if a peer was quicker.
    pub(crate) fn agent(&self) -> &Arc<dyn Agent> {
        self.agent.wait()
    }

    /// A number that was not given before.
    pub(crate) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Takes the lock. A panic under it is a bug of ours, but one that must not take the process's
    /// other workers along.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at the node.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&Node<Value>) -> T) -> T {
        look(&self.lock().node)
    }

    /// Brings an input to the node and carries out what follows.
    pub(crate) fn input<T>(
        self: &Arc<Self>,
        input: impl FnOnce(&mut Node<Value>, &mut Outbox<Value>) -> T,
    ) -> T {
        let mut state = self.lock();
        let State { node, out, .. } = &mut *state;
        let result = input(node, out);
        self.settle(state, Work::default());
        result
    }

    /// Does what the clock says, and sends what has gathered.
    pub(crate) fn tick(self: &Arc<Self>) {
        let now = self.now();
        user_code::without(|| self.input(|node, out| node.poll(now, out)));
    }

    /// When [`tick`](Self::tick) is due.
    pub(crate) fn next_tick(&self) -> Option<Instant> {
        let at = self.look(Node::poll_timeout)?;
        Some(self.began + Duration::from_nanos(at.0))
    }

    /// Gives a handle back. Its release is sent soon, together with others.
    pub(crate) fn drop_handle(self: &Arc<Self>, rref: RRefId) {
        self.holds.remove(rref);
        let mut state = self.lock();
        let State { node, out, .. } = &mut *state;
        node.drop_handle(rref, out);
        let mut work = Work::default();
        self.handle_events(&mut state, &mut work);
        if state.out.controls() > 0 {
            self.pump.notify_one();
        }
        drop(state);
        work.carry_out(self);
    }

    /// Ends an input: events are acted on, messages queued, the lock is given back, and only then
    /// everything is done that must not be done under it.
    fn settle(self: &Arc<Self>, mut state: MutexGuard<'_, State>, mut work: Work) {
        self.handle_events(&mut state, &mut work);
        while let Some((to, control)) = state.out.pop_control() {
            self.agent()
                .enqueue(to, crate::agent::Message::Control(control));
            work.flush(to);
        }
        drop(state);
        work.carry_out(self);
    }

    /// Tells the instruments how much there is.
    pub(crate) fn measure(&self) {
        let residue = self.look(Node::residue);
        let telemetry = &self.telemetry;
        telemetry.references.set(f64::from(residue.references));
        telemetry.contexts.set(f64::from(residue.contexts));
        telemetry.open_calls.set(f64::from(residue.calls));
        telemetry.blocking_queue.set(self.pool.queued() as f64);
        telemetry
            .destructor_queue
            .set(self.user_code.waiting() as f64);
        let links = self.agent().links();
        let queued: usize = links.iter().map(|link| link.queued_bytes).sum();
        telemetry.queued_bytes.set(queued as f64);
    }

    /// The program keeps its runtime from running. Says which functions do, if it has lasted for long.
    pub(crate) fn starving(&self, lasted: Duration) {
        let mut looks = self.looks.lock().unwrap_or_else(PoisonError::into_inner);
        let blocked = looks.stuck();
        drop(looks);
        if lasted.is_zero() {
            return;
        }
        let blocked: Vec<_> = blocked
            .into_iter()
            .filter_map(|id| self.registry.by_id(id))
            .map(Entry::name)
            .collect();
        if blocked.is_empty() {
            tracing::warn!(worker = %self.name, ?lasted,
                "the program keeps its tokio runtime from running, and no remote function is to blame: \
                 move what computes or blocks to `spawn_blocking` or to a thread");
        } else {
            tracing::warn!(worker = %self.name, ?lasted, functions = blocked.join(", "),
                "these functions compute or block where they should await, and keep the tokio runtime from \
                 running: make them plain `fn`s, or move the work to `spawn_blocking`");
        }
    }

    /// What is open with a peer.
    pub(crate) fn traffic(&self, node: NodeId) -> Traffic {
        let state = self.lock();
        let Some(peer) = state.peers.get(&node) else {
            return Traffic::default();
        };
        let waiting = peer.waiting.values();
        let (mut running, mut held_back_here) = (Vec::new(), Vec::new());
        for (&request, call) in &peer.running {
            match self.answers.held_back_since(node, request) {
                None => running.push(call.taken),
                Some(since) => held_back_here.push(Taken {
                    since,
                    ..call.taken
                }),
            }
        }
        Traffic {
            held_back: peer.flow.parked(),
            made: peer.waiters.iter().flatten().count(),
            served: peer.running.len() + peer.waiting.len() + peer.creations_open as usize,
            running,
            held_back_here,
            waiting: waiting
                .filter_map(|(held, since)| held.awaits(self.me, *since))
                .collect(),
        }
    }

    /// How long the worker has been there.
    pub(crate) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    /// Whether calls can be made.
    pub(crate) fn is_member(&self) -> bool {
        *self.stage.borrow() == Stage::Member
    }

    /// Whether it was a member and is none any more.
    pub(crate) fn is_over(&self) -> bool {
        *self.stage.borrow() > Stage::Member
    }

    /// The runtime that all of this worker ran on is gone.
    pub(crate) fn stranded(self: &Arc<Self>) {
        self.has_runtime.store(false, Ordering::Relaxed);
        self.end();
    }

    /// The worker has ended: whoever still waits learns it, and everything it had is let go.
    pub(crate) fn end(self: &Arc<Self>) {
        self.stage.send_if_modified(|stage| {
            let running = *stage <= Stage::Member;
            if running {
                *stage = Stage::Departed;
            }
            running
        });
        let mut state = self.lock();
        let empty = Node::new(self.me, Membership::joining(self.me), NodeConfig::default());
        let node = std::mem::replace(&mut state.node, empty);
        let out = std::mem::take(&mut state.out);
        let mut peers = std::mem::take(&mut state.peers);
        let confirmations = std::mem::take(&mut state.confirmations);
        let releases = std::mem::take(&mut state.releases);
        drop(state);
        // Whoever waits learns it at once, whatever the program's destructors are at.
        for peer in peers.values_mut() {
            let signals = peer.running.values().map(|running| &running.signal);
            signals.for_each(|signal| signal.cancel());
            peer.waiters.clear();
            drop(peer.flow.take_turned_away());
            peer.waiting
                .retain(|_, (held, _)| !matches!(held, Held::Local(..)));
        }
        drop((confirmations, releases));
        // Values may hold references in turn, whose destructors come back here (PR-2).
        self.user_code.run(move || drop((node, out, peers)));
        let core = Arc::clone(self);
        self.user_code.run(move || core.extensions.clear());
    }

    /// The member that a worker is at present.
    pub(crate) fn current_life(&self, worker: WorkerId) -> Option<NodeId> {
        self.look(|node| {
            let standing = node.membership().view().standing(worker)?;
            let life = NodeId {
                worker,
                incarnation: standing.incarnation,
            };
            node.membership().view().is_member(life).then_some(life)
        })
    }

    /// Where references were made that are about to be sent.
    fn origins(&self, references: &[RRefId]) -> Origins {
        if references.is_empty() {
            return Origins::default();
        }
        Origins::new(references.iter().map(|rref| self.holds.line(*rref)))
    }

    /// Takes over the references that came with a message, to a function or as its result.
    fn receive_references(
        self: &Arc<Self>,
        from: NodeId,
        carried: &[Carried],
        origins: &Origins,
        function: &'static str,
        returned: bool,
    ) -> Vec<Arc<Handle>> {
        if carried.is_empty() {
            return Vec::new();
        }
        let sources = self.holds.sources(origins, from, function, returned);
        let received = carried.iter().enumerate();
        received
            .map(|(index, carried)| Handle::received(self, carried, sources.of(index)))
            .collect()
    }

    /// What a worker is called, for errors.
    pub(crate) fn name_of(&self, node: NodeId) -> Arc<str> {
        if node == self.me {
            return Arc::clone(&self.name);
        }
        self.names
            .of(node)
            .unwrap_or_else(|| Arc::from(node.to_string()))
    }

    /// What the peer's word about a reference means to the user.
    pub(crate) fn explain(&self, error: RefError) -> Error {
        match error {
            RefError::OwnerLost { owner, .. } => Error::OwnerLost {
                owner: self.name_of(owner),
            },
            RefError::CreatorLost { rref } => Error::CreatorLost {
                creator: self.name_of(rref.origin),
            },
            RefError::NotOwner { owner, .. } => Error::NotOwner {
                owner: self.name_of(owner),
            },
            RefError::TypeMismatch {
                rref,
                expected,
                found,
            } => Error::TypeMismatch(format!(
                "{rref} leads to {} on its owner, but to {} as its holder knows it: \
                 build all workers from the same source",
                self.type_name(found),
                self.type_name_of(rref, expected),
            )),
            RefError::Destroyed => self.not_member(),
            other => Error::Reference(other.to_string()),
        }
    }

    /// What is wrong with a context.
    pub(crate) fn explain_context(&self, error: ContextError) -> Error {
        match error {
            ContextError::ParticipantLost { node, .. } => Error::ContextLost {
                peer: self.name_of(node),
            },
            _ => Error::ContextReleased,
        }
    }

    /// What a type is called that a reference of this worker leads to, for errors.
    pub(crate) fn type_name_of(&self, rref: RRefId, fingerprint: Fingerprint) -> String {
        match (self.registry.type_name(fingerprint), self.holds.made(rref)) {
            (None, Some(made)) if !made.type_name.is_empty() => format!("a `{}`", made.type_name),
            _ => self.type_name(fingerprint),
        }
    }

    /// What a type is called, for errors.
    pub(crate) fn type_name(&self, fingerprint: Fingerprint) -> String {
        match self.registry.type_name(fingerprint) {
            Some(name) => format!("a `{name}`"),
            None => format!("a value of another type ({fingerprint})"),
        }
    }

    /// This worker takes no part: why.
    pub(crate) fn not_member(&self) -> Error {
        let stage = *self.stage.borrow();
        if stage == Stage::Evicted {
            return Error::Evicted {
                name: Arc::clone(&self.name),
            };
        }
        Error::NotMember {
            name: Arc::clone(&self.name),
            state: match stage {
                Stage::Joining => "it is still joining",
                Stage::Member => "it is leaving",
                _ if !self.has_runtime.load(Ordering::Relaxed) => {
                    "the tokio runtime that it ran on is gone; to go on, join again on another one"
                }
                Stage::ShutDown | Stage::Departed | Stage::Evicted => {
                    "it has been shut down; to go on, join again as a new worker"
                }
            }
            .to_owned(),
        }
    }
}

impl State {
    fn peer(&mut self, node: NodeId) -> &mut PeerState {
        self.peers.entry(node).or_default()
    }
}

impl PeerState {
    fn wait(&mut self, waiter: Waiter) {
        let index = waiter.request.0 as u32 as usize;
        if index >= self.waiters.len() {
            self.waiters.resize_with(index + 1, || None);
        }
        self.waiters[index] = Some(waiter);
    }

    fn waiter(&mut self, request: MessageId) -> Option<Waiter> {
        let slot = self.waiters.get_mut(request.0 as u32 as usize)?;
        let waiter = slot.take_if(|waiter| waiter.request == request)?;
        while let Some(None) = self.waiters.last() {
            self.waiters.pop();
        }
        // What many calls at once have taken is given back, seldom enough to cost each of them little.
        if self.waiters.capacity() > SPARE_WAITERS.max(4 * self.waiters.len()) {
            let keep = SPARE_WAITERS.max(2 * self.waiters.len());
            self.waiters.shrink_to(keep);
        }
        Some(waiter)
    }
}

impl Held {
    /// The same for as long as it may take: arguments that are small keep no large buffer.
    fn detached(mut self) -> Self {
        if let Self::Call(arrived) | Self::Receiver(arrived) = &mut self {
            arrived.arguments = std::mem::take(&mut arrived.arguments).detached();
        }
        self
    }

    fn awaits(&self, me: NodeId, since: Instant) -> Option<AwaitsValue> {
        let (function, caller, rref) = match self {
            Self::Local(rref, _) => (LOCAL, me, *rref),
            Self::Call(arrived) | Self::Receiver(arrived) => {
                let function = match arrived.called {
                    Some(Called::Entry(entry)) => entry.name(),
                    Some(Called::Method(_)) => "a method",
                    None => FETCH,
                };
                (function, arrived.from, arrived.on?)
            }
        };
        Some(AwaitsValue {
            function,
            caller,
            rref,
            since,
        })
    }
}

impl CallMessage {
    /// The request that an answer will name; none if the result stays.
    pub(crate) fn request(&self) -> Option<MessageId> {
        request_of(&self.head)
    }
}

fn request_of(head: &CallHead) -> Option<MessageId> {
    match head.target {
        Target::Answer(request) | Target::Fetch(request, ..) => Some(request),
        Target::Stay(_) => None,
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .field("node", &self.me)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D5: what a crowd of calls took is given back.
    #[test]
    fn those_who_wait_for_answers_leave_no_places_behind() {
        let mut peer = PeerState::default();
        let wait = |peer: &mut PeerState, id: u64| {
            let (reply, _) = oneshot::channel();
            let request = MessageId(id);
            peer.wait(Waiter {
                request,
                function: 0,
                bytes: id,
                reply,
            });
        };
        (0..10_000).for_each(|id| wait(&mut peer, id));
        for id in (0..10_000).filter(|id| id % 100 != 0) {
            assert!(peer.waiter(MessageId(id)).is_some());
        }
        assert!(peer.waiter(MessageId(1)).is_none());
        for id in (0..10_000).filter(|id| id % 100 == 0) {
            assert_eq!(peer.waiter(MessageId(id)).map(|it| it.bytes), Some(id));
        }
        assert!(
            peer.waiters.capacity() <= 256,
            "{}",
            peer.waiters.capacity()
        );
        wait(&mut peer, 1 << 32);
        assert!(
            peer.waiter(MessageId(0)).is_none(),
            "an older one of this place"
        );
        assert!(peer.waiter(MessageId(1 << 32)).is_some());
    }
}
