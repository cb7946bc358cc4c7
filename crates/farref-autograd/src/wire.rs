//! The functions by which the engines of two workers talk. They are called inside of the context, which
//! therefore lives until they are done (A3).

use crate::engine::{self, Parcel, PassId, Receipt};
use crate::tensor::{Candle, Tensor};

/// Takes gradients in.
#[farref::remote(name = "farref_autograd::deliver")]
pub(crate) async fn deliver(parcel: Parcel<Tensor>) -> Receipt {
    engine::receive::<Candle>(parcel).await
}

/// A worker that was drawn into a pass from here is getting on.
#[farref::remote(name = "farref_autograd::progressed")]
pub(crate) async fn progressed(pass: PassId) {
    engine::progressed::<Candle>(pass);
}
