//! Whole groups of farref workers on one thread, whose clock, network and order of tasks follow from a seed.
//!
//! `farref-sim` simulates the protocol's state machines. This crate runs all that is above them too, as it ships: calls,
//! references and streams, the queues, the timers, the handshake, the frames and the sessions. Only what the system
//! brings along is replaced (`farref`'s feature `simulation`): sockets are pipes in memory, which are late, take parts of
//! what is written, and break in the middle of a frame; there is one thread, on which the order of tasks is drawn; the
//! clock stands still while anything can run; and random numbers are drawn from the seed. So a seed does the same again,
//! up to the end of all programs. In which order workers shut down then may differ: what fails only there may need some
//! tries to fail again.
//!
//! A run has a group, programs on its workers that call each other, and a plan of faults. What must hold is in
//! `ledger`, what is done in `program` and `client`.
//!
//! ```
//! let report = farref_runtime_sim::run(4, &farref_runtime_sim::Config::default())?;
//! assert!(report.calls > 0);
//! # anyhow::Ok(())
//! ```

#![forbid(unsafe_code)]

mod client;
pub mod command;
mod config;
mod faults;
mod ledger;
mod many;
#[cfg(feature = "mutations")]
mod noticed;
mod program;
mod run;

pub use config::{Config, Faults};
#[cfg(feature = "mutations")]
pub use farref::mutations::Mutation;
pub use ledger::{Report, Violation};
#[cfg(feature = "mutations")]
pub use noticed::NOTICED;
pub use run::{run, run_traced};
