//! Ids that tie the spans of one call on several workers together.
//!
//! A trace begins with the first call that is made outside of a remote function, and everything that it
//! causes belongs to it. Each call that is served has a span of its own, whose parent is the span of the
//! function that made the call; of a call from outside, the trace itself. Where nobody looks, all ids
//! are zero.
//!
//! Two may look: a subscriber of the program's, which wants all, and an observer from outside, who is content with
//! [some](MOST_BEGUN) of the calls from outside of remote functions, and all that these cause.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::agent::TraceContext;
use crate::runtime::current::Current;
use crate::support::clock::Instant;

/// For how long after its last question an observer is taken to look on.
const WATCHED: Duration = Duration::from_secs(15);
/// How many traces this process begins in a second because an observer looks on.
const MOST_BEGUN: u64 = 250;

/// Since when this process counts time for observers.
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
/// Until when an observer looks on, in milliseconds; zero if none does. Of the process, as subscribers are.
static WATCHED_UNTIL: AtomicU64 = AtomicU64::new(0);
/// Which second it is, and in the lower half how many traces have begun in it.
static BEGUN: AtomicU64 = AtomicU64::new(0);

/// An observer looks on.
pub(crate) fn watch() {
    let until = EPOCH.elapsed() + WATCHED;
    WATCHED_UNTIL.store(until.as_millis() as u64, Ordering::Relaxed);
}

/// Whether an observer looks on.
pub(crate) fn is_watched() -> bool {
    let until = WATCHED_UNTIL.load(Ordering::Relaxed);
    until != 0 && EPOCH.elapsed().as_millis() <= u128::from(until)
}

/// Whether one more trace may begin for an observer.
fn begins_for_observer() -> bool {
    if !is_watched() {
        return false;
    }
    let second = EPOCH.elapsed().as_secs() << 32;
    let one_more = |begun: u64| match begun >> 32 << 32 == second {
        true => (begun - second < MOST_BEGUN).then_some(begun + 1),
        false => Some(second + 1),
    };
    let begun = BEGUN.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more);
    begun.is_ok()
}

/// What a call takes along that is made here.
pub(crate) fn of_call(current: Option<&Current>) -> TraceContext {
    match current.map(of) {
        Some(trace) if trace.trace != 0 => trace,
        Some(_) => begin(false),
        None => begin(true),
    }
}

/// What a call is served under.
pub(crate) fn of(current: &Current) -> TraceContext {
    *current
        .trace
        .get_or_init(|| of_serving(current.caller_trace))
}

/// What a call is served under that took `call` along.
fn of_serving(call: TraceContext) -> TraceContext {
    if call.trace == 0 {
        return begin(false);
    }
    TraceContext {
        trace: call.trace,
        span: next_id(),
    }
}

/// A trace that begins here, if anybody looks; outside of all remote functions or not.
fn begin(outermost: bool) -> TraceContext {
    let wanted = tracing::enabled!(tracing::Level::DEBUG) || outermost && begins_for_observer();
    if !wanted {
        return TraceContext::default();
    }
    let id = next_id();
    TraceContext {
        trace: id,
        span: id,
    }
}

/// Unlikely to meet those of other processes.
fn next_id() -> u64 {
    use std::hash::BuildHasher as _;
    static NEXT: AtomicU64 = AtomicU64::new(1);
    static SEED: std::sync::OnceLock<std::hash::RandomState> = std::sync::OnceLock::new();
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    SEED.get_or_init(std::hash::RandomState::new)
        .hash_one(count)
        .max(1)
}
