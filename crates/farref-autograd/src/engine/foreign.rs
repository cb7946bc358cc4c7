//! Passes together with workers whose engines are not this one, over a wire that has messages of its own for
//! gradients.
//!
//! Such a wire names no passes, and nobody on it says *none*: a message that brought tensors gets its
//! gradients, or nothing at all. So here
//!
//! - gradients that come from outside belong to the pass that this worker began, if there is one, else to
//!   one that counts as the other side's, which is over when gradients come for a message that had its
//!   own, or that the pass does not know;
//! - in a pass of the other side nobody knows for which messages gradients will come, so a leaf is final when
//!   they have come for those that it went into;
//! - when the pass that this worker began is at rest, whatever has got no gradients gets none (EN-1).

use std::collections::HashSet;
use std::pin::Pin;
use std::sync::Arc;

use farref::Peer;
use farref::context::{ContextScope, NodeId};

use super::backend::Backend;
use super::parcel::{Cause, ForSend, Parcel, PassFailure, PassId, Receipt};
use super::{Engine, InContext, lock};

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

impl<B: Backend> InContext<B> {
    /// Which pass gradients from outside belong to, for tensors that went out in that message.
    fn pass_of(&self, message: u64) -> Option<(PassId, u64)> {
        let sends = self.records(|records| records.sends());
        if !sends.contains(&message) {
            return None;
        }
        let mut passes = lock(&self.passes);
        if let Some(&counter) = passes.own.last() {
            let origin = self.scope.worker().node();
            return Some((PassId { origin, counter }, 0));
        }
        let place = &mut passes.elsewhere;
        if place.fed.contains(&message) || !place.known.contains(&message) {
            place.counter += 1;
            place.known = sends;
            place.fed.clear();
        }
        place.fed.insert(message);
        let (origin, counter) = (ELSEWHERE, place.counter);
        Some((PassId { origin, counter }, counter))
    }
}

/// Takes in the gradients of the tensors that this worker sent in one message of a context.
pub async fn receive_gradients<B: Backend>(
    scope: &ContextScope,
    from: NodeId,
    gradients: ForSend<B::Tensor>,
    retain_graph: bool,
) -> Result<(), PassFailure> {
    let failure = |cause| PassFailure {
        worker: scope.worker().name().to_owned(),
        cause,
    };
    let engine = Engine::<B>::of(&scope.worker());
    let Some(place) = engine.enter(scope) else {
        return Err(failure(Cause::Released));
    };
    let Some((pass, ended_below)) = place.pass_of(gradients.0) else {
        return Err(failure(Cause::GraphFreed));
    };
    let parcel = Parcel {
        pass,
        retain_graph,
        ended_below,
        patience: None,
        sends: None,
        gradients: vec![gradients],
    };
    match place.receive(from, parcel).await.failure {
        None => Ok(()),
        Some(failure) => Err(failure),
    }
}
