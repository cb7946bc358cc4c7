//! Ports for servers that a test starts later.

use std::net::{TcpListener, UdpSocket};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

/// A port that was free a moment ago, outside the range from which the system serves connections.
///
/// No two calls get the same port, in all test programs that run at a time: a program has the UDP
/// port of the same number until it ends. Ports from 20,000 on are those of Slurm's jobs.
pub fn free_port() -> Result<u16> {
    static GIVEN: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    for port in std::iter::repeat_with(|| fastrand::u16(10_000..20_000)).take(1_000) {
        let Ok(claim) = UdpSocket::bind(("0.0.0.0", port)) else {
            continue;
        };
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        given.push(claim);
        if TcpListener::bind(("0.0.0.0", port)).is_ok() {
            return Ok(port);
        }
    }
    None.context("no port is free")
}
