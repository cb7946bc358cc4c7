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

use std::sync::Arc;

use farref::context::{ContextScope, NodeId};
use tokio::sync::mpsc;

use super::backend::Backend;
use super::carrier::Carrier;
use super::contexts::{Engine, Participation, lock};
use super::driver::Awaited;
use super::parcel::{ForSend, Parcel, PassId};
use super::passes::Input;
use crate::failure::{Cause, PassFailure};

impl<B: Backend> Engine<B> {
    /// From now on parcels of this worker go by this carrier.
    pub fn carry_by(&self, carrier: Arc<dyn Carrier<B>>) {
        // The first one stays: there is one wire.
        drop(self.carrier.set(carrier));
    }
}

/// Gradients that a pass has taken.
struct Taken<B: Backend> {
    receipt: Awaited<B>,
    /// The pass of elsewhere that is over because of them, and its last word.
    before: Option<(mpsc::UnboundedSender<Input<B>>, Awaited<B>)>,
}

impl<B: Backend> Participation<B> {
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
        let mut before = None;
        let mut passes = lock(&self.passes);
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
            messages: None,
            gradients: vec![gradients],
        };
        let accepted = self.accept(&mut passes, from, parcel);
        // Before a pass is let go of, which needs the lock.
        drop(passes);
        let receipt = accepted?;
        Ok(Taken { receipt, before })
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
    let before = async {
        let (inbox, closed) = taken.before?;
        let failure = place.receipt(closed).await.failure;
        // The pass ends with its inbox.
        drop(inbox);
        failure
    };
    let (before, receipt) = tokio::join!(before, place.receipt(taken.receipt));
    before.or(receipt.failure).map_or(Ok(()), Err)
}
