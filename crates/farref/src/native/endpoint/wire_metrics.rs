//! The counters that an agent keeps for whoever collects metrics.

use metrics::Counter;

use crate::native::handshake::HandshakeFailure;
use crate::support::worker_metrics::Tally;

/// Handles that are cheap to count with. They go to the recorder that was installed when the agent
/// was started.
pub(crate) struct WireMetrics {
    worker: String,
    pub(crate) bytes_sent: Tally,
    pub(crate) bytes_received: Tally,
    pub(crate) connections: Counter,
    pub(crate) reconnects: Counter,
    pub(crate) starvations: Counter,
}

impl WireMetrics {
    pub(crate) fn new(worker: &str) -> Self {
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
    pub(crate) fn refused(&self, failure: &HandshakeFailure) {
        if !failure.is_in_order() {
            self.refused_for(failure.reason());
        }
    }

    pub(crate) fn refused_for(&self, reason: &'static str) {
        metrics::counter!("farref_refused_connections_total",
            "worker" => self.worker.clone(), "reason" => reason)
        .increment(1);
    }
}
