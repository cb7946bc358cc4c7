//! The driver of the protocol: one [`Node`], its lock, and what follows from its events.
//!
//! All rules are in `farref-proto`. This module brings inputs to the node one at a time and carries out
//! what comes of them. Nothing is done while the lock is held but to change tables and to queue
//! messages: user code runs, values are dropped, sockets are written and wakers are woken after it.
//!
//! # Invariants
//!
//! - **PR-1** Messages are queued with the agent while the lock is held, so that their order is the
//!   order of the inputs that caused them. What the protocol itself has to say follows when all inputs that were
//!   brought together are taken in.
//! - **PR-2** No handle, no value and no waker is dropped or woken while the lock is held ([`Work`]).
//! - **PR-3** Every request that arrives is answered exactly once, or its asker is gone.
//! - **PR-4** Calls that wait for a value take their tickets under the lock, in the order in which
//!   the protocol admits them.

mod authorization;
mod busy_streams;
pub(crate) mod callers;
pub(crate) mod context_scope;
mod core;
pub(crate) mod current;
pub(crate) mod failure;
pub(crate) mod function;
pub(crate) mod handle;
mod job;
mod protocol;
pub(crate) mod registry;
mod reply;
pub(crate) mod serve;
pub(crate) mod settings;
mod status;
pub(crate) mod stream;
pub(crate) mod trace;
mod unwelcome;
pub(crate) mod value_scope;

pub(crate) use self::authorization::Authorize;
pub use self::authorization::CallRequest;
pub(crate) use self::core::{Core, Reply, StartedCall, WorkerStage};
pub(crate) use protocol::{CallSpec, NotMade, OpenCall};
pub(crate) use status::{TakenCall, Traffic};

/// What looking at a value in place is called, in errors and snapshots.
pub(crate) const LOCAL: &str = "local";
/// What copying a value is called.
pub(crate) const FETCH: &str = "to_here";
/// The function that looks names up, and may wait for one as long as its caller likes.
pub(crate) const LOOKUP: &str = "farref::lookup";
/// Asks for the next items of a stream.
pub(crate) const NEXT_ITEMS: &str = "farref::Streaming::next";
