//! Helpers that the tests of all crates share.
//!
//! - [`eventually`], [`eventually_async`], [`eventually_blocking`] and [`within`] wait for an
//!   event. Only a test that fails spends [`TEST_TIMEOUT`].
//! - [`Process`] runs a program, stops it, resumes it and kills it when dropped.
//! - [`Proxy`] passes, stalls and cuts TCP connections.
//! - [`Authority`] signs certificates, [`Scratch`] is a folder that is removed with the test,
//!   [`free_port`] finds a port, [`Requirement`] leaves tests out where something is missing.
//! - [`seeds`] has the inputs in `fuzz/seeds`; [`thorough`] says whether a test has time for all
//!   of its random cases.
//!
//! The crate does not depend on `farref`, so that unit tests of `farref` can use it.

mod amount;
mod certificates;
mod ports;
mod process;
mod proxy;
mod requirement;
mod scratch;
mod seeds;
mod waiting;

pub use amount::thorough;
pub use certificates::Authority;
pub use ports::free_port;
pub use process::{Ended, Process};
pub use proxy::Proxy;
pub use requirement::Requirement;
pub use scratch::Scratch;
pub use seeds::{Seed, seeds};
pub use waiting::{
    TEST_TIMEOUT, eventually, eventually_async, eventually_blocking, run_test, within,
};
