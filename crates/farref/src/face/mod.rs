//! What programs hold in their hands: calls, references, peers, contexts.

pub(crate) mod call;
pub mod context;
pub(crate) mod peer;
pub(crate) mod rref;
