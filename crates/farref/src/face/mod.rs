//! What programs hold in their hands: calls, references, peers.

pub(crate) mod call;
pub(crate) mod peer;
pub(crate) mod rref;
