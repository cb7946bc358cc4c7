//! What has happened in a run, and what must not.
//!
//! A run has a thread to itself while it lasts, so its ledger is that thread's.
//!
//! # Invariants
//!
//! - **RR-1** A function runs at most once for each call, and exactly once for each that succeeds (D1, D2).
//! - **RR-2** A call that succeeds has brought the right value. One that fails says why with an error that fits what has
//!   happened: a worker is lost only if it has died or was out of reach, and time is up only for calls with a limit (D3,
//!   F2, F4).
//! - **RR-3** A value is there for whoever holds a reference to it, while its owner lives (R1, R4, R7).
//! - **RR-4** In the end nothing is left: all calls are over, all workers shut down in good order, and no value, no
//!   function and no task remains (D4, R2, R5, S1).
//! - **RR-5** Nothing panics.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use tokio::time::Instant;

/// A rule that does not hold, with the numbers of the rules above.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation(pub String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Violation {}

/// What a run did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Report {
    /// Calls that were made.
    pub calls: u64,
    /// Those of them that failed, as they may.
    pub failed: u64,
    /// Values that were made.
    pub values: u64,
    /// Faults that were injected.
    pub faults: u64,
    /// Virtual milliseconds that it took.
    pub millis: u64,
    /// A number over all that was noted, the order of shutting down included.
    pub fingerprint: u64,
}

#[derive(Default)]
struct Ledger {
    began: Option<Instant>,
    /// How often a function has run for each call.
    runs: BTreeMap<u64, u32>,
    running: BTreeSet<u64>,
    /// Values that are there, and on which worker.
    values: BTreeMap<u64, String>,
    next: u64,
    violations: Vec<String>,
    report: Report,
    /// Lines, if somebody wants them.
    trace: Option<Vec<String>>,
}

thread_local! {
    static LEDGER: RefCell<Ledger> = RefCell::default();
}

fn with<T>(f: impl FnOnce(&mut Ledger) -> T) -> T {
    LEDGER.with(|ledger| f(&mut ledger.borrow_mut()))
}

/// A run begins.
pub(crate) fn begin(traced: bool) {
    with(|ledger| {
        *ledger = Ledger {
            began: Some(Instant::now()),
            trace: traced.then(Vec::new),
            ..Ledger::default()
        };
    });
}

/// The run is over: what it did, what it broke first, and its trace.
pub(crate) fn end() -> (Result<Report, Violation>, Vec<String>) {
    let ledger = LEDGER.take();
    let result = match ledger.violations.into_iter().next() {
        Some(first) => Err(Violation(first)),
        None => Ok(ledger.report),
    };
    (result, ledger.trace.unwrap_or_default())
}

/// Notes that something happened.
pub(crate) fn note(what: impl FnOnce() -> String) {
    with(|ledger| {
        let millis = ledger
            .began
            .map_or(0, |began| began.elapsed().as_millis() as u64);
        let line = format!("{millis:>8} {}", what());
        ledger.report.millis = millis;
        for byte in line.bytes() {
            ledger.report.fingerprint =
                (ledger.report.fingerprint ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if let Some(trace) = &mut ledger.trace {
            trace.push(line);
        }
    });
}

/// Notes that a rule does not hold.
pub(crate) fn violated(rule: &str, what: &str) {
    note(|| format!("VIOLATION {rule}: {what}"));
    with(|ledger| ledger.violations.push(format!("{rule}: {what}")));
}

/// Whether a rule does not hold already.
pub(crate) fn is_violated() -> bool {
    with(|ledger| !ledger.violations.is_empty())
}

/// A number that nothing else in this run has.
pub(crate) fn fresh() -> u64 {
    with(|ledger| {
        ledger.next += 1;
        ledger.next
    })
}

/// A call is made.
pub(crate) fn called() {
    with(|ledger| ledger.report.calls += 1);
}

/// A call has failed, as it may.
pub(crate) fn failed() {
    with(|ledger| ledger.report.failed += 1);
}

/// A fault was injected.
pub(crate) fn fault(what: impl FnOnce() -> String) {
    with(|ledger| ledger.report.faults += 1);
    note(what);
}

/// How often a function has run for a call.
pub(crate) fn runs(token: u64) -> u32 {
    with(|ledger| ledger.runs.get(&token).copied().unwrap_or_default())
}

/// A function that runs for a call, until this is dropped.
pub(crate) struct Running(u64);

impl Running {
    pub(crate) fn begin(token: u64) -> Self {
        note(|| format!("runs {token}"));
        let runs = with(|ledger| {
            ledger.running.insert(token);
            let runs = ledger.runs.entry(token).or_default();
            *runs += 1;
            *runs
        });
        if runs > 1 {
            violated("RR-1", &format!("call {token} has run {runs} times"));
        }
        Self(token)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The runtime may drop it when the ledger is gone.
        let _ = LEDGER.try_with(|ledger| ledger.borrow_mut().running.remove(&self.0));
    }
}

/// A value is there.
pub(crate) fn made(value: u64, owner: &str) {
    with(|ledger| {
        ledger.report.values += 1;
        ledger.values.insert(value, owner.to_owned());
    });
}

/// A value is freed.
pub(crate) fn freed(value: u64) {
    note(|| format!("frees {value}"));
    let was_there = with(|ledger| ledger.values.remove(&value).is_some());
    if !was_there {
        violated("RR-3", &format!("value {value} was freed twice"));
    }
}

/// What is left at the end (RR-4).
pub(crate) fn left_over() -> Vec<String> {
    with(|ledger| {
        let values = ledger.values.iter();
        let values = values.map(|(value, owner)| format!("value {value} of {owner} is left"));
        let running = ledger.running.iter();
        let running = running.map(|token| format!("the function of call {token} still runs"));
        values.chain(running).collect()
    })
}
