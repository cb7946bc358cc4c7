//! The engine: records what tensors travelled in which message of a context, and runs gradients back
//! along them. It knows no tensor library; a [`Backend`] does the mathematics.
//!
//! A message that carries tensors which need gradients is a *send* on the worker that wrote it and a
//! *recv* on the worker that read it, under one number. In a backward pass, the tensors of every send
//! are roots of the local graph and those of every recv are leaves of it: gradients come in at roots and
//! leave at leaves.
//!
//! # Invariants
//!
//! - **EN-1** In a pass, each send of a worker's snapshot gets exactly one gradient message, possibly
//!   one that says *none*; whoever waits for one gets it (A2).
//! - **EN-2** Correctness does not depend on how arrivals are grouped: vector-Jacobian products are
//!   linear, a leaf is final when all roots that reach it have been run. What comes after that is run by
//!   itself, and follows what went before.
//! - **EN-3** A pass is over when its root is at rest and every parcel it caused, directly or not, has
//!   been acknowledged (Dijkstra and Scholten): the first parcel that draws a worker in is acknowledged
//!   when the worker is at rest, every other at once.
//! - **EN-4** Gradients are kept in the context, per worker, and nowhere else.
//! - **EN-5** When a context is over on a worker, nothing of it is left there.
//! - **EN-6** A pass that does not retain the graph frees, where it is done, the messages for which it brought
//!   gradients, and no others. A gradient for a message that was freed fails the pass that brings it; one
//!   for a message that a pass did not know of, or that has had its gradients, is taken in. No gradient
//!   is ever ignored: passes side by side add up, or one says that another has freed what it needs.

mod backend;
mod foreign;
mod graph;
mod leaves;
mod parcel;
mod pass;
mod records;
mod seam;
mod task;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use farref::Worker;
use farref::context::{ContextId, ContextScope, Extension, NodeId};
use tokio::sync::{mpsc, oneshot};

pub use backend::{AtLeaves, Backend, Observer};
pub use foreign::{Carrier, Delivery, receive_gradients};
pub use parcel::{Cause, ForSend, Parcel, PassFailure, PassId, Receipt};
pub use records::Counts;
pub use seam::{Link, backward, gradient, observe, progressed, receive, record_recv, record_send};

use pass::{Actor, Input};
use records::Records;

/// Passes of one context that a worker takes part in at once; one that is over counts until its origin begins
/// another. More are refused: they would be a peer's mischief.
const MAX_PASSES: usize = 1024;

/// What the engine keeps for one worker: the contexts that it takes part in.
pub struct Engine<B: Backend> {
    contexts: Mutex<HashMap<ContextId, Arc<InContext<B>>>>,
    /// Set if parcels travel in messages of the wire's own.
    carrier: OnceLock<Arc<dyn Carrier<B>>>,
}

/// One context on one worker.
pub(crate) struct InContext<B: Backend> {
    pub(crate) scope: ContextScope,
    records: Mutex<Records<B>>,
    passes: Mutex<Passes<B>>,
    /// Held by the own pass that runs, on a wire that names no passes.
    turn: tokio::sync::Mutex<()>,
}

struct Passes<B: Backend> {
    next: u64,
    running: HashMap<PassId, mpsc::UnboundedSender<Input<B>>>,
    /// Own passes that have not ended.
    own: BTreeSet<u64>,
    /// Passes of other workers below these are over.
    over: HashMap<NodeId, u64>,
    /// The pass that another system runs through this worker.
    elsewhere: foreign::Elsewhere,
    /// A worker that took part is gone.
    lost: Option<PassFailure>,
}

impl<B: Backend> Default for Engine<B> {
    fn default() -> Self {
        Self {
            contexts: Mutex::default(),
            carrier: OnceLock::new(),
        }
    }
}

impl<B: Backend> std::fmt::Debug for Engine<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("counts", &self.counts())
            .finish()
    }
}

impl<B: Backend> Extension for Engine<B> {
    fn context_closed(&self, _: &Worker, context: ContextId) {
        let closed = lock(&self.contexts).remove(&context);
        // EN-5: the passes end with their inboxes. Whatever holds graphs goes on a stack of its own.
        if let Some(closed) = closed {
            lock(&closed.passes).running.clear();
            let records = std::mem::take(&mut *lock(&closed.records));
            B::let_go(records);
        }
    }

    fn context_failed(&self, worker: &Worker, context: ContextId, lost: NodeId) {
        let Some(place) = self.find(context) else {
            return;
        };
        let failure = PassFailure {
            worker: worker.peer_of(lost).name().to_owned(),
            cause: Cause::WorkerLost,
        };
        let mut passes = lock(&place.passes);
        for inbox in passes.running.values() {
            drop(inbox.send(Input::Fail(failure.clone())));
        }
        passes.lost = Some(failure);
    }
}

impl<B: Backend> Engine<B> {
    /// The engine of a worker.
    pub fn of(worker: &Worker) -> Arc<Self> {
        worker.extension()
    }

    /// How much there is, in all contexts.
    pub fn counts(&self) -> Counts {
        let places: Vec<_> = lock(&self.contexts).values().cloned().collect();
        let mut counts = Counts::default();
        for place in places {
            counts.contexts += 1;
            lock(&place.records).count(&mut counts);
            counts.passes += lock(&place.passes).running.len();
        }
        counts
    }

    fn find(&self, context: ContextId) -> Option<Arc<InContext<B>>> {
        lock(&self.contexts).get(&context).cloned()
    }

    /// The records of a context. None if the context is over on this worker.
    pub(crate) fn enter(&self, scope: &ContextScope) -> Option<Arc<InContext<B>>> {
        let mut contexts = lock(&self.contexts);
        if let Some(place) = contexts.get(&scope.id()) {
            return Some(Arc::clone(place));
        }
        // Asked for with the lock held: a context that closes after this finds the entry (EN-5).
        if matches!(scope.check(), Err(farref::Error::ContextReleased)) {
            return None;
        }
        let place = Arc::new(InContext {
            scope: scope.clone(),
            records: Mutex::default(),
            passes: Mutex::new(Passes {
                next: 0,
                running: HashMap::new(),
                own: BTreeSet::new(),
                over: HashMap::new(),
                elsewhere: foreign::Elsewhere::default(),
                lost: None,
            }),
            turn: tokio::sync::Mutex::default(),
        });
        contexts.insert(scope.id(), Arc::clone(&place));
        Some(place)
    }
}

impl<B: Backend> Passes<B> {
    /// Whether a parcel is too late for its pass, whose origin says that all below some are over.
    fn is_over(&mut self, id: PassId, below: u64, me: NodeId) -> bool {
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

/// What a finished or failed pass has to say.
pub(crate) type Outcome = Result<(), PassFailure>;

impl<B: Backend> InContext<B> {
    pub(crate) fn records<T>(&self, f: impl FnOnce(&mut Records<B>) -> T) -> T {
        f(&mut lock(&self.records))
    }

    /// Runs a pass from `roots`, each with the gradient of the loss with respect to it.
    pub(crate) fn start(
        self: &Arc<Self>,
        roots: Vec<(B::Tensor, B::Tensor)>,
        retain_graph: bool,
        patience: Option<Duration>,
    ) -> Result<oneshot::Receiver<Outcome>, PassFailure> {
        let (done, outcome) = oneshot::channel();
        let mut passes = lock(&self.passes);
        if let Some(lost) = &passes.lost {
            return Err(lost.clone());
        }
        let me = self.scope.worker().node();
        let Passes { running, own, .. } = &mut *passes;
        // Those that have ended are of no use any more.
        running.retain(|id, _| id.origin != me || own.contains(&id.counter));
        let counter = passes.next;
        passes.next += 1;
        passes.own.insert(counter);
        let id = PassId {
            origin: me,
            counter,
        };
        let inbox = self.spawn(&mut passes, id, retain_graph, patience);
        drop(inbox.send(Input::Begin { roots, done }));
        Ok(outcome)
    }

    /// An own pass has ended, be it well or badly.
    pub(crate) fn ended(&self, id: PassId) {
        lock(&self.passes).own.remove(&id.counter);
    }

    /// All own passes below this have ended.
    pub(crate) fn ended_below(&self) -> u64 {
        let passes = lock(&self.passes);
        passes.own.first().copied().unwrap_or(passes.next)
    }

    /// What a worker has heard of which passes are over: all of the origin's below this.
    pub(crate) fn over_below(&self, origin: NodeId) -> u64 {
        let passes = lock(&self.passes);
        passes.over.get(&origin).copied().unwrap_or(0)
    }

    /// A parcel of a pass arrived.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        from: NodeId,
        parcel: Parcel<B::Tensor>,
    ) -> Receipt {
        let accepted = self.accept(&mut lock(&self.passes), from, parcel);
        match accepted {
            Ok(receipt) => self.receipt(receipt).await,
            Err(failure) => Receipt::failed(failure),
        }
    }

    /// Hands a parcel to its pass, which acknowledges it.
    fn accept(
        self: &Arc<Self>,
        passes: &mut Passes<B>,
        from: NodeId,
        parcel: Parcel<B::Tensor>,
    ) -> Result<oneshot::Receiver<Receipt>, PassFailure> {
        if let Some(lost) = &passes.lost {
            return Err(lost.clone());
        }
        let id = parcel.pass;
        if passes.is_over(id, parcel.ended_below, self.scope.worker().node()) {
            return Err(self.failure(Cause::Cancelled));
        }
        let inbox = match passes.running.get(&id) {
            Some(inbox) => inbox.clone(),
            None if passes.running.len() >= MAX_PASSES => {
                return Err(self.failure(Cause::TooManyPasses));
            }
            None => self.spawn(passes, id, parcel.retain_graph, parcel.patience),
        };
        let (reply, receipt) = oneshot::channel();
        drop(inbox.send(Input::Parcel {
            from,
            parcel,
            reply,
        }));
        Ok(receipt)
    }

    async fn receipt(&self, receipt: oneshot::Receiver<Receipt>) -> Receipt {
        let receipt = receipt.await;
        receipt.unwrap_or_else(|_| Receipt::failed(self.failure(Cause::Released)))
    }

    fn failure(&self, cause: Cause) -> PassFailure {
        PassFailure {
            worker: self.scope.worker().name().to_owned(),
            cause,
        }
    }

    /// A worker that this one has drawn in reports that it is getting on.
    pub(crate) fn progressed(&self, id: PassId) {
        if let Some(inbox) = lock(&self.passes).running.get(&id) {
            drop(inbox.send(Input::Progress));
        }
    }

    fn spawn(
        self: &Arc<Self>,
        passes: &mut Passes<B>,
        id: PassId,
        retain_graph: bool,
        patience: Option<Duration>,
    ) -> mpsc::UnboundedSender<Input<B>> {
        let (inbox, inputs) = mpsc::unbounded_channel();
        passes.running.insert(id, inbox.clone());
        // The snapshot is taken here, before anything of this pass can be answered.
        let snapshot = self.records(|records| records.snapshot());
        let actor = Actor::new(Arc::clone(self), id, retain_graph, patience, snapshot);
        self.scope.worker().runtime().spawn(actor.run(inputs));
        inbox
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
