//! The types that programs work with: calls, references, peers.

pub(crate) mod call;
mod foreign;
pub mod functions;
pub(crate) mod generated;
pub(crate) mod naming;
pub(crate) mod outcome;
pub(crate) mod peer;
pub(crate) mod pending;
pub(crate) mod rref;
mod sent_peer;
pub(crate) mod streaming;
pub(crate) mod watching;
