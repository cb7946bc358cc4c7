//! The laws of a session, each held by tests that name it. The laws are numbered in the parent.

mod delivery;
mod handshake;
mod liveness;
mod lossy;
#[cfg(feature = "mutations")]
mod mutations;
mod pair;
mod stall;
mod streams;

use super::*;
use pair::{LEFT, Pair, RIGHT};
