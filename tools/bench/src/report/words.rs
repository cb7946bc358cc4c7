//! How figures and their names are written.

use super::super::form::quantity;
use super::measurement::{Better, Limit, Measurement};

/// What was measured, with what distinguishes it from others of its name.
pub(super) fn label(one: &Measurement) -> String {
    let mut text = spoken(one.name).to_owned();
    if let Some(form) = one.form {
        text = form.name().to_owned();
    }
    if let Some(bytes) = one.bytes {
        text = format!("{:>7} {text}", quantity(bytes));
    }
    if let Some(direction) = one.direction {
        text += &format!(", {}", direction.name());
    }
    match one.in_flight {
        Some(1) => text += ", one at a time",
        Some(calls) => text += &format!(", {calls} at once"),
        None => {}
    }
    if let Some(count) = one.references {
        text += &format!(", {count} live");
    }
    if let Some(width) = one.width {
        text += &format!(", {width} x {width}");
    }
    if let Some(workers) = one.workers {
        text += &format!(", {workers} workers");
    }
    text
}

/// What a limit is called, after its ratio.
pub(super) fn held_against(limit: &Limit) -> String {
    let mut text = match limit.name {
        // A number that is given, not measured: the figure is held against it as it is.
        "budget" => {
            let met = if limit.kept() == Some(false) {
                ": not met"
            } else {
                ""
            };
            return format!("(budget {}{met})", number(limit.value));
        }
        name => format!("{} x {}", ratio(limit.ratio), spoken(name)),
    };
    if let Some(budget) = limit.budget {
        let side = match limit.better {
            Better::Lower => "at most",
            Better::Higher => "at least",
        };
        let met = if limit.kept() == Some(false) {
            ": not met"
        } else {
            ""
        };
        text += &format!(" (budget {side} {budget}{met})");
    }
    text
}

fn ratio(value: f64) -> String {
    match value {
        0.0..0.1 => format!("{value:.4}"),
        100.0.. => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

/// Digits behind the point say nothing about a large number.
pub(super) fn number(value: f64) -> String {
    match value {
        1000.0.. => format!("{value:.0}"),
        100.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

/// A value with its unit, so that it has digits to be read.
pub(super) fn quantified(one: &Measurement) -> (String, &'static str) {
    match (one.unit, one.value) {
        ("GB/s", value @ ..0.1) => (number(value * 1e3), "MB/s"),
        (unit, value) => (number(value), unit),
    }
}

pub(super) fn spoken(name: &str) -> &str {
    match name {
        "bare_ping_pong" => "bare socket, tokio",
        "bare_blocking_ping_pong" => "bare socket, blocking",
        "bare_frames" => "bare frames",
        "bare_frame_cpu" => "CPU time of a bare frame",
        "bare_stream" => "bare frames with credit",
        "stream" => "items of a stream",
        "slow_reader_memory" => "memory at the maker, slow reader",
        "bare_message" => "bare socket",
        "blob" => "Blob",
        "empty_call" => "empty call",
        "without_tls" => "without TLS",
        "plain_fn_call" => "empty call of a plain fn",
        "pipelined_calls" => "empty calls",
        "pipelined_shares" => "shares by a user",
        "call_cpu" => "CPU time of a call",
        "caller_cpu" => "of it the caller",
        "callee_cpu" => "of it the callee",
        "call_allocations" => "allocations of a call",
        "create" => "create",
        "create_fetch_drop" => "create, fetch and drop",
        "share_by_owner" => "share, by the owner",
        "share_by_user" => "share, by a user",
        "creations" => "creations",
        "owner_memory" => "memory at the owner",
        "holder_memory" => "memory at the holder",
        "beside_none" => "with none live",
        "step" => "step",
        "torch_step" => "step with PyTorch",
        "same_tensor" => "the same tensor",
        "new_tensor" => "a new tensor",
        "torch_tensor" => "PyTorch",
        "copied_tensor" => "copied tensor",
        "locked_download" => "page-locked copy, down",
        "locked_upload" => "page-locked copy, up",
        "slowest_step" => "the slowest of these",
        "signal" => "a signal to all and back",
        other => other,
    }
}
