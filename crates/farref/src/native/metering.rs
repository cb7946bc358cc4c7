//! The counters that an agent keeps for whoever collects metrics.

use metrics::Counter;

use super::handshake::HandshakeFailure;
use crate::support::telemetry::Tally;

/// Handles that are cheap to count with. They go to the recorder that was installed when the agent
/// was started.
pub(super) struct Meters {
    worker: String,
    pub(super) bytes_sent: Tally,
    pub(super) bytes_received: Tally,
    pub(super) connections: Counter,
    pub(super) reconnects: Counter,
    pub(super) starvations: Counter,
}

impl Meters {
    pub(super) fn new(worker: &str) -> Self {
        let count = |metric: &'static str| metrics::counter!(metric, "worker" => worker.to_owned());
        Self {
            worker: worker.to_owned(),
            bytes_sent: Tally::new(count("farref_bytes_sent_total")),
            bytes_received: Tally::new(count("farref_bytes_received_total")),
            connections: count("farref_connections_total"),
            reconnects: count("farref_reconnects_total"),
            starvations: count("farref_starvations_total"),
        }
    }

    /// An accepted stream came to nothing.
    pub(super) fn refused(&self, failure: &HandshakeFailure) {
        if !failure.is_in_order() {
            self.refused_for(failure.reason());
        }
    }

    pub(super) fn refused_for(&self, reason: &'static str) {
        metrics::counter!("farref_refused_connections_total",
            "worker" => self.worker.clone(), "reason" => reason)
        .increment(1);
    }
}
