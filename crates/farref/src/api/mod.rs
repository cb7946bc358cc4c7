//! What programs hold in their hands: calls, references, peers.

pub(crate) mod call;
pub mod functions;
pub(crate) mod generated;
pub(crate) mod peer;
pub(crate) mod pending;
pub(crate) mod rref;
