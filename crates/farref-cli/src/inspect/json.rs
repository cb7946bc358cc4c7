//! What was seen, as JSON for a script.
//!
//! ```json
//! {
//!   "address": "127.0.0.1:29500",
//!   "workers": [
//!     {"name": "a", "rank": 0, "state": "alive", "snapshot": {..}, "error": null},
//!     {"name": "b", "rank": 1, "state": "dead?", "snapshot": null, "error": "why"}
//!   ],
//!   "references": [
//!     {"id": "..", "type": "..", "owner": "a",
//!      "holders": [{"worker": "b", "line": "src/main.rs:1:2", "seconds": 0.5}]}
//!   ]
//! }
//! ```
//!
//! The fields of a snapshot are those below. Durations are numbers of seconds. Fields may be added, none
//! is renamed or removed. With `--filter`, `references` has those that match.

use farref::{NameSnapshot, PeerSnapshot, RunningCall, Snapshot, Totals, WaitingCall, WaitsFor};
use serde::Serialize;

use super::arguments::Arguments;
use crate::view::references::{self, Reference};
use crate::view::seen::{Seen, States};

pub(super) fn write(arguments: &Arguments, seen: &[Seen]) -> anyhow::Result<String> {
    let merged = references::merge(seen);
    let wanted = |one: &&Reference| {
        arguments
            .filter
            .as_ref()
            .is_none_or(|text| one.matches(text))
    };
    let states = States::of(seen);
    let report = Report {
        address: &arguments.address,
        workers: seen.iter().map(|one| worker(&states, one)).collect(),
        references: merged.iter().filter(wanted).map(reference).collect(),
    };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

#[derive(Serialize)]
struct Report<'a> {
    address: &'a str,
    workers: Vec<WorkerReport<'a>>,
    references: Vec<ReferenceReport<'a>>,
}

#[derive(Serialize)]
struct WorkerReport<'a> {
    name: &'a str,
    rank: u32,
    /// As the other workers see it.
    state: String,
    snapshot: Option<SnapshotReport<'a>>,
    error: Option<&'a str>,
}

fn worker<'a>(states: &States<'_>, one: &'a Seen) -> WorkerReport<'a> {
    WorkerReport {
        name: &one.name,
        rank: one.rank,
        state: states.state(one.rank),
        snapshot: one.answer().map(snapshot),
        error: one.snapshot.as_ref().err().map(|why| &**why),
    }
}

#[derive(Serialize)]
struct SnapshotReport<'a> {
    version: &'a str,
    incarnation: u32,
    uptime_seconds: f64,
    open_calls: u32,
    /// Owned or held, whether shown or not.
    references: usize,
    /// How many of them this worker told of.
    references_shown: usize,
    contexts: u32,
    blocking_queue: usize,
    functions: usize,
    /// Published, whether shown or not.
    names_in_all: usize,
    names: &'a [NameSnapshot],
    totals: Totals,
    running: Vec<CallReport<'a>>,
    waiting: Vec<WaitingReport<'a>>,
    peers: &'a [PeerSnapshot],
}

fn snapshot(snapshot: &Snapshot) -> SnapshotReport<'_> {
    SnapshotReport {
        version: &snapshot.version,
        incarnation: snapshot.incarnation,
        uptime_seconds: snapshot.uptime.as_secs_f64(),
        open_calls: snapshot.open_calls,
        references: snapshot.references_in_all,
        references_shown: snapshot.references.len(),
        contexts: snapshot.contexts,
        blocking_queue: snapshot.blocking_queue,
        functions: snapshot.functions,
        names_in_all: snapshot.names_in_all,
        names: &snapshot.names,
        totals: snapshot.totals,
        running: snapshot.running.iter().map(call).collect(),
        waiting: snapshot.waiting.iter().map(waiting).collect(),
        peers: &snapshot.peers,
    }
}

#[derive(Serialize)]
struct CallReport<'a> {
    function: &'a str,
    caller: &'a str,
    /// The value that it uses, if it does.
    value: Option<&'a str>,
    seconds: f64,
}

fn call(call: &RunningCall) -> CallReport<'_> {
    CallReport {
        function: &call.function,
        caller: &call.caller,
        value: call.value.as_deref(),
        seconds: call.age.as_secs_f64(),
    }
}

/// A call that waits.
#[derive(Serialize)]
struct WaitingReport<'a> {
    function: &'a str,
    caller: &'a str,
    value: Option<&'a str>,
    /// `"value"`: to be made; `"turn"`: to be its turn; `"room"`: to have room for its answer.
    waits_for: WaitsFor,
    used_by: &'a [String],
    seconds: f64,
}

fn waiting(call: &WaitingCall) -> WaitingReport<'_> {
    WaitingReport {
        function: &call.function,
        caller: &call.caller,
        value: call.value.as_deref(),
        waits_for: call.waits_for,
        used_by: &call.used_by,
        seconds: call.age.as_secs_f64(),
    }
}

#[derive(Serialize)]
struct ReferenceReport<'a> {
    id: &'a str,
    /// Empty if nobody knows it.
    r#type: &'a str,
    owner: &'a str,
    holders: Vec<HoldReport<'a>>,
}

#[derive(Serialize)]
struct HoldReport<'a> {
    worker: &'a str,
    /// Where it got the reference, if it says so.
    line: Option<&'a str>,
    /// How long ago that was.
    seconds: Option<f64>,
}

fn reference(reference: &Reference) -> ReferenceReport<'_> {
    ReferenceReport {
        id: &reference.id,
        r#type: &reference.type_name,
        owner: &reference.owner,
        holders: reference
            .holds
            .iter()
            .map(|(worker, hold)| HoldReport {
                worker,
                line: hold.line.as_deref(),
                seconds: hold.age.map(|age| age.as_secs_f64()),
            })
            .collect(),
    }
}
