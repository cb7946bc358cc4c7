//! A seeded simulator of N workers made of the real protocol code.
//!
//! One *run* is one seed: a group of workers, each a `farref_proto::Node` with a
//! `farref_proto::Session` per peer, runs random programs (create, share in all positions, nest,
//! fetch, call, cancel, drop, contexts) over a network that delays, loses, duplicates, reorders and
//! cuts, while workers crash, stall, restart, leave and join. An omniscient *oracle* checks the
//! guarantees at every event that could break one. Then the faults stop, the programs let go of
//! everything and shut down, and everything must have been freed.
//!
//! The same seed and configuration always give the same run: a failure is replayed by its seed.
//!
//! | guarantee | how it is checked |
//! | --- | --- |
//! | D1 | a call's function runs at most once, and its caller gets exactly one outcome |
//! | D2 | every frame of a lane arrives once and in the order in which it was enqueued |
//! | R1 | when a value is freed no live worker holds it; a received or fetched one was not freed |
//! | R2 | at the end every table is empty |
//! | R3 | duplicated, reordered and late frames change none of this |
//! | R4 | as R1, when the worker that handed the reference on has died |
//! | R5 | calls and answers that are taken back leave nothing behind (R2) |
//! | R6 | constructors that finish only after their creator was confirmed do finish |
//! | F2 | calls to a lost worker end, references to its values say so, nobody waits for it |
//! | F3 | a worker that came back gets nothing that was meant for its former life |
//! | F10 | no member is lost because a newcomer does not fit to it |
//! | S1 | when a worker may go, nothing is left on any worker that it knows to be alive |
//! | A3 | a context is released after its last call, and a late call does not bring it back |

#![forbid(unsafe_code)]

mod calling;
pub mod command;
mod config;
mod driver;
mod ending;
mod events;
mod faults;
mod happening;
mod link;
mod majority;
mod network;
mod oracle;
mod process;
mod program;
mod serving;
mod stats;
mod traffic;
mod unfit;
mod verdicts;
mod warrants;
mod world;

pub use config::Config;
#[cfg(feature = "mutations")]
pub use config::Mutant;
pub use oracle::Violation;
pub use stats::{Faults, Stats};
pub use traffic::{Cost, Traffic, traffic};
pub use world::{Failure, run, run_traced};
