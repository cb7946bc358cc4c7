//! Passes together with workers whose engines are not this one, over a wire that has messages of its own for
//! gradients.
//!
//! Such a wire names no passes, and nobody on it says *none*: a message that brought tensors gets its
//! gradients, or nothing at all. So here
//!
//! - passes that this worker begins in one context take turns;
//! - gradients that come from outside belong to the pass that this worker began, if there is one, else to
//!   one that counts as the other side's, which is over when gradients come for a message that had its
//!   own, or that the pass does not know: then what it has got is run without the rest (EN-6);
//! - in a pass of the other side nobody knows for which messages gradients will come, so a leaf is final when
//!   they have come for those that it went into;
//! - when the pass that this worker began is at rest, whatever has got no gradients gets none (EN-1).

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;

use farref::Peer;
use farref::context::{ContextScope, NodeId};
use tokio::sync::{mpsc, oneshot};

use super::backend::Backend;
use super::parcel::{Cause, ForSend, Parcel, PassFailure, PassId, Receipt};
use super::pass::Input;
use super::{Engine, InContext, Passes, lock};

/// Stands for the origin of passes that began elsewhere. No worker has this number.
pub(super) const ELSEWHERE: NodeId = NodeId::new(u32::MAX, u32::MAX);

/// A delivery under way.
pub type Delivery = Pin<Box<dyn Future<Output = farref::Result<Receipt>> + Send>>;

/// Brings parcels to workers whose engines are not this one.
pub trait Carrier<B: Backend>: Send + Sync + 'static {
    /// Brings a parcel to a worker. The receipt comes when the worker, and all that it draws in, is done
    /// with it.
    fn deliver(&self, scope: &ContextScope, to: &Peer, parcel: Parcel<B::Tensor>) -> Delivery;
}

/// The pass of another system that this worker takes part in.
#[derive(Default)]
pub(crate) struct Elsewhere {
    counter: u64,
    /// The messages that it knows.
    known: HashSet<u64>,
    /// Those whose gradients have come.
    fed: HashSet<u64>,
}

impl<B: Backend> Engine<B> {
    /// From now on parcels of this worker go by this carrier.
    pub fn carry_by(&self, carrier: Arc<dyn Carrier<B>>) {
        // The first one stays: there is one wire.
        drop(self.carrier.set(carrier));
    }
}

/// Gradients that a pass has taken.
struct Taken<B: Backend> {
    receipt: oneshot::Receiver<Receipt>,
    /// The pass of elsewhere that is over because of them, and its last word.
    before: Option<(mpsc::UnboundedSender<Input<B>>, oneshot::Receiver<Receipt>)>,
}

impl<B: Backend> InContext<B> {
    /// Waits for the other passes that this worker began, on a wire that does not name them.
    pub(super) async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        let engine = Engine::<B>::of(&self.scope.worker());
        engine.carrier.get()?;
        Some(self.turn.lock().await)
    }

    /// Gives gradients from outside to the pass that they belong to.
    fn take(
        self: &Arc<Self>,
        from: NodeId,
        gradients: ForSend<B::Tensor>,
        retain_graph: bool,
    ) -> Result<Taken<B>, PassFailure> {
        let message = gradients.0;
        let sends = self.records(|records| records.sends());
        if !sends.contains(&message) {
            return Err(self.failure(Cause::GraphFreed));
        }
        let mut passes = lock(&self.passes);
        let mut before = None;
        let (pass, ended_below) = match passes.own.last() {
            Some(&counter) => {
                let origin = self.scope.worker().node();
                (PassId { origin, counter }, 0)
            }
            None => {
                let (pass, next) = passes.elsewhere.pass_of(message, sends);
                if next {
                    before = passes.close_elsewhere(pass.counter - 1, from);
                }
                (pass, pass.counter)
            }
        };
        let parcel = Parcel {
            pass,
            retain_graph,
            ended_below,
            patience: None,
            sends: None,
            gradients: vec![gradients],
        };
        let receipt = self.accept(&mut passes, from, parcel)?;
        Ok(Taken { receipt, before })
    }
}

impl Elsewhere {
    /// Which pass the gradients of a message belong to, of all that were sent, and whether it is a new one.
    fn pass_of(&mut self, message: u64, sends: HashSet<u64>) -> (PassId, bool) {
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

impl<B: Backend> Passes<B> {
    /// Nothing more comes for a pass of elsewhere.
    fn close_elsewhere(
        &mut self,
        counter: u64,
        by: NodeId,
    ) -> Option<(mpsc::UnboundedSender<Input<B>>, oneshot::Receiver<Receipt>)> {
        let pass = PassId {
            origin: ELSEWHERE,
            counter,
        };
        let inbox = self.running.remove(&pass)?;
        let (reply, closed) = oneshot::channel();
        drop(inbox.send(Input::Close { by, reply }));
        Some((inbox, closed))
    }
}

/// Takes in the gradients of the tensors that this worker sent in one message of a context.
pub async fn receive_gradients<B: Backend>(
    scope: &ContextScope,
    from: NodeId,
    gradients: ForSend<B::Tensor>,
    retain_graph: bool,
) -> Result<(), PassFailure> {
    let engine = Engine::<B>::of(&scope.worker());
    let Some(place) = engine.enter(scope) else {
        return Err(PassFailure {
            worker: scope.worker().name().to_owned(),
            cause: Cause::Released,
        });
    };
    let taken = place.take(from, gradients, retain_graph)?;
    let mut failures = Vec::new();
    if let Some((inbox, closed)) = taken.before {
        failures.push(place.receipt(closed).await.failure);
        // The pass ends with its inbox.
        drop(inbox);
    }
    failures.push(place.receipt(taken.receipt).await.failure);
    failures.into_iter().flatten().next().map_or(Ok(()), Err)
}
