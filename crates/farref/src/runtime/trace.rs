//! Ids that tie the spans of one call on several workers together.
//!
//! A trace begins with the first call that is made outside of a remote function, and everything that it
//! causes belongs to it. Each call that is served has a span of its own, whose parent is the span of the
//! function that made the call; of a call from outside, the trace itself. Where nobody looks, all ids
//! are zero.

use crate::agent::TraceContext;
use crate::runtime::current::Current;

/// What a call takes along that is made here.
pub(crate) fn of_call(current: Option<&Current>) -> TraceContext {
    match current.map(of) {
        Some(trace) if trace.trace != 0 => trace,
        _ => begin(),
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
        return begin();
    }
    TraceContext {
        trace: call.trace,
        span: next_id(),
    }
}

/// A trace that begins here, if anybody looks.
fn begin() -> TraceContext {
    if !tracing::enabled!(tracing::Level::DEBUG) {
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
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    static SEED: std::sync::OnceLock<std::hash::RandomState> = std::sync::OnceLock::new();
    let count = NEXT.fetch_add(1, Ordering::Relaxed);
    SEED.get_or_init(std::hash::RandomState::new)
        .hash_one(count)
        .max(1)
}
