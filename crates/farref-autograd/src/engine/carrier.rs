//! What the engine needs of a wire that has messages of its own for gradients.

use std::pin::Pin;

use farref::Peer;
use farref::context::ContextScope;

use super::backend::Backend;
use super::parcel::{Parcel, Receipt};

/// A delivery under way.
pub type Delivery = Pin<Box<dyn Future<Output = farref::Result<Receipt>> + Send>>;

/// Brings parcels to workers whose engines are not this one.
pub trait Carrier<B: Backend>: Send + Sync + 'static {
    /// Brings a parcel to a worker. The receipt comes when the worker, and all that it draws in, is done
    /// with it.
    fn deliver(&self, scope: &ContextScope, to: &Peer, parcel: Parcel<B::Tensor>) -> Delivery;
}
