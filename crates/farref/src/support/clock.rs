//! Which clock this crate reads.
//!
//! The system's. In a simulation (feature `simulation`) it is the clock of the runtime, which stands still while anything
//! can run and then goes on to the next moment that somebody waits for.

#[cfg(not(feature = "simulation"))]
pub(crate) use std::time::Instant;
#[cfg(feature = "simulation")]
pub(crate) use tokio::time::Instant;
/// What the runtime waits until.
pub(crate) use tokio::time::Instant as RuntimeInstant;
pub(crate) use tokio::time::{sleep, sleep_until};
