//! Which test of `farref` notices which fault: what the table of promises in `docs/reliability.md` says, to be tried.
//!
//! The simulator and the schedules of threads show that rules of the runtime hold under bad conditions. That a *test* of a promise
//! fails if the promise is broken is shown here: one fault at a time is switched on in a process that runs the test, and it must
//! fail there (`tests/faults`).

#![forbid(unsafe_code)]

mod noticed;

pub use noticed::{NOTICED, Noticed, Tests};
