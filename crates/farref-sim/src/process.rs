//! One simulated worker process: its node, its sessions, its program.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use farref_proto::{
    AnswerHead, CallHead, ContextId, Control, Fingerprint, Lane, MessageId, Node, NodeId, Outbox,
    RRefId, Session, Time,
};

/// How deep calls are nested.
pub(crate) const MAX_DEPTH: u32 = 3;
/// How many handles a program keeps before it drops some.
pub(crate) const MAX_HANDLES: usize = 10;

/// What a worker keeps for a value: a number that no other value has.
pub(crate) type Value = u64;

/// What travels in a frame.
#[derive(Clone, Debug)]
pub(crate) enum Packet {
    Control(Control),
    Call(CallHead, Body),
    Answer(AnswerHead, Reply),
    Cancel(MessageId),
}

/// The user's part of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Body {
    /// The oracle's number of the call.
    pub(crate) call: usize,
    /// How many calls this one is nested in.
    pub(crate) depth: u32,
}

/// The user's part of an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reply {
    /// The oracle's number of the call that it answers.
    pub(crate) call: Option<usize>,
    pub(crate) value: Option<Value>,
}

/// A packet with its place in its lane, by which the oracle checks the order.
#[derive(Debug)]
pub(crate) struct Stamped {
    pub(crate) number: u64,
    pub(crate) packet: Packet,
}

/// The way to one peer.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) session: Session<Rc<Stamped>>,
    /// Packets enqueued and received so far, by lane.
    pub(crate) sent: [u64; Lane::COUNT],
    pub(crate) received: [u64; Lane::COUNT],
    /// Until when a timer event is already scheduled.
    pub(crate) timer: Option<Time>,
    /// The peer has left: kept only to deliver what is still queued for it.
    pub(crate) lingering: bool,
    /// A connection attempt is scheduled.
    pub(crate) connecting: bool,
}

/// A call made by the program and not finished.
#[derive(Clone, Debug)]
pub(crate) struct Outstanding {
    pub(crate) to: NodeId,
    pub(crate) request: MessageId,
    pub(crate) call: usize,
    /// What it fetches, and as what type.
    pub(crate) fetches: Option<(RRefId, Fingerprint)>,
    /// The task that waits for it.
    pub(crate) parent: Option<u64>,
}

/// What a task is to bring about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Goal {
    Answer(NodeId, MessageId),
    /// A value that was asked for by another worker.
    Create(NodeId, RRefId),
    /// A value that this worker computes for itself.
    CreateOwn(RRefId),
}

/// A function or constructor that is running.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) goal: Goal,
    pub(crate) call: Option<usize>,
    pub(crate) context: Option<ContextId>,
    /// Handles that it got as arguments.
    pub(crate) arguments: Vec<RRefId>,
    /// Nested calls that it waits for.
    pub(crate) awaiting: u32,
    /// Finishes only after the creator's reference was confirmed (guarantee R6).
    pub(crate) slow: bool,
}

/// What the user's program on a worker has in hand.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub(crate) handles: Vec<RRefId>,
    /// Handles inside values that this worker owns.
    pub(crate) inside: BTreeMap<RRefId, Vec<RRefId>>,
    pub(crate) contexts: Vec<ContextId>,
    pub(crate) outstanding: Vec<Outstanding>,
    /// Of those, the ones that wait to be sent.
    pub(crate) parked: BTreeMap<(NodeId, MessageId), Rc<CallHead>>,
    /// Calls that could not be sent and are about to be taken back.
    pub(crate) unsent: BTreeSet<(NodeId, MessageId)>,
    /// The oracle's numbers of the calls of others that are not answered.
    pub(crate) serving: BTreeMap<(NodeId, MessageId), usize>,
    /// How many references to values of its own it was handed so far.
    pub(crate) handed_over: usize,
    /// How many forks the creators of values of its own have adopted so far.
    pub(crate) adopted: usize,
    /// References whose confirmation is awaited.
    pub(crate) unconfirmed: BTreeSet<RRefId>,
    /// Contexts whose release is awaited.
    pub(crate) releases: BTreeSet<ContextId>,
    pub(crate) tasks: BTreeMap<u64, Task>,
    pub(crate) steps_left: u32,
    /// Lets go of everything.
    pub(crate) draining: bool,
}

impl Program {
    /// Whether the program has a handle of the reference anywhere.
    pub(crate) fn holds(&self, rref: RRefId) -> bool {
        self.handles.contains(&rref)
            || self.inside.values().any(|held| held.contains(&rref))
            || self
                .tasks
                .values()
                .any(|task| task.arguments.contains(&rref))
    }

    /// Whether the program has nothing left, but for functions whose callers are gone: those were
    /// told to stop, and nobody waits for them.
    pub(crate) fn is_empty(&self, is_gone: impl Fn(NodeId) -> bool) -> bool {
        let abandoned =
            |task: &Task| matches!(task.goal, Goal::Answer(caller, _) if is_gone(caller));
        self.handles.is_empty()
            && self.inside.is_empty()
            && self.contexts.is_empty()
            && self.outstanding.is_empty()
            && self.tasks.values().all(abandoned)
    }
}

/// One life of one worker.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) node: Node<Value>,
    pub(crate) out: Outbox<Value>,
    pub(crate) channels: BTreeMap<NodeId, Channel>,
    pub(crate) program: Program,
    /// Since when messages wait to be sent, if any do.
    pub(crate) flush_scheduled: Option<Time>,
    pub(crate) poll_scheduled: bool,
    pub(crate) stalled_until: Time,
    /// Its shutdown is complete.
    pub(crate) finished: bool,
    /// The others have declared it dead, and it has just been told.
    pub(crate) evicted: bool,
    /// Who does not take its connections, as it knows.
    pub(crate) refused_by: BTreeSet<NodeId>,
    /// The members that were there when it was let in.
    pub(crate) elders: BTreeSet<NodeId>,
    /// It has given its group up, and only says what it has to say to the others.
    pub(crate) resigned: bool,
}

impl Process {
    pub(crate) fn new(node: Node<Value>) -> Self {
        Self {
            node,
            out: Outbox::new(),
            channels: BTreeMap::new(),
            program: Program::default(),
            flush_scheduled: None,
            poll_scheduled: false,
            stalled_until: Time::ZERO,
            finished: false,
            evicted: false,
            refused_by: BTreeSet::new(),
            elders: BTreeSet::new(),
            resigned: false,
        }
    }

    pub(crate) fn me(&self) -> NodeId {
        self.node.me()
    }
}
