//! What was counted of the calls that a worker has carried out: of each function how many, how many failed, how long they
//! took. And, while somebody looks on, the latest of them one by one.
//!
//! # Invariants
//!
//! - **SC-1** Counting takes no lock and allocates nothing, but for the first call of a function.
//! - **SC-2** What is kept of single calls is bounded: [`RECENT`] of them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use farref_proto::NodeId;
use metrics::{Counter, Histogram, counter, histogram};

use crate::agent::TraceContext;
use crate::report::calls::{CLASSES, class_of};
use crate::support::clock::Instant;
use crate::support::lock::lock;

/// How many calls are kept one by one.
pub(crate) const RECENT: usize = 4096;

/// The calls that one worker has carried out.
pub(crate) struct Served {
    worker: Arc<str>,
    /// By the functions' numbers; the last one is the copying of values.
    by_function: Box<[FunctionTally]>,
    recent: Mutex<Recent>,
}

/// What was counted of one function.
struct FunctionTally {
    name: &'static str,
    instruments: OnceLock<Instruments>,
    failed: AtomicU64,
    /// All of them together.
    nanoseconds: AtomicU64,
    /// By how long they took.
    classes: [AtomicU64; CLASSES],
}

/// Registered when a function is first called: who is never called needs no series.
struct Instruments {
    /// `farref_served_total`
    served: Counter,
    /// `farref_served_failed_total`
    failed: Counter,
    /// `farref_serve_seconds`
    seconds: Histogram,
}

/// What is told of a function.
pub(crate) struct Tally {
    pub(crate) function: &'static str,
    pub(crate) failed: u64,
    pub(crate) time: Duration,
    pub(crate) classes: [u64; CLASSES],
}

/// A call that is over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finished {
    pub(crate) function: &'static str,
    pub(crate) caller: NodeId,
    pub(crate) began: Instant,
    pub(crate) took: Duration,
    pub(crate) failed: bool,
    pub(crate) trace: TraceContext,
    /// The span of whoever made the call.
    pub(crate) parent: u64,
}

#[derive(Default)]
struct Recent {
    calls: VecDeque<Finished>,
    /// How many there have been, those that are forgotten included.
    in_all: u64,
}

impl Served {
    /// For a worker with these functions, by their numbers.
    pub(crate) fn new(worker: &Arc<str>, functions: Vec<&'static str>) -> Self {
        let tally = |name| FunctionTally {
            name,
            instruments: OnceLock::new(),
            failed: AtomicU64::new(0),
            nanoseconds: AtomicU64::new(0),
            classes: [const { AtomicU64::new(0) }; CLASSES],
        };
        Self {
            worker: Arc::clone(worker),
            by_function: functions.into_iter().map(tally).collect(),
            recent: Mutex::default(),
        }
    }

    /// A call of the function with this number is over (SC-1).
    pub(crate) fn count(&self, function: usize, took: Duration, good: bool) {
        let Some(tally) = self.by_function.get(function) else {
            return;
        };
        let instruments = tally
            .instruments
            .get_or_init(|| Instruments::new(&self.worker, tally.name));
        instruments.served.increment(1);
        instruments.seconds.record(took);
        let nanoseconds = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        tally.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        if let Some(class) = tally.classes.get(class_of(took)) {
            class.fetch_add(1, Ordering::Relaxed);
        }
        if !good {
            instruments.failed.increment(1);
            tally.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many calls there were, and how many of them failed.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let mut totals = (0, 0);
        for tally in &self.by_function {
            totals.0 += tally.served();
            totals.1 += tally.failed.load(Ordering::Relaxed);
        }
        totals
    }

    /// What was counted of each function that was called.
    pub(crate) fn by_function(&self) -> impl Iterator<Item = Tally> + '_ {
        let called = self.by_function.iter().filter(|tally| tally.served() > 0);
        called.map(FunctionTally::read)
    }

    /// Keeps a call for those who look on (SC-2).
    pub(crate) fn keep(&self, call: Finished) {
        let mut recent = lock(&self.recent);
        if recent.calls.len() == RECENT {
            recent.calls.pop_front();
        }
        recent.calls.push_back(call);
        recent.in_all += 1;
    }

    /// The latest calls that were kept, at most so many, without the first `known` that were ever kept; and how many
    /// there have been.
    pub(crate) fn recent(&self, known: u64, most: usize) -> (Vec<Finished>, u64) {
        let recent = lock(&self.recent);
        let new = usize::try_from(recent.in_all.saturating_sub(known)).unwrap_or(usize::MAX);
        let wanted = new.min(most).min(recent.calls.len());
        let skipped = recent.calls.len() - wanted;
        let calls = recent.calls.iter().skip(skipped).copied().collect();
        (calls, recent.in_all)
    }
}

impl FunctionTally {
    fn served(&self) -> u64 {
        let classes = self.classes.iter();
        classes.map(|class| class.load(Ordering::Relaxed)).sum()
    }

    fn read(&self) -> Tally {
        Tally {
            function: self.name,
            failed: self.failed.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanoseconds.load(Ordering::Relaxed)),
            classes: std::array::from_fn(|class| {
                let class = self.classes.get(class);
                class.map_or(0, |class| class.load(Ordering::Relaxed))
            }),
        }
    }
}

impl Instruments {
    fn new(worker: &Arc<str>, function: &'static str) -> Self {
        let worker = worker.to_string();
        let count = |metric: &'static str| counter!(metric, "worker" => worker.clone(), "function" => function);
        Self {
            served: count("farref_served_total"),
            failed: count("farref_served_failed_total"),
            seconds: histogram!("farref_serve_seconds", "worker" => worker.clone(), "function" => function),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served() -> Served {
        Served::new(&Arc::from("worker"), vec!["add", "fetch"])
    }

    #[test]
    fn every_call_is_counted_under_its_function_and_how_long_it_took() {
        let served = served();
        served.count(0, Duration::from_micros(3), true);
        served.count(0, Duration::from_secs(7200), false);
        served.count(7, Duration::from_secs(1), true); // there is none
        assert_eq!(served.totals(), (2, 1));
        let tallies: Vec<Tally> = served.by_function().collect();
        assert_eq!(tallies.len(), 1);
        assert_eq!((tallies[0].function, tallies[0].failed), ("add", 1));
        assert_eq!(
            tallies[0].time,
            Duration::from_secs(7200) + Duration::from_micros(3)
        );
        assert_eq!(tallies[0].classes[CLASSES - 1], 1);
        assert_eq!(tallies[0].classes.iter().sum::<u64>(), 2);
    }

    /// SC-2
    #[test]
    fn the_latest_calls_are_told_once_and_no_more_than_wanted() {
        let served = served();
        let mut call = Finished {
            function: "add",
            caller: NodeId::new(0, 1),
            began: Instant::now(),
            took: Duration::ZERO,
            failed: false,
            trace: TraceContext::default(),
            parent: 0,
        };
        for parent in 0..5000 {
            call.parent = parent;
            served.keep(call);
        }
        let (calls, in_all) = served.recent(0, usize::MAX);
        assert_eq!((calls.len(), in_all), (RECENT, 5000));
        assert_eq!(calls[RECENT - 1].parent, 4999);
        let parents = |(calls, _): (Vec<Finished>, u64)| -> Vec<u64> {
            calls.iter().map(|call| call.parent).collect()
        };
        assert_eq!(parents(served.recent(4998, 10)), [4998, 4999]);
        assert_eq!(parents(served.recent(0, 1)), [4999]);
        assert!(parents(served.recent(5000, 10)).is_empty());
    }
}
