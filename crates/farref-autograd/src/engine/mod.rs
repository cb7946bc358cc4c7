//! The engine: records what tensors travelled in which message of a context, and runs gradients back
//! along them. It knows no tensor library; a [`Backend`] does the mathematics.
//!
//! A message that carries tensors which need gradients is a *send* on the worker that wrote it and a
//! *recv* on the worker that read it, under one number. In a backward pass, the tensors of every send
//! are roots of the local graph and those of every recv are leaves of it: gradients come in at roots and
//! leave at leaves.
//!
//! # Invariants
//!
//! - **EN-1** In a pass, each send of a worker's snapshot gets exactly one gradient message, possibly
//!   one that says *none*; whoever waits for one gets it (A2).
//! - **EN-2** Correctness does not depend on how arrivals are grouped: vector-Jacobian products are
//!   linear, a leaf is final when all roots that reach it have been run. What comes after that is run by
//!   itself, and follows what went before.
//! - **EN-3** A pass is over when its root is at rest and every parcel it caused, directly or not, has
//!   been acknowledged (Dijkstra and Scholten): the first parcel that draws a worker in is acknowledged
//!   when the worker is at rest, every other at once.
//! - **EN-4** Gradients are kept in the context, per worker, and nowhere else.
//! - **EN-5** When a context is over on a worker, nothing of it is left there.
//! - **EN-6** A pass that does not retain the graph frees, where it is done, the messages for which it brought
//!   gradients, and no others. A gradient for a message that was freed fails the pass that brings it; one
//!   for a message that a pass did not know of, or that has had its gradients, is taken in. No gradient
//!   is ever ignored: passes side by side add up, or one says that another has freed what it needs.

mod backend;
mod carrier;
mod contexts;
mod driver;
mod foreign;
mod graph;
mod leaves;
mod parcel;
mod pass;
mod passes;
mod records;
mod seam;
mod task;
mod timings;

pub use backend::{AtLeaves, Backend, Observer, Reach};
pub use carrier::{Carrier, Delivery};
pub use contexts::Engine;
pub use foreign::receive_gradients;
pub use parcel::{ForSend, Messages, Parcel, PassId, Receipt};
pub use records::Counts;
pub use seam::{Link, backward, gradient, observe, progressed, receive, record_recv, record_send};

pub use crate::failure::{Cause, PassFailure};
