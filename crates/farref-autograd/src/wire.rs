//! The functions by which the engines of two workers talk. They are called inside of the context, which
//! therefore lives until they are done (A3).

use farref::Worker;
use farref::context::ContextScope;

use crate::engine::{Cause, Engine, Parcel, PassFailure, PassId, Receipt};
use crate::tensor::Tensor;
use crate::vjp::Candle;

/// Takes gradients in.
#[farref::remote(name = "farref_autograd::deliver")]
pub(crate) async fn deliver(parcel: Parcel<Tensor>) -> Receipt {
    let scope = ContextScope::current();
    let place = scope.and_then(|scope| Engine::<Candle>::of(&scope.worker()).enter(&scope));
    let from = Worker::caller_node();
    match place.zip(from) {
        Some((place, from)) => place.receive(from, parcel).await,
        None => Receipt::failed(PassFailure {
            worker: Worker::current().map_or_else(String::new, |me| me.name().to_owned()),
            cause: Cause::Released,
        }),
    }
}

/// A worker that was drawn into a pass from here is getting on.
#[farref::remote(name = "farref_autograd::progressed")]
pub(crate) async fn progressed(pass: PassId) {
    if let Some(scope) = ContextScope::current()
        && let Some(place) = Engine::<Candle>::of(&scope.worker()).enter(&scope)
    {
        place.progressed(pass);
    }
}
