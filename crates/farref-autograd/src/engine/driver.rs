//! Who makes a pass get on: whoever waits for it. That is the program that called `backward` on the worker where the pass
//! began, elsewhere the call that brought the parcel which drew the worker in. A pass that does not have to wait for
//! anything is made without a task of its own.
//!
//! - **DR-1** A pass that somebody was promised an answer by is driven by somebody. Whoever stops driving it before it is
//!   at rest, because it was cancelled, hands it over to a task; if it was the program, the pass has failed.
//! - **DR-2** A pass that is at rest is kept until the context is over: a late parcel must find somebody who knows what
//!   was. One that began here is over when it is at rest.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use farref::context::NodeId;
use tokio::sync::{mpsc, oneshot};

use super::backend::Backend;
use super::contexts::{Participation, lock};
use super::parcel::{Parcel, PassId, Receipt};
use super::pass::Actor;
use super::passes::{ELSEWHERE, Input, MAX_PASSES, Outcome, Passes, Resting, Running};
use crate::failure::{Cause, PassFailure};

/// An acknowledgement that is owed.
pub(super) struct Awaited<B: Backend> {
    receipt: oneshot::Receiver<Receipt>,
    /// The pass that owes it, if nobody else drives that.
    driver: Option<Driver<B>>,
}

/// A pass on its way.
pub(crate) struct Driver<B: Backend> {
    /// There until it is dropped.
    actor: Option<Box<Actor<B>>>,
}

impl<B: Backend> Driver<B> {
    /// A pass that was at rest.
    fn of(resting: Box<dyn Resting>) -> Option<Self> {
        let actor: Box<dyn Any> = resting;
        let actor = Some(actor.downcast().ok()?);
        Some(Self { actor })
    }

    /// Makes the pass get on until it answers. None: it is gone, with its context.
    pub(crate) async fn drive<T>(mut self, mut answer: oneshot::Receiver<T>) -> Option<T> {
        while let Some(actor) = &mut self.actor {
            tokio::select! {
                biased;
                answer = &mut answer => return answer.ok(),
                goes_on = actor.next() => if !goes_on {
                    B::let_go(self.actor.take());
                },
            }
        }
        answer.await.ok()
    }
}

impl<B: Backend> Drop for Driver<B> {
    fn drop(&mut self) {
        let Some(mut actor) = self.actor.take() else {
            return;
        };
        actor.given_up();
        let (place, id) = (Arc::clone(actor.place()), actor.id());
        let at_rest = {
            let mut passes = lock(&place.passes);
            // With the lock: whoever brings something finds it here, or has brought it already.
            match passes.running.get_mut(&id) {
                Some(running) if actor.is_at_rest() => {
                    running.resting = Some(actor);
                    return;
                }
                _ => actor.is_at_rest(),
            }
        };
        if at_rest && actor.is_over() {
            return B::let_go(actor);
        }
        let worker = place.scope.worker();
        worker.runtime().spawn(async move {
            while actor.next().await {}
            B::let_go(actor);
        });
    }
}

impl<B: Backend> Participation<B> {
    /// Runs a pass from `roots`, each with the gradient of the loss with respect to it. It is made by whoever waits for
    /// its outcome.
    pub(crate) fn start(
        self: &Arc<Self>,
        roots: Vec<(B::Tensor, B::Tensor)>,
        retain_graph: bool,
        patience: Option<Duration>,
    ) -> Result<(Driver<B>, oneshot::Receiver<Outcome>), PassFailure> {
        let (done, outcome) = oneshot::channel();
        let mut passes = lock(&self.passes);
        if let Some(lost) = &passes.lost {
            return Err(lost.clone());
        }
        let me = self.scope.worker().node();
        let counter = passes.next;
        passes.next += 1;
        passes.own.insert(counter);
        let id = PassId {
            origin: me,
            counter,
        };
        let (inbox, driver) = self.begin(&mut passes, id, retain_graph, patience);
        drop(inbox.send(Input::Begin { roots, done }));
        Ok((driver, outcome))
    }

    /// Begins to take part in a pass.
    fn begin(
        self: &Arc<Self>,
        passes: &mut Passes<B>,
        id: PassId,
        retain_graph: bool,
        patience: Option<Duration>,
    ) -> (mpsc::UnboundedSender<Input<B>>, Driver<B>) {
        let (inbox, inputs) = mpsc::unbounded_channel();
        let running = Running {
            inbox: inbox.clone(),
            resting: None,
        };
        passes.running.insert(id, running);
        // The snapshot is taken here, before anything of this pass can be answered.
        let snapshot = self.records(|records| records.snapshot());
        let place = Arc::clone(self);
        let actor = Actor::new(place, id, retain_graph, patience, snapshot, inputs);
        let driver = Driver {
            actor: Some(Box::new(actor)),
        };
        (inbox, driver)
    }

    /// A parcel of a pass arrived.
    pub(crate) async fn receive(
        self: &Arc<Self>,
        from: NodeId,
        parcel: Parcel<B::Tensor>,
    ) -> Receipt {
        let accepted = self.accept(&mut lock(&self.passes), from, parcel);
        match accepted {
            Ok(awaited) => self.receipt(awaited).await,
            Err(failure) => Receipt::failed(failure),
        }
    }

    /// Hands a parcel to its pass, which acknowledges it when it is [driven](Self::receipt).
    pub(super) fn accept(
        self: &Arc<Self>,
        passes: &mut Passes<B>,
        from: NodeId,
        parcel: Parcel<B::Tensor>,
    ) -> Result<Awaited<B>, PassFailure> {
        if let Some(lost) = &passes.lost {
            return Err(lost.clone());
        }
        let id = parcel.pass;
        if passes.is_over(id, parcel.ended_below, self.scope.worker().node()) {
            return Err(self.failure(Cause::Cancelled));
        }
        let count = passes.running.len();
        let (inbox, driver) = match passes.running.get_mut(&id) {
            Some(running) => (
                running.inbox.clone(),
                running.resting.take().and_then(Driver::of),
            ),
            None if count >= MAX_PASSES => {
                return Err(self.failure(Cause::TooManyPasses));
            }
            None => {
                let begun = self.begin(passes, id, parcel.retain_graph, parcel.patience);
                (begun.0, Some(begun.1))
            }
        };
        let (reply, receipt) = oneshot::channel();
        drop(inbox.send(Input::Parcel {
            from,
            parcel,
            reply,
        }));
        Ok(Awaited { receipt, driver })
    }

    /// Waits for an acknowledgement, and drives the pass that owes it if nobody else does.
    pub(super) async fn receipt(&self, Awaited { receipt, driver }: Awaited<B>) -> Receipt {
        let receipt = match driver {
            Some(driver) => driver.drive(receipt).await,
            None => receipt.await.ok(),
        };
        receipt.unwrap_or_else(|| Receipt::failed(self.failure(Cause::Released)))
    }
}

impl<B: Backend> Passes<B> {
    /// Nothing more comes for a pass of elsewhere. The pass ends with its inbox.
    pub(super) fn close_elsewhere(
        &mut self,
        counter: u64,
        by: NodeId,
    ) -> Option<(mpsc::UnboundedSender<Input<B>>, Awaited<B>)> {
        let pass = PassId {
            origin: ELSEWHERE,
            counter,
        };
        let Running { inbox, resting } = self.running.remove(&pass)?;
        let (reply, receipt) = oneshot::channel();
        drop(inbox.send(Input::Close { by, reply }));
        let driver = resting.and_then(Driver::of);
        Some((inbox, Awaited { receipt, driver }))
    }
}
