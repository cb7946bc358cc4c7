//! The signals by which a run is asked to end: Ctrl-C, or SIGTERM.
//!
//! The first one ends the load, and all comes to rest, is checked and told. The next one ends everything at once.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// The signals, from the moment on at which it is made: by then they end nothing by themselves any more.
#[derive(Debug)]
pub(super) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub(super) fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    pub(super) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
