//! The parts of farref's runtime that threads share, under a scheduler that tries their interleavings.
//!
//! The files are `farref`'s own, compiled a second time: what they take from `crate::support::sync` and
//! `crate::support::clock` are the usual locks, threads and clock there, and here [shuttle]'s and a clock that a scenario
//! moves. So whatever a lock, a counter, a thread or a wake-up may interleave with is drawn by shuttle, which prints what
//! it drew if a scenario fails, and can do it again.
//!
//! Shuttle and not loom: with pools of threads and tasks there are more interleavings than loom can walk through in full.
//! Shuttle takes as many of them as one has time for. It takes each counter for `SeqCst`, which nearly all are in these
//! files; what a processor makes of weaker orders (the flag of `signal`, a count in `timer`) is not looked for.
//!
//! Each scenario is a function of [`SCENARIOS`]: it panics if its law does not hold, and never ends, which shuttle notices,
//! if somebody waits for what does not come.

#![forbid(unsafe_code)]
// Of the files that are included a part is used.
#![allow(dead_code, unused_imports)]
// What they convert is of one type here.
#![allow(clippy::useless_conversion)]

// The files of `farref` have tests of their own, which are not for this scheduler: where all targets are built there is an
// empty library of tests.
#[cfg(not(test))]
pub mod command;
#[cfg(not(test))]
mod native;
#[cfg(not(test))]
mod noticed;
#[cfg(not(test))]
mod runtime;
#[cfg(not(test))]
mod scenarios;
#[cfg(not(test))]
mod support;

#[cfg(not(test))]
pub use noticed::NOTICED;
#[cfg(not(test))]
pub use scenarios::{SCENARIOS, Scenario};
#[cfg(not(test))]
pub use support::mutation::{Mutation, mutate};
