//! Exhaustive model checking of the protocol, on the code that ships.
//!
//! Four models, all walked by stateright through every reachable state:
//!
//! - [`Cluster`]: whole `farref_proto::Node`s that create, share and drop references while the network
//!   delays (and, if asked, reorders and duplicates) their messages and workers crash and return.
//!   Between two nodes it assumes what a session guarantees: nothing is lost, and, unless reordering
//!   is on, order is kept per lane.
//! - [`Link`]: two real `farref_proto::Session`s over a connection that loses, duplicates, reorders and
//!   breaks. It shows what the first model assumes.
//! - [`Split`]: whole nodes that need a majority of their group, in a network that falls apart.
//! - [`Unfit`]: a newcomer that does not fit to one of those who were there before it.
//!
//! | property | kind | holds |
//! | --- | --- | --- |
//! | R1, R4: nothing held or on its way has been freed | always | `Cluster` |
//! | R3: what was freed does not come back, nobody is accused wrongly | always | `Cluster` |
//! | R2: when nothing can happen any more, nothing is left | eventually | `Cluster` |
//! | a reference outlives the worker that handed it on | sometimes | `Cluster` |
//! | D2: exactly once and in order | always | `Link` |
//! | D2: everything arrives | eventually | `Link` |
//! | a frame is replayed | sometimes | `Link` |
//! | F7: of two workers at most one goes on without the other | always | `Split` |
//! | F7: whoever is left is of one group | eventually | `Split` |
//! | F10: no member is lost because a newcomer does not fit to it | always | `Unfit` |
//! | F10: the newcomer is out, and whoever is left agrees | eventually | `Unfit` |
//!
//! Every action uses up something (an operation, a message, a fault), so no path is endless and
//! *eventually* is exact: it is decided in the states where nothing can happen any more.

#![forbid(unsafe_code)]

mod channels;
mod cluster;
mod link;
mod split;
mod unfit;

pub use cluster::{Action, Cluster, ClusterState, Message};
pub use link::{Link, LinkAction, LinkState};
pub use split::{Split, SplitAction, SplitState};
pub use unfit::{Unfit, UnfitAction, UnfitState};
