//! Ports for servers that a test starts later.

use std::net::{TcpListener, UdpSocket};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result};

/// Returns a TCP port that was free during this call. The system does not assign ports of this range
/// to outgoing connections.
///
/// Concurrent test programs get different ports: each program holds the UDP port of the same number
/// until it exits. Ports from 20,000 up are reserved for Slurm's jobs.
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
