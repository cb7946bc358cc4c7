//! The passes of one context that a worker takes part in: which run, which are over, what can happen to one.

use std::any::Any;
use std::collections::{BTreeSet, HashMap, HashSet};

use farref::context::NodeId;
use tokio::sync::{mpsc, oneshot};

use super::backend::Backend;
use super::parcel::{Parcel, PassId, Receipt};
use crate::failure::PassFailure;

/// Passes of one context that a worker takes part in at once; one that is over counts until its origin begins
/// another. More are refused: they would be a peer's mischief.
pub(super) const MAX_PASSES: usize = 1024;

/// Stands for the origin of passes that began elsewhere. No worker has this number.
pub(super) const ELSEWHERE: NodeId = NodeId::new(u32::MAX, u32::MAX);

/// What a finished or failed pass has to say.
pub(crate) type Outcome = Result<(), PassFailure>;

/// What can happen to a pass.
pub(crate) enum Input<B: Backend> {
    /// It begins here.
    Begin {
        roots: Vec<(B::Tensor, B::Tensor)>,
        done: oneshot::Sender<Outcome>,
    },
    /// Another worker sends something.
    Parcel {
        from: NodeId,
        parcel: Parcel<B::Tensor>,
        reply: oneshot::Sender<Receipt>,
    },
    /// A worker that was drawn in from here is getting on.
    Progress,
    /// Nothing more comes from elsewhere: what has got no gradients gets none.
    Close {
        by: NodeId,
        reply: oneshot::Sender<Receipt>,
    },
    /// It cannot succeed any more.
    Fail(PassFailure),
}

/// A pass that is at rest, to those who only keep it.
pub(super) trait Resting: Any + Send {
    /// Whether it keeps the graph of something that has not been run.
    fn has_graph(&self) -> bool;
}

/// The way to a pass.
pub(super) struct Running<B: Backend> {
    pub(super) inbox: mpsc::UnboundedSender<Input<B>>,
    /// The pass, while it is at rest: whoever brings it something drives it.
    pub(super) resting: Option<Box<dyn Resting>>,
}

/// Those of one context on one worker.
pub(super) struct Passes<B: Backend> {
    pub(super) next: u64,
    pub(super) running: HashMap<PassId, Running<B>>,
    /// Own passes that have not ended.
    pub(super) own: BTreeSet<u64>,
    /// Passes of other workers below these are over.
    pub(super) over: HashMap<NodeId, u64>,
    /// The pass that another system runs through this worker.
    pub(super) elsewhere: Elsewhere,
    /// A worker that took part is gone.
    pub(super) lost: Option<PassFailure>,
}

impl<B: Backend> Default for Passes<B> {
    fn default() -> Self {
        Self {
            next: 0,
            running: HashMap::new(),
            own: BTreeSet::new(),
            over: HashMap::new(),
            elsewhere: Elsewhere::default(),
            lost: None,
        }
    }
}

impl<B: Backend> Passes<B> {
    /// Whether one of those that are at rest may keep a graph.
    pub(super) fn has_graphs(&self) -> bool {
        let mut resting = self.running.values().filter_map(|it| it.resting.as_ref());
        resting.any(|pass| pass.has_graph())
    }

    /// Whether a parcel is too late for its pass, whose origin says that all below some are over.
    pub(super) fn is_over(&mut self, id: PassId, below: u64, me: NodeId) -> bool {
        if id.origin == me {
            return !self.own.contains(&id.counter);
        }
        let over = self.over.entry(id.origin).or_default();
        if below > *over {
            *over = below;
            self.running
                .retain(|other, _| other.origin != id.origin || other.counter >= below);
        }
        id.counter < *over
    }
}

/// The pass of another system that this worker takes part in.
#[derive(Default)]
pub(super) struct Elsewhere {
    counter: u64,
    /// The messages that it knows.
    known: HashSet<u64>,
    /// Those whose gradients have come.
    fed: HashSet<u64>,
}

impl Elsewhere {
    /// Which pass the gradients of a message belong to, of all that were sent, and whether it is a new one.
    pub(super) fn pass_of(&mut self, message: u64, sends: HashSet<u64>) -> (PassId, bool) {
        let next = self.fed.contains(&message) || !self.known.contains(&message);
        if next {
            self.counter += 1;
            self.known = sends;
            self.fed.clear();
        }
        self.fed.insert(message);
        let pass = PassId {
            origin: ELSEWHERE,
            counter: self.counter,
        };
        (pass, next)
    }
}
