//! [`Core`]: one worker's protocol and all that it needs to act, its state, and the lock around it.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use crate::support::simulation::RandomState;
use farref_proto::{
    ContextId, Membership, Node, NodeConfig, NodeId, Outbox, RRefId, RefError, Time, TooFew,
    WorkerId,
};
use foldhash::fast::FixedState;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Sleep;

use super::FETCH;
use super::authorization::Refusals;
use super::busy_streams::BusyStreams;
use super::current::Current;
use super::handle::Handle;
use super::job::{ArrivedCall, Job};
use super::registry::Registry;
use super::reply::ReplySender;
use super::settings::Settings;
use super::unwelcome::Unwelcome;
use crate::agent::Agent;
use crate::codec::Payload;
use crate::error::{Error, MemberState};
use crate::support::blocking_pool::BlockingPool;
use crate::support::clock::Instant;
use crate::support::deadlines::Clock;
use crate::support::io_thread::IoThread;
use crate::support::lock::lock;
use crate::support::polled;
use crate::support::task_pool::TaskPool;
use crate::support::user_code::UserCode;
use crate::support::warnings::Warnings;
use crate::support::worker_metrics::WorkerMetrics;
use crate::tables::answer_budget::Answers;
use crate::tables::extensions::Extensions;
use crate::tables::flow_control::Flow;
use crate::tables::holds::{HoldRecord, Holds};
use crate::tables::labels::Labels;
use crate::tables::names::Names;
use crate::tables::published::Published;
use crate::tables::rejections::Rejections;
use crate::tables::served::Served;
use crate::tables::watchers::Watchers;
use crate::values::Value;
use crate::values::queue::Queues;

/// How many shards the reference table has: enough that growing one never takes long.
const REF_SHARDS: u32 = 16;

/// So many changes of a group any peer may tell of before they are settled, however small the group is to be.
const FEW_CHANGES: usize = 1024;

/// One worker's protocol, and all that it needs to act.
pub(crate) struct Core {
    pub(crate) me: NodeId,
    pub(crate) name: Arc<str>,
    pub(crate) settings: Settings,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Whether there still is one.
    pub(super) has_runtime: AtomicBool,
    /// Keeps time for calls: whoever awaits one may have another runtime, or none, and this worker's may be busy.
    io: Arc<IoThread>,
    pub(super) clock: Clock,
    pub(crate) pool: BlockingPool,
    /// Tasks that wait for calls.
    pub(super) tasks: TaskPool<Job>,
    pub(crate) answers: Answers,
    pub(super) busy_streams: BusyStreams,
    /// Where code of the program runs that came up where it must not.
    pub(crate) user_code: Arc<UserCode>,
    pub(crate) registry: &'static Registry,
    pub(crate) names: Names,
    pub(crate) watchers: Watchers,
    /// What this worker has published under names.
    pub(crate) published: Published<Arc<Handle>>,
    pub(crate) holds: Holds,
    /// What streams and lookups are called.
    pub(crate) labels: Arc<Labels>,
    /// Whose turn it is to use which value of this worker's.
    pub(crate) queues: Arc<Queues>,
    pub(crate) metrics: WorkerMetrics,
    /// The calls that it has refused to carry out.
    pub(super) refusals: Refusals,
    /// The calls that it has carried out.
    pub(crate) served: Served,
    pub(crate) extensions: Extensions<Self>,
    pub(crate) stage: watch::Sender<WorkerStage>,
    pub(super) agent: OnceLock<Arc<dyn Agent>>,
    pub(super) state: Mutex<ProtocolState>,
    /// The [number](farref_proto::View::number) of the node's view, for those who only want to know whether it has
    /// changed. Set while the lock is held.
    pub(super) view_number: AtomicU64,
    /// Wakes the clock (`worker/background`): there are control messages that nobody has queued yet.
    pub(crate) wake_clock: Notify,
    /// Members that this worker could not reach, for as long as they are not known to be gone.
    pub(crate) unreachable: watch::Sender<BTreeSet<NodeId>>,
    /// Those who do not take its connections.
    pub(crate) rejections: Rejections,
    /// Of what is said once a minute.
    pub(super) warnings: Mutex<Warnings>,
    /// Set if this worker has given its group up because too few of it were left.
    pub(super) too_few: OnceLock<TooFew>,
    /// Whether those who do not take its connections were there before it.
    pub(super) unwelcome: Unwelcome,
    /// A worker died, which may have been the host of the group's store.
    pub(crate) store_lost: Notify,
    pub(super) began: Instant,
    pub(super) numbers: AtomicU64,
    /// What was seen of the program's threads.
    pub(super) poll_sampler: Mutex<polled::PollSampler>,
}

/// Where the worker is in its life, for tasks to wait for: it follows the [phase](farref_proto::Phase) of the node,
/// which knows of leaving, but not of the end of a shutdown. What a program is told of it is [`MemberState`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum WorkerStage {
    /// Asked to be let in.
    Joining,
    /// A member.
    Member,
    /// The graceful shutdown is complete.
    ShutDown,
    /// Said good-bye, and all know.
    Departed,
    /// Declared dead, or in a minority that does not go on.
    Evicted,
}

/// All that the lock guards.
pub(super) struct ProtocolState {
    pub(super) node: WorkerNode,
    pub(super) out: Outbox<Value>,
    pub(super) peers: Peers,
    /// Whether new calls of peers are refused, because the worker is about to say good-bye.
    pub(super) refuses: bool,
    /// Whether the clock has been told that there are control messages to be queued.
    pub(super) clock_told: bool,
    /// Who waits for a reference to be confirmed.
    pub(super) confirmations:
        HashMap<RRefId, Vec<oneshot::Sender<Result<(), RefError>>>, RandomState>,
    /// Who waits for a context of this worker to be released.
    pub(super) releases: HashMap<ContextId, Vec<oneshot::Sender<()>>>,
}

/// What is open with each peer.
pub(super) type Peers = HashMap<NodeId, PeerState, FixedState>;

/// What is open with one peer, this worker itself among them.
#[derive(Default)]
pub(super) struct PeerState {
    pub(super) flow: Flow,
    /// Calls of the peer whose results stay: open ones, and those it has not been told are done.
    pub(super) creations_open: u32,
    pub(super) creations_done: u32,
    pub(super) bytes_done: u64,
    /// Whether it is told when the program has caught up with its destructors (UC-3).
    pub(super) credit_deferred: bool,
}

/// The node of a worker, which keeps a record of each open call and of each reference that the program holds.
pub(crate) type WorkerNode = Node<Value, OutgoingCall, IncomingCall, HoldRecord>;

/// A call of a peer, or of this worker to itself, that is not answered yet.
pub(crate) enum IncomingCall {
    /// It is being carried out.
    Running {
        call: Weak<Current>,
        taken: StartedCall,
    },
    /// It waits for a value, since then.
    Waiting(Box<ValueWaiter>, Instant),
}

/// A call that has been taken up: it runs, or waits for its turn to use a value.
#[derive(Clone, Copy)]
pub(crate) struct StartedCall {
    pub(crate) function: &'static str,
    pub(crate) since: Instant,
    /// The value that it is on, and what the value's queue calls it if it had to wait.
    pub(crate) on: Option<(RRefId, Option<u64>)>,
}

/// A call of this worker's that is not answered yet.
#[derive(Debug)]
pub(crate) struct OutgoingCall {
    /// A hash of what was called; zero if a value is fetched.
    pub(super) function: u64,
    pub(super) bytes: u64,
    /// When its time is up.
    pub(super) deadline: Option<Instant>,
    /// Who waits for the answer; nobody if the call was cancelled.
    pub(super) reply: Option<ReplySender>,
}

/// What a caller gets: the encoded result with its references, or why there is none.
pub(crate) type Reply = Result<(Payload, Vec<Arc<Handle>>), Error>;

/// A call that waits for the value that it is on.
pub(crate) enum ValueWaiter {
    /// A call of a peer or of this worker.
    Call(ArrivedCall),
    /// Somebody on this worker wants to look at the value, which is this one.
    Local(RRefId, oneshot::Sender<Result<Value, RefError>>),
    /// The receiver of a call whose result stays, looked up by a fetch of this worker's own.
    Receiver(ArrivedCall),
}

impl Core {
    /// A worker whose functions run on the tokio runtime that this is called in.
    pub(crate) fn new(
        name: Arc<str>,
        settings: Settings,
        membership: Membership,
        io: Arc<IoThread>,
        registry: &'static Registry,
        names: Names,
        seed: u64,
    ) -> Arc<Self> {
        let runtime = tokio::runtime::Handle::current();
        let me = membership.me();
        let mut config = NodeConfig::default();
        config.ref_shards = REF_SHARDS;
        config.seed = seed;
        config.require_majority = settings.require_majority;
        config.max_members = settings.max_members;
        config.max_lives = config.max_lives.max(settings.max_members.saturating_mul(4));
        config.max_unsettled = settings.max_members.max(FEW_CHANGES);
        let stage = match membership.phase() {
            farref_proto::Phase::Member => WorkerStage::Member,
            _ => WorkerStage::Joining,
        };
        let view_number = AtomicU64::new(membership.view().number());
        let began = Instant::now();
        let core = Arc::new(Self {
            me,
            metrics: WorkerMetrics::new(&name),
            refusals: Refusals::default(),
            served: Served::new(&name, registry.names().chain([FETCH]).collect()),
            name,
            pool: BlockingPool::of_program(settings.blocking_threads),
            tasks: TaskPool::new(registry.len()),
            answers: Answers::new(settings.max_answer_bytes, runtime.clone()),
            settings,
            busy_streams: BusyStreams::default(),
            user_code: Arc::new(UserCode::new(runtime.clone())),
            runtime,
            io,
            clock: Clock::new(began),
            has_runtime: AtomicBool::new(true),
            registry,
            names,
            watchers: Watchers::default(),
            published: Published::default(),
            holds: Holds::default(),
            labels: Arc::default(),
            queues: Arc::default(),
            extensions: Extensions::default(),
            stage: watch::Sender::new(stage),
            agent: OnceLock::new(),
            state: Mutex::new(ProtocolState {
                node: Node::with_records(me, membership, config),
                out: Outbox::new(),
                peers: Peers::default(),
                refuses: false,
                clock_told: false,
                confirmations: HashMap::default(),
                releases: HashMap::new(),
            }),
            view_number,
            wake_clock: Notify::new(),
            unreachable: watch::Sender::default(),
            rejections: Rejections::default(),
            warnings: Mutex::default(),
            too_few: OnceLock::new(),
            unwelcome: Unwelcome::new(stage == WorkerStage::Joining),
            store_lost: Notify::new(),
            began,
            numbers: AtomicU64::new(1),
            poll_sampler: Mutex::default(),
        });
        let clock = core.clock.run(Arc::downgrade(&core));
        core.io.spawn(clock);
        core
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

    /// Ends at a time, whatever the program does, and wherever it is awaited.
    pub(crate) fn sleep_until(&self, at: Instant) -> Sleep {
        let _inside = self.io.handle().enter();
        tokio::time::sleep_until(at.into())
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
    pub(super) fn lock(&self) -> MutexGuard<'_, ProtocolState> {
        lock(&self.state)
    }

    /// Looks at the node.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&WorkerNode) -> T) -> T {
        look(&self.lock().node)
    }

    /// Whether calls can be made.
    pub(crate) fn is_member(&self) -> bool {
        *self.stage.borrow() == WorkerStage::Member
    }

    /// After the end nothing is sent, whatever the protocol's tables say.
    pub(super) fn check_member(&self) -> Result<(), Error> {
        if self.is_member() {
            Ok(())
        } else {
            Err(self.not_member())
        }
    }

    /// Whether it was a member and is none any more.
    pub(crate) fn is_over(&self) -> bool {
        *self.stage.borrow() > WorkerStage::Member
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

    /// The member that has a name at present.
    pub(crate) fn life_called(&self, name: &str) -> Option<NodeId> {
        let lives = self.names.lives(name);
        self.look(|node| {
            let view = node.membership().view();
            lives.into_iter().find(|life| view.is_member(*life))
        })
    }

    /// A number that changes whenever [`current_life`](Self::current_life) may have. Zero: do not remember any.
    pub(crate) fn view_number(&self) -> u64 {
        self.view_number.load(Ordering::Acquire)
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

    /// This worker is out of its group, by the word of the others or by its own.
    pub(crate) fn evicted(&self) -> Error {
        let name = Arc::clone(&self.name);
        if let Some(&TooFew { left, of }) = self.too_few.get() {
            return Error::Minority { name, left, of };
        }
        match self.unwelcome.reason() {
            Some(reason) => Error::Rendezvous(Arc::clone(reason)),
            None => Error::Evicted { name },
        }
    }

    /// This worker takes no part: why.
    pub(crate) fn not_member(&self) -> Error {
        let stage = *self.stage.borrow();
        if stage == WorkerStage::Evicted {
            return self.evicted();
        }
        Error::NotMember {
            name: Arc::clone(&self.name),
            state: match stage {
                WorkerStage::Joining => MemberState::Joining,
                WorkerStage::Member => MemberState::Leaving,
                _ if !self.has_runtime.load(Ordering::Relaxed) => MemberState::WithoutRuntime,
                WorkerStage::ShutDown | WorkerStage::Departed | WorkerStage::Evicted => {
                    MemberState::Ended
                }
            },
        }
    }
}

impl ProtocolState {
    pub(super) fn peer(&mut self, node: NodeId) -> &mut PeerState {
        self.peers.entry(node).or_default()
    }
}

impl ValueWaiter {
    /// The same for as long as it may take: arguments that are small keep no large buffer.
    pub(super) fn detached(mut self) -> Self {
        if let Self::Call(arrived) | Self::Receiver(arrived) = &mut self {
            arrived.arguments = std::mem::take(&mut arrived.arguments).detached();
        }
        self
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
