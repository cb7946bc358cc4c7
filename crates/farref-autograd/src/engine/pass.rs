//! One backward pass on one worker: takes parcels in, has the graph run, sends parcels out.
//!
//! An actor of its own: everything that happens to the pass here comes through its inbox, and whatever
//! it waits for (the graph, acknowledgements) is in its one set of jobs. It is at rest when that set is
//! empty and nothing is queued (EN-3).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use farref::context::NodeId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};

use super::backend::Backend;
use super::carrier::Carrier;
use super::contexts::{Engine, Participation};
use super::graph::{Feed, Graph};
use super::leaves::Complete;
use super::parcel::{ForSend, Parcel, PassId, Receipt};
use super::passes::{ELSEWHERE, Input, Outcome, Passes};
use super::records::{RecvId, Snapshot};
use super::task::Root;
use crate::failure::{Cause, PassFailure};

/// How often a worker that was drawn in reports, at most.
const REPORT: Duration = Duration::from_millis(10);

/// What the actor waits for.
enum Job<B: Backend> {
    /// The graph was fed, and run as far as that goes.
    Computed(Box<Graph<B>>, Result<Vec<Complete<B>>, Cause>),
    /// A parcel was acknowledged.
    Acknowledged(NodeId, farref::Result<Receipt>),
}

/// Whom this worker owes the word that it is at rest.
enum Engaged {
    /// The program, here.
    Root(oneshot::Sender<Outcome>),
    /// The worker that drew this one in, and what to say besides.
    By(NodeId, Receipt, oneshot::Sender<Receipt>),
}

pub(crate) struct Actor<B: Backend> {
    place: Arc<Participation<B>>,
    carrier: Option<Arc<dyn Carrier<B>>>,
    me: NodeId,
    id: PassId,
    retain_graph: bool,
    patience: Option<Duration>,
    jobs: JoinSet<Job<B>>,
    /// Not there while it is being run, nor after a failure.
    graph: Option<Box<Graph<B>>>,
    /// Whether it has been looked at.
    begun: bool,
    /// Gradients that wait for it.
    queue: Vec<Feed<B>>,
    /// The snapshot's sends by receiver, and its recvs: remembered to the end of the pass.
    sent: HashMap<NodeId, Vec<u64>>,
    known: HashSet<RecvId>,
    /// Those to be told of the pass.
    untold: HashSet<NodeId>,
    /// Gradients to be sent.
    outbox: BTreeMap<NodeId, Vec<ForSend<B::Tensor>>>,
    unacknowledged: BTreeMap<NodeId, usize>,
    engaged: Option<Engaged>,
    failure: Option<PassFailure>,
    /// Whether it is one of elsewhere for which nothing more comes.
    closing: bool,
    /// When something last happened.
    stepped: Instant,
    /// When the worker that drew this one in last heard of it, and whether something has happened since.
    reported: Instant,
    to_report: bool,
}

impl<B: Backend> Actor<B> {
    pub(crate) fn new(
        place: Arc<Participation<B>>,
        id: PassId,
        retain_graph: bool,
        patience: Option<Duration>,
        snapshot: Snapshot<B>,
    ) -> Self {
        let worker = place.scope.worker();
        let me = worker.node();
        let mut sent: HashMap<NodeId, Vec<u64>> = HashMap::new();
        for (number, to, _) in &snapshot.sends {
            sent.entry(*to).or_default().push(*number);
        }
        let known: HashSet<RecvId> = snapshot.recvs.keys().copied().collect();
        let mut untold: HashSet<NodeId> = sent.keys().copied().collect();
        untold.extend(known.iter().map(|(from, _)| *from));
        untold.remove(&me);
        // Nobody else will say that these were not received (EN-1).
        let unknown = sent.get(&me).into_iter().flatten();
        let queue = unknown
            .filter(|&&number| !known.contains(&(me, number)))
            .map(|&number| (Root::Send(number), Vec::new()))
            .collect();
        Self {
            carrier: Engine::<B>::of(&worker).carrier.get().cloned(),
            me,
            id,
            retain_graph,
            patience,
            jobs: JoinSet::new(),
            graph: Some(Box::new(Graph::new(
                Arc::clone(&place),
                snapshot,
                retain_graph,
                id.origin == ELSEWHERE,
            ))),
            place,
            begun: false,
            queue,
            sent,
            known,
            untold,
            outbox: BTreeMap::new(),
            unacknowledged: BTreeMap::new(),
            engaged: None,
            failure: None,
            closing: false,
            stepped: Instant::now(),
            reported: Instant::now(),
            to_report: false,
        }
    }

    /// Lives until the context is over: a late parcel must find somebody who knows what was.
    pub(crate) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Input<B>>) {
        loop {
            let tick = self.next_tick();
            tokio::select! {
                biased;
                Some(job) = self.jobs.join_next() => self.finished(job),
                input = inbox.recv() => match input {
                    Some(input) => self.take(input),
                    None => break,
                },
                () = until(tick) => self.tick(),
                () = given_up(self.engaged.as_mut()) => self.fail(Cause::Cancelled),
            }
            self.go_on();
        }
        B::let_go((self.graph, self.queue));
    }

    fn take(&mut self, input: Input<B>) {
        match input {
            Input::Begin { roots, done } => {
                let (tensors, gradients): (Vec<_>, Vec<_>) = roots.into_iter().unzip();
                self.engaged = Some(Engaged::Root(done));
                if let Some(graph) = &mut self.graph {
                    graph.add_loss(tensors);
                }
                let gradients = gradients.into_iter().map(Some).collect();
                self.queue.push((Root::Loss, gradients));
            }
            Input::Parcel {
                from,
                parcel,
                reply,
            } => self.receive(from, parcel, reply),
            Input::Progress => self.step(),
            Input::Close { by, reply } => {
                self.closing = true;
                self.engage(by, Receipt::default(), reply);
            }
            Input::Fail(failure) => self.fail_with(failure),
        }
    }

    fn receive(
        &mut self,
        from: NodeId,
        parcel: Parcel<B::Tensor>,
        reply: oneshot::Sender<Receipt>,
    ) {
        // Whoever sends a parcel knows of the pass. It must still hear what was sent to it.
        if !self.sent.contains_key(&from) {
            self.untold.remove(&from);
        }
        let sends = parcel.sends.unwrap_or_default().into_iter();
        let receipt = Receipt {
            unknown: sends
                .filter(|&number| !self.known.contains(&(from, number)))
                .collect(),
            failure: None,
        };
        if self.failure.is_none() {
            let gradients = parcel.gradients.into_iter();
            self.queue
                .extend(gradients.map(|(number, gradients)| (Root::Send(number), gradients)));
        }
        self.engage(from, receipt, reply);
    }

    /// The first that draws this worker in hears when it is at rest, every other at once (EN-3).
    fn engage(&mut self, by: NodeId, receipt: Receipt, reply: oneshot::Sender<Receipt>) {
        self.step();
        if let Some(failure) = &self.failure {
            drop(reply.send(Receipt::failed(failure.clone())));
        } else if self.engaged.is_none() {
            self.engaged = Some(Engaged::By(by, receipt, reply));
            self.reported = Instant::now();
        } else {
            drop(reply.send(receipt));
        }
    }

    fn finished(&mut self, job: Result<Job<B>, JoinError>) {
        self.step();
        match job {
            Ok(Job::Computed(graph, outcome)) => {
                self.graph = Some(graph);
                match outcome {
                    Ok(complete) => self.computed(complete),
                    Err(cause) => self.fail(cause),
                }
            }
            Ok(Job::Acknowledged(by, receipt)) => self.acknowledged(by, receipt),
            Err(error) if error.is_panic() => {
                let panic = error.into_panic();
                let message = panic
                    .downcast_ref::<&str>()
                    .map(|text| (*text).to_owned())
                    .or_else(|| panic.downcast_ref::<String>().cloned())
                    .unwrap_or_default();
                self.fail(Cause::Compute(format!("it panicked: {message}")));
            }
            Err(_) => self.fail(Cause::Cancelled),
        }
    }

    fn computed(&mut self, complete: Vec<Complete<B>>) {
        for ((from, number), gradients) in complete {
            if from == self.me {
                self.queue.push((Root::Send(number), gradients));
            } else {
                let parcel = self.outbox.entry(from).or_default();
                parcel.push((number, gradients));
            }
        }
    }

    fn acknowledged(&mut self, by: NodeId, receipt: farref::Result<Receipt>) {
        if let Some(open) = self.unacknowledged.get_mut(&by) {
            *open -= 1;
            if *open == 0 {
                self.unacknowledged.remove(&by);
            }
        }
        match receipt {
            Ok(Receipt {
                failure: Some(failure),
                ..
            }) => self.fail_with(failure),
            Ok(Receipt { unknown, .. }) => {
                for number in unknown {
                    self.queue.push((Root::Send(number), Vec::new()));
                }
            }
            Err(error) => {
                let worker = self.name_of(by);
                let cause = match error {
                    farref::Error::PeerLost { .. } | farref::Error::ContextLost { .. } => {
                        Cause::WorkerLost
                    }
                    farref::Error::ContextReleased => Cause::Released,
                    other => Cause::Delivery(other.to_string()),
                };
                self.fail_with(PassFailure { worker, cause });
            }
        }
    }

    /// Does what can be done now.
    fn go_on(&mut self) {
        if self.failure.is_none() && self.engaged.is_some() {
            self.compute();
            // Parcels wait for a run that is under way, to go out together.
            if self.graph.is_some() && self.begun {
                self.send();
            }
        }
        if self.jobs.is_empty() && (self.queue.is_empty() || self.failure.is_some()) {
            if self.close_open_ends() {
                return self.go_on();
            }
            self.disengage();
        }
    }

    /// On a wire where nobody says *none*: when the pass that began here is at rest, or one of elsewhere is
    /// over, nothing more comes for what has got no gradients. Says whether there was any such.
    fn close_open_ends(&mut self) -> bool {
        let is_root = matches!(self.engaged, Some(Engaged::Root(_)));
        let over = self.closing || self.carrier.is_some() && is_root;
        if !over || self.failure.is_some() {
            return false;
        }
        let unfed = self
            .graph
            .as_ref()
            .map_or_else(Vec::new, |graph| graph.unfed());
        self.queue
            .extend(unfed.into_iter().map(|root| (root, Vec::new())));
        !self.queue.is_empty()
    }

    fn compute(&mut self) {
        if self.begun && self.queue.is_empty() {
            return;
        }
        let Some(mut graph) = self.graph.take() else {
            return;
        };
        self.begun = true;
        let feeds = std::mem::take(&mut self.queue);
        self.jobs.spawn_blocking(move || {
            let outcome = B::with_room(|| graph.advance(feeds));
            Job::Computed(graph, outcome)
        });
    }

    fn send(&mut self) {
        let mut parcels = std::mem::take(&mut self.outbox);
        for &peer in &self.untold {
            parcels.entry(peer).or_default();
        }
        for (to, gradients) in parcels {
            let first = self.untold.remove(&to);
            let parcel = Parcel {
                pass: self.id,
                retain_graph: self.retain_graph,
                ended_below: self.place.ended_below(self.id.origin),
                patience: self.patience,
                sends: first.then(|| self.sent.get(&to).cloned().unwrap_or_default()),
                gradients,
            };
            let scope = &self.place.scope;
            let peer = scope.worker().peer_of(to);
            *self.unacknowledged.entry(to).or_default() += 1;
            if let Some(carrier) = &self.carrier {
                let delivery = carrier.deliver(scope, &peer, parcel);
                self.jobs
                    .spawn(async move { Job::Acknowledged(to, delivery.await) });
                continue;
            }
            let call = scope.enter(|| {
                // How long a pass takes is for its patience to say.
                B::deliver(&peer, parcel).timeout(None).start()
            });
            self.jobs
                .spawn(async move { Job::Acknowledged(to, call.await) });
        }
    }

    /// At rest: says so to whom it is owed.
    fn disengage(&mut self) {
        match self.engaged.take() {
            Some(Engaged::Root(done)) => {
                self.place.ended(self.id);
                drop(done.send(self.failure.clone().map_or(Ok(()), Err)));
            }
            Some(Engaged::By(_, mut receipt, reply)) => {
                receipt.failure = self.failure.clone();
                drop(reply.send(receipt));
            }
            None => {}
        }
    }

    fn fail(&mut self, cause: Cause) {
        self.fail_with(self.place.failure(cause));
    }

    /// The first failure counts. Nothing more is computed or sent; what is under way is let go.
    fn fail_with(&mut self, failure: PassFailure) {
        if self.failure.is_some() {
            return;
        }
        tracing::debug!(pass = ?self.id, %failure, "a backward pass failed");
        self.failure = Some(failure);
        self.jobs.abort_all();
        self.jobs.detach_all();
        self.unacknowledged.clear();
        B::let_go((self.graph.take(), std::mem::take(&mut self.queue)));
        self.outbox.clear();
    }

    fn step(&mut self) {
        self.stepped = Instant::now();
        self.to_report = true;
    }

    /// When to look whether the pass gets on, or to say that it does. Not at all if it may take for ever.
    fn next_tick(&self) -> Option<Instant> {
        let patience = self.patience?;
        match self.engaged.as_ref()? {
            // Reports come four times in that time, so that some may be late.
            Engaged::By(..) => self.reported.checked_add((patience / 4).max(REPORT)),
            Engaged::Root(_) => self.stepped.checked_add(patience),
        }
    }

    fn tick(&mut self) {
        match (&self.engaged, self.patience) {
            (Some(Engaged::By(..)), _) if !self.to_report => self.reported = Instant::now(),
            (Some(Engaged::By(parent, ..)), _) => {
                let peer = self.place.scope.worker().peer_of(*parent);
                let id = self.id;
                if self.carrier.is_none() {
                    let report = self.place.scope.enter(|| B::progressed(&peer, id).start());
                    tokio::spawn(report);
                }
                self.to_report = false;
                self.reported = Instant::now();
            }
            (Some(Engaged::Root(_)), Some(patience)) if self.stepped.elapsed() >= patience => {
                let mut waiting_for: Vec<_> = self
                    .unacknowledged
                    .keys()
                    .map(|&node| self.name_of(node))
                    .collect();
                if waiting_for.is_empty() {
                    waiting_for.push(self.place.scope.worker().name().to_owned());
                }
                self.fail(Cause::NoProgress {
                    patience,
                    waiting_for,
                });
            }
            _ => {}
        }
    }

    fn name_of(&self, node: NodeId) -> String {
        self.place.scope.worker().peer_of(node).name().to_owned()
    }
}

impl<B: Backend> Participation<B> {
    /// Begins to take part in a pass.
    pub(super) fn spawn(
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

/// Done at that time; never, if there is none.
async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}

/// Done when the program no longer waits for the pass.
async fn given_up(engaged: Option<&mut Engaged>) {
    match engaged {
        Some(Engaged::Root(done)) => done.closed().await,
        _ => std::future::pending().await,
    }
}
