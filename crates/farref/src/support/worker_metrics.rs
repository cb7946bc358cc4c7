//! Counters and histograms, registered once per worker so that counting costs an addition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use farref_proto::PeerMisbehaved;
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// A counter that the worker itself can read as well, for its snapshots.
pub(crate) struct Tally {
    counter: Counter,
    total: AtomicU64,
}

impl Tally {
    pub(crate) fn new(counter: Counter) -> Self {
        let total = AtomicU64::new(0);
        Self { counter, total }
    }

    pub(crate) fn add(&self, count: u64) {
        // Most calls carry no references.
        if count == 0 {
            return;
        }
        self.counter.increment(count);
        self.total.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
}

/// The instruments of one worker. Every name carries the label `worker`. Those of the calls that it carries out are in
/// `tables/served`, by function.
pub(crate) struct WorkerMetrics {
    /// `farref_misbehaved_total`: peers that were cut off, by reason.
    misbehaved: BTreeMap<&'static str, Counter>,
    /// `farref_calls_total`: calls made.
    pub(crate) calls: Tally,
    /// `farref_calls_failed_total`: calls that brought an error, those that ran out of time included.
    pub(crate) failed: Tally,
    /// `farref_calls_cancelled_total`: calls that the program dropped before they had ended. No call is
    /// counted here and as failed.
    pub(crate) cancelled: Tally,
    /// `farref_call_seconds`: from the making of a call to its answer.
    pub(crate) call_seconds: Histogram,
    /// `farref_references_created_total`: references made by this worker.
    pub(crate) created: Tally,
    /// `farref_references_shared_total`: references sent along with calls and answers.
    pub(crate) shared: Tally,
    /// `farref_values_freed_total`: values of this worker that nobody refers to any more.
    pub(crate) freed: Tally,
    /// `farref_served_refused_total`: calls of others that they may not make here.
    pub(crate) refused: Counter,
    /// `farref_references`: references owned or held.
    pub(crate) references: Gauge,
    /// `farref_contexts`: autograd contexts open.
    pub(crate) contexts: Gauge,
    /// `farref_open_calls`: calls in either direction.
    pub(crate) open_calls: Gauge,
    /// `farref_queued_bytes`: written for peers and not acknowledged.
    pub(crate) queued_bytes: Gauge,
    /// `farref_blocking_queue`: plain functions that wait for a thread.
    pub(crate) blocking_queue: Gauge,
    /// `farref_destructor_queue`: destructors and callbacks of the program that wait for their thread.
    pub(crate) destructor_queue: Gauge,
}

impl WorkerMetrics {
    /// Why the wire cuts a peer off, beside [`PeerMisbehaved::KINDS`].
    const REASONS: &[&str] = &[
        "frame",
        "stream",
        "session",
        "memory",
        "not_joined",
        "other",
    ];

    pub(crate) fn new(worker: &Arc<str>) -> Self {
        let name = worker.to_string();
        let count = |metric: &'static str| counter!(metric, "worker" => name.clone());
        let tally = |metric| Tally::new(count(metric));
        let level = |metric: &'static str| gauge!(metric, "worker" => name.clone());
        let spread = |metric: &'static str| histogram!(metric, "worker" => name.clone());
        Self {
            misbehaved: Self::REASONS
                .iter()
                .chain(PeerMisbehaved::KINDS)
                .map(|&reason| (reason, counter!("farref_misbehaved_total", "worker" => name.clone(), "reason" => reason)))
                .collect(),
            calls: tally("farref_calls_total"),
            failed: tally("farref_calls_failed_total"),
            cancelled: tally("farref_calls_cancelled_total"),
            call_seconds: spread("farref_call_seconds"),
            created: tally("farref_references_created_total"),
            shared: tally("farref_references_shared_total"),
            freed: tally("farref_values_freed_total"),
            refused: count("farref_served_refused_total"),
            references: level("farref_references"),
            contexts: level("farref_contexts"),
            open_calls: level("farref_open_calls"),
            queued_bytes: level("farref_queued_bytes"),
            blocking_queue: level("farref_blocking_queue"),
            destructor_queue: level("farref_destructor_queue"),
        }
    }

    /// A peer was cut off. What an agent calls a reason of its own is counted as `other`.
    pub(crate) fn misbehaved(&self, reason: &'static str) {
        let counter = self.misbehaved.get(reason);
        if let Some(counter) = counter.or_else(|| self.misbehaved.get("other")) {
            counter.increment(1);
        }
    }
}
