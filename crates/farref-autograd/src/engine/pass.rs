//! One backward pass on one worker: takes parcels in, has the graph run, sends parcels out.
//!
//! An actor: everything that happens to the pass here comes through its inbox. It is at rest when it waits neither for
//! the graph nor for acknowledgements, and nothing is queued (EN-3). Who makes it get on is in `driver`.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use farref::context::NodeId;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinHandle};

use super::backend::Backend;
use super::carrier::Carrier;
use super::contexts::{Engine, Participation};
use super::graph::{Feed, Graph};
use super::leaves::Complete;
use super::parcel::{ForSend, Messages, Parcel, PassId, Receipt};
use super::passes::{ELSEWHERE, Input, Outcome, Resting};
use super::records::{RecvId, Snapshot};
use super::task::Root;
use crate::failure::{Cause, PassFailure};

/// How often a worker that was drawn in reports, at most.
const REPORT: Duration = Duration::from_millis(10);

/// The graph, fed and run as far as that goes.
type Advanced<B> = (Box<Graph<B>>, Result<Vec<Complete<B>>, Cause>);

/// A parcel that was sent and not acknowledged.
type Unacknowledged = (
    NodeId,
    Pin<Box<dyn Future<Output = farref::Result<Receipt>> + Send>>,
);

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
    inbox: mpsc::UnboundedReceiver<Input<B>>,
    /// The context is over.
    over: bool,
    /// The graph that a thread is at.
    computing: Option<JoinHandle<Advanced<B>>>,
    unacknowledged: Vec<Unacknowledged>,
    /// Not there while a thread is at it, nor after a failure.
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
        inbox: mpsc::UnboundedReceiver<Input<B>>,
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
            inbox,
            over: false,
            computing: None,
            unacknowledged: Vec::new(),
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
            engaged: None,
            failure: None,
            closing: false,
            stepped: Instant::now(),
            reported: Instant::now(),
            to_report: false,
        }
    }

    /// Waits for the next that happens, and does what can be done then. `false`: the context is over. Nothing is lost if
    /// this is dropped while it waits.
    pub(super) async fn next(&mut self) -> bool {
        let tick = self.next_tick().map(|tick| {
            let runtime = self.place.scope.worker().runtime().clone();
            let _inside = runtime.enter();
            tokio::time::sleep_until(tick.into())
        });
        tokio::select! {
            biased;
            advanced = computed(self.computing.as_mut()) => self.finished(advanced),
            (by, receipt) = acknowledged(&mut self.unacknowledged) => self.acknowledged(by, receipt),
            input = self.inbox.recv() => match input {
                Some(input) => self.take(input),
                None => {
                    self.over = true;
                    return false;
                }
            },
            () = until(tick) => self.tick(),
        }
        self.go_on();
        true
    }

    pub(super) fn place(&self) -> &Arc<Participation<B>> {
        &self.place
    }

    pub(super) fn id(&self) -> PassId {
        self.id
    }

    /// Whether there is nothing to do before something comes.
    pub(super) fn is_at_rest(&self) -> bool {
        self.engaged.is_none() && !self.waits() && self.inbox.is_empty()
    }

    /// Whether nothing can come any more.
    pub(super) fn is_over(&self) -> bool {
        self.over || self.inbox.is_closed()
    }

    /// The program no longer waits for the pass, if it did.
    pub(super) fn given_up(&mut self) {
        if matches!(self.engaged, Some(Engaged::Root(_))) {
            self.fail(Cause::Cancelled);
            self.go_on();
        }
    }

    /// Whether it waits for the graph or for acknowledgements.
    fn waits(&self) -> bool {
        self.computing.is_some() || !self.unacknowledged.is_empty()
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
        let told = parcel.messages.is_some();
        let Messages { sent, received } = parcel.messages.unwrap_or_default();
        let sent = sent.into_iter();
        let receipt = Receipt {
            unknown: sent
                .filter(|&number| !self.known.contains(&(from, number)))
                .collect(),
            failure: None,
        };
        // Whoever sends a parcel knows of the pass. It must still hear what was sent to it, unless it has said what
        // it received.
        if told || !self.sent.contains_key(&from) {
            self.untold.remove(&from);
        }
        if self.failure.is_none() {
            if told {
                let received: HashSet<u64> = received.into_iter().collect();
                let sent = self.sent.get(&from).into_iter().flatten();
                let lost = sent.filter(|number| !received.contains(number));
                self.queue
                    .extend(lost.map(|&number| (Root::Send(number), Vec::new())));
            }
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

    fn finished(&mut self, advanced: Result<Advanced<B>, JoinError>) {
        self.computing = None;
        self.step();
        match advanced {
            Ok(advanced) => self.advanced(advanced),
            Err(error) if error.is_panic() => self.panicked(&*error.into_panic()),
            Err(_) => self.fail(Cause::Cancelled),
        }
    }

    fn advanced(&mut self, (graph, outcome): Advanced<B>) {
        self.graph = Some(graph);
        match outcome {
            Ok(complete) => self.computed(complete),
            Err(cause) => self.fail(cause),
        }
    }

    fn panicked(&mut self, panic: &(dyn Any + Send)) {
        let message = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or_default();
        self.fail(Cause::Compute(format!("it panicked: {message}")));
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
        self.step();
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
        loop {
            if self.failure.is_none() && self.engaged.is_some() {
                self.compute();
                // Parcels wait for a run that is under way, to go out together.
                if self.graph.is_some() && self.begun {
                    self.send();
                }
            }
            if self.waits() || !self.queue.is_empty() && self.failure.is_none() {
                return;
            }
            if !self.close_open_ends() {
                return self.disengage();
            }
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

    /// Runs the graph as far as that is worth it: here, if that takes no longer than a task may, else on a thread.
    fn compute(&mut self) {
        while self.failure.is_none() && !(self.begun && self.queue.is_empty()) {
            let Some(mut graph) = self.graph.take() else {
                return;
            };
            self.begun = true;
            graph.queue(std::mem::take(&mut self.queue));
            let here = catch_unwind(AssertUnwindSafe(|| {
                let outcome = B::with_room(|| graph.advance_quickly());
                (graph, outcome)
            }));
            match here {
                Ok((graph, Some(outcome))) => self.advanced((graph, outcome)),
                Ok((mut graph, None)) => {
                    let runtime = self.place.scope.worker().runtime().clone();
                    self.computing = Some(runtime.spawn_blocking(move || {
                        let outcome = B::with_room(|| graph.advance());
                        (graph, outcome)
                    }));
                    return;
                }
                Err(panic) => self.panicked(&*panic),
            }
        }
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
                messages: first.then(|| self.messages_with(to)),
                gradients,
            };
            let scope = &self.place.scope;
            let peer = scope.worker().peer_of(to);
            let delivery: Pin<Box<_>> = match &self.carrier {
                Some(carrier) => carrier.deliver(scope, &peer, parcel),
                None => Box::pin(scope.enter(|| {
                    // How long a pass takes is for its patience to say.
                    B::deliver(&peer, parcel).timeout(None).start()
                })),
            };
            self.unacknowledged.push((to, delivery));
        }
    }

    /// What went between this worker and another, in the snapshot.
    fn messages_with(&self, peer: NodeId) -> Messages {
        let received = self.known.iter().filter(|(from, _)| *from == peer);
        let mut received: Vec<u64> = received.map(|(_, number)| *number).collect();
        received.sort_unstable();
        Messages {
            sent: self.sent.get(&peer).cloned().unwrap_or_default(),
            received,
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
        if let Some(computing) = self.computing.take() {
            computing.abort();
        }
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
                    self.place.scope.worker().runtime().spawn(report);
                }
                self.to_report = false;
                self.reported = Instant::now();
            }
            (Some(Engaged::Root(_)), Some(patience)) if self.stepped.elapsed() >= patience => {
                let nodes = self.unacknowledged.iter().map(|(node, _)| *node);
                let nodes: BTreeSet<_> = nodes.collect();
                let mut waiting_for: Vec<_> =
                    nodes.into_iter().map(|node| self.name_of(node)).collect();
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

impl<B: Backend> Resting for Actor<B> {
    fn has_graph(&self) -> bool {
        self.graph.as_ref().is_some_and(|graph| !graph.is_done())
    }
}

/// Done when the thread is, if there is one.
async fn computed<B: Backend>(
    computing: Option<&mut JoinHandle<Advanced<B>>>,
) -> Result<Advanced<B>, JoinError> {
    match computing {
        Some(computing) => computing.await,
        None => std::future::pending().await,
    }
}

/// The next parcel that is acknowledged.
async fn acknowledged(
    unacknowledged: &mut Vec<Unacknowledged>,
) -> (NodeId, farref::Result<Receipt>) {
    std::future::poll_fn(|context| {
        // They are few: those to one peer mostly travel together.
        let done = unacknowledged.iter_mut().enumerate();
        let mut done =
            done.filter_map(
                |(index, (by, parcel))| match parcel.as_mut().poll(context) {
                    Poll::Ready(receipt) => Some((index, *by, receipt)),
                    Poll::Pending => None,
                },
            );
        match done.next() {
            Some((index, by, receipt)) => {
                drop(unacknowledged.swap_remove(index));
                Poll::Ready((by, receipt))
            }
            None => Poll::Pending,
        }
    })
    .await
}

/// Done at that time; never, if there is none.
async fn until(time: Option<tokio::time::Sleep>) {
    match time {
        Some(time) => time.await,
        None => std::future::pending().await,
    }
}
