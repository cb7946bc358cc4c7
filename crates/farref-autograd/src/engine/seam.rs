//! What a tensor library calls: when its tensors are written and read, when its functions are called by
//! other workers, when the program asks for a pass or for gradients.

use std::sync::Arc;
use std::time::Duration;

use farref::Worker;
use farref::context::{ContextScope, Message, Record, incoming, outgoing};

use super::backend::{Backend, Observer};
use super::contexts::{Engine, Participation};
use super::parcel::{Parcel, PassId, Receipt};
use crate::failure::{Cause, PassFailure};

/// Which tensor of which message it is, on the wire.
pub type Link = (u64, u32);

fn here<B: Backend>(scope: &ContextScope) -> Option<Arc<Participation<B>>> {
    Engine::<B>::of(&scope.worker()).enter(scope)
}

/// The tensors that need gradients of a message that is being written.
struct Sending<B: Backend>(Vec<B::Tensor>);

impl<B: Backend> Default for Sending<B> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<B: Backend> Record for Sending<B> {
    fn made(self: Box<Self>, message: &Message) {
        if let Some(place) = here::<B>(&message.scope) {
            place.records(|records| records.send(message.number, message.peer, self.0));
        }
    }
}

/// To be called when a tensor that needs gradients is serialized. The link must be written beside the data: in
/// the context in which the message is made, if there is one, the tensor is recorded under it.
pub fn record_send<B: Backend>(tensor: &B::Tensor) -> Option<Link> {
    outgoing(|sending: &mut Sending<B>| {
        sending.0.push(tensor.clone());
        sending.0.len() as u32 - 1
    })
}

/// To be called when such a tensor has been deserialized, as a leaf. `false`: it did not come in a context, or that
/// is over, so that no gradient finds its way back. An error is the sender's fault.
pub fn record_recv<B: Backend>(link: Link, leaf: B::Leaf) -> Result<bool, &'static str> {
    let Some(message) = incoming() else {
        return Ok(false);
    };
    let Some(place) = here::<B>(&message.scope) else {
        return Ok(false);
    };
    let (number, index) = link;
    let from = (message.peer, number);
    if !place.records(|records| records.receive(from, index, leaf)) {
        return Err("the tensors of a message are out of order");
    }
    Ok(true)
}

/// Inside of a context: from now on the leaf belongs to an observer.
pub fn observe<B: Backend>(leaf: B::Leaf, observer: Arc<dyn Observer<B::Tensor>>) {
    if let Some(scope) = ContextScope::current()
        && let Some(place) = here::<B>(&scope)
    {
        place.records(|records| records.observe(leaf, observer));
    }
}

/// The gradient that passes have left for an observer, or for leaves that have none: the first that
/// has a gradient.
pub fn gradient<B: Backend>(
    scope: &ContextScope,
    observer: Option<u64>,
    leaves: &[B::Leaf],
) -> Option<B::Tensor> {
    let place = here::<B>(scope)?;
    place.records(|records| {
        let observed = observer.and_then(|observer| records.gradient_of(observer));
        observed.or_else(|| leaves.iter().find_map(|&leaf| records.gradient(leaf)))
    })
}

/// Runs a context backward from roots on this worker, each with its gradient.
pub async fn backward<B: Backend>(
    scope: &ContextScope,
    roots: Vec<(B::Tensor, B::Tensor)>,
    retain_graph: bool,
    patience: Option<Duration>,
) -> crate::Result<()> {
    scope.check()?;
    let place = here::<B>(scope).ok_or(farref::Error::ContextReleased)?;
    let _turn = place.turn().await;
    scope.check()?;
    let (driver, outcome) = place.start(roots, retain_graph, patience)?;
    match driver.drive(outcome).await {
        Some(outcome) => Ok(outcome?),
        // The pass went with its context.
        None => Err(farref::Error::ContextReleased.into()),
    }
}

/// What the function behind [`Backend::deliver`] does.
pub async fn receive<B: Backend>(parcel: Parcel<B::Tensor>) -> Receipt {
    let scope = ContextScope::current();
    let place = scope.and_then(|scope| here::<B>(&scope));
    match place.zip(Worker::caller_node()) {
        Some((place, from)) => place.receive(from, parcel).await,
        None => Receipt::failed(PassFailure {
            worker: Worker::current().map_or_else(String::new, |me| me.name().to_owned()),
            cause: Cause::Released,
        }),
    }
}

/// What the function behind [`Backend::progressed`] does.
pub fn progressed<B: Backend>(pass: PassId) {
    if let Some(scope) = ContextScope::current()
        && let Some(place) = here::<B>(&scope)
    {
        place.progressed(pass);
    }
}
