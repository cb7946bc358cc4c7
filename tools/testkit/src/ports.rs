//! Ports for servers that a test starts later.

use std::collections::HashSet;
use std::net::TcpListener;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

/// A port that was free a moment ago, outside the range from which the system serves connections.
///
/// A process never gets the same port twice. Ports from 20,000 on are those of Slurm's jobs.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let given = given.get_or_insert_default();
    std::iter::repeat_with(|| fastrand::u16(10_000..20_000))
        .take(1_000)
        .find(|port| !given.contains(port) && TcpListener::bind(("0.0.0.0", *port)).is_ok())
        .inspect(|port| _ = given.insert(*port))
        .context("no port is free")
}
