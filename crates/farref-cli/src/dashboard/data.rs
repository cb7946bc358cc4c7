//! What each view of the page shows, as JSON: no more than a page can show, whatever the size of the group.

use std::collections::BTreeMap;

use farref::WaitsFor;
use serde_json::{Value, json};

use super::cycles::Cycles;
use super::history::{FunctionHistory, milliseconds};
use super::state::State;
use crate::view::references::{self, By, Reference};
use crate::view::seen::{self, Seen, States};
use crate::view::tables;

/// Rows of a table.
const ROWS: usize = 500;
/// Edges of the graph.
const EDGES: usize = 400;
/// Calls on the line of time.
const SPANS: usize = 1500;
/// Functions with a curve.
const CURVES: usize = 12;

/// The data of a view, with what is shown above all of them. None if there is no such view.
pub(super) fn view(state: &State, name: &str, search: &str) -> Option<Value> {
    let data = match name {
        "workers" => workers(state),
        "references" => references(state, search),
        "calls" => calls(state),
        "rates" => rates(state),
        "contexts" => contexts(state),
        "events" => json!({"events": state.membership.events().collect::<Vec<_>>()}),
        "leaks" => json!({"lines": state.leaks.lines(&state.references)}),
        "timeline" => timeline(state),
        _ => return None,
    };
    Some(json!({"status": status(state), "data": data}))
}

fn status(state: &State) -> Value {
    let answers = state.seen.iter().filter(|one| one.snapshot.is_ok()).count();
    let waiting: usize = answering(state).map(|(_, one)| one.waiting.len()).sum();
    let cycles = Cycles::find(&state.seen).circles.len();
    json!({
        "address": state.address,
        "at": state.at,
        "interval": state.interval.as_secs_f64(),
        "lost": state.lost,
        "workers": state.seen.len(),
        "answers": answers,
        "dead": seen::dead(&state.seen).len(),
        "waiting": waiting,
        "cycles": cycles,
    })
}

fn answering(state: &State) -> impl Iterator<Item = (&str, &farref::Snapshot)> {
    let seen = state.seen.iter();
    seen.filter_map(|one| Some((&*one.name, one.answer()?)))
}

fn workers(state: &State) -> Value {
    let states = States::of(&state.seen);
    let row = |one: &Seen| {
        let snapshot = one.answer();
        let totals = snapshot.map(|one| one.totals);
        let sum = |of: fn(&farref::PeerSnapshot) -> usize| {
            snapshot.map(|one| tables::sum(one, |peer| of(peer) as u64))
        };
        json!({
            "name": one.name,
            "rank": one.rank,
            "state": states.state(one.rank),
            "error": one.snapshot.as_ref().err(),
            "life": snapshot.map(|one| one.incarnation),
            "version": snapshot.map(|one| &one.version),
            "uptime": snapshot.map(|one| one.uptime.as_secs_f64()),
            "open_calls": snapshot.map(|one| one.open_calls),
            "running": snapshot.map(|one| one.running.len()),
            "waiting": snapshot.map(|one| one.waiting.len()),
            "references": snapshot.map(|one| one.references_in_all),
            "contexts": snapshot.map(|one| one.contexts),
            "blocking": snapshot.map(|one| one.blocking_queue),
            "calls": totals.map(|one| one.calls),
            "served": totals.map(|one| one.served),
            "failed": totals.map(|one| one.calls_failed.saturating_add(one.served_failed)),
            "sent": totals.map(|one| one.bytes_sent),
            "received": totals.map(|one| one.bytes_received),
            "queued": sum(|peer| peer.queued_bytes),
            "held_back": sum(|peer| peer.calls_held_back),
        })
    };
    let gone = seen::dead(&state.seen).into_iter().map(|gone| {
        json!({"name": gone.name, "rank": gone.rank, "life": gone.incarnation, "state": gone.status})
    });
    let (names, all_names) = names(state);
    json!({
        "workers": state.seen.iter().map(row).chain(gone).collect::<Vec<_>>(),
        "names": names,
        "all_names": all_names,
    })
}

/// What is published, and how many names there are.
fn names(state: &State) -> (Vec<Value>, usize) {
    let all = answering(state).map(|(_, one)| one.names_in_all);
    let names = answering(state).flat_map(|(worker, snapshot)| {
        let names = snapshot.names.iter();
        names.map(move |one| {
            json!({
                "name": one.name, "publisher": worker, "version": one.version,
                "type": one.type_name, "owner": one.owner, "value": one.value,
            })
        })
    });
    (
        names.take(ROWS).collect(),
        all.fold(0, usize::saturating_add),
    )
}

fn references(state: &State, search: &str) -> Value {
    let wanted = |one: &&Reference| search.is_empty() || one.matches(search);
    let found: Vec<&Reference> = state.references.iter().filter(wanted).collect();
    let mut edges: BTreeMap<(&str, &str), (usize, f64)> = BTreeMap::new();
    let mut nodes: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for one in &state.seen {
        nodes.entry(&one.name).or_default();
    }
    for reference in &found {
        nodes.entry(&reference.owner).or_default().0 += 1;
        for (holder, hold) in &reference.holds {
            nodes.entry(holder).or_default().1 += 1;
            let edge = edges.entry((holder, &reference.owner)).or_default();
            let age = hold.age.unwrap_or_default().as_secs_f64();
            *edge = (edge.0 + 1, edge.1.max(age));
        }
    }
    let all_edges = edges.len();
    let mut edges: Vec<_> = edges.into_iter().collect();
    edges.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
    edges.truncate(EDGES);
    let groups = references::groups(found.iter().copied(), By::All, false);
    let unseen = answering(state)
        .map(|(_, one)| one.references_in_all.saturating_sub(one.references.len()))
        .fold(0, usize::saturating_add);
    json!({
        "all": state.references.len(),
        "found": found.len(),
        "unseen": unseen,
        "nodes": nodes.iter().map(|(name, (owns, holds))| json!({"name": name, "owns": owns, "holds": holds})).collect::<Vec<_>>(),
        "all_edges": all_edges,
        "edges": edges.iter().map(|((holder, owner), (count, oldest))| {
            json!({"holder": holder, "owner": owner, "count": count, "oldest": oldest})
        }).collect::<Vec<_>>(),
        "all_groups": groups.len(),
        "groups": groups.iter().take(ROWS).map(|group| json!({
            "count": group.count,
            "oldest": group.oldest.map(|age| age.as_secs_f64()),
            "key": group.key,
        })).collect::<Vec<_>>(),
    })
}

fn calls(state: &State) -> Value {
    let cycles = Cycles::find(&state.seen);
    let mut running = Vec::new();
    let mut waiting = Vec::new();
    let mut pairs: BTreeMap<(&str, &str), (usize, usize)> = BTreeMap::new();
    for (worker, snapshot) in answering(state) {
        for call in &snapshot.running {
            running.push((
                call.age,
                json!({
                    "function": call.function, "worker": worker, "caller": call.caller,
                    "value": call.value, "age": call.age.as_secs_f64(),
                }),
            ));
        }
        for call in &snapshot.waiting {
            let cycle = cycles.of(call);
            let mark = match (cycle, call.waits_for) {
                (Some(_), _) => "cycle",
                (None, WaitsFor::Turn) => "blocked",
                (None, _) => "waits",
            };
            waiting.push((
                call.age,
                json!({
                    "function": call.function, "worker": worker, "caller": call.caller,
                    "value": call.value, "age": call.age.as_secs_f64(),
                    "waits_for": call.waits_for.to_string(), "used_by": call.used_by,
                    "mark": mark, "cycle": cycle.map(|number| number + 1),
                }),
            ));
        }
        for peer in snapshot.peers.iter().filter(|peer| peer.calls_made > 0) {
            let pair = pairs.entry((worker, &peer.name)).or_default();
            *pair = (
                pair.0.saturating_add(peer.calls_made),
                pair.1.saturating_add(peer.calls_held_back),
            );
        }
    }
    let (all_running, all_waiting, all_pairs) = (running.len(), waiting.len(), pairs.len());
    let oldest = |mut rows: Vec<(std::time::Duration, Value)>| -> Vec<Value> {
        rows.sort_by_key(|(age, _)| std::cmp::Reverse(*age));
        rows.into_iter().take(ROWS).map(|(_, row)| row).collect()
    };
    let mut pairs: Vec<_> = pairs.into_iter().collect();
    pairs.sort_by_key(|(_, (made, _))| std::cmp::Reverse(*made));
    json!({
        "all_running": all_running,
        "running": oldest(running),
        "all_waiting": all_waiting,
        "waiting": oldest(waiting),
        "cycles": cycles.circles,
        "all_pairs": all_pairs,
        "pairs": pairs.iter().take(ROWS).map(|((from, to), (made, held_back))| {
            json!({"from": from, "to": to, "unanswered": made, "held_back": held_back})
        }).collect::<Vec<_>>(),
    })
}

fn rates(state: &State) -> Value {
    let history = &state.history;
    let mut functions: Vec<(&String, &FunctionHistory)> = history.functions.iter().collect();
    let time = |one: &FunctionHistory| one.totals.as_ref().map(|totals| totals.time);
    functions.sort_by_key(|(_, one)| std::cmp::Reverse(time(one)));
    let rows = functions
        .iter()
        .take(ROWS)
        .enumerate()
        .filter_map(|(index, (name, one))| {
            let totals = one.totals.as_ref()?;
            let calls = totals.calls();
            let mean = match calls {
                0 => None,
                calls => Some(totals.time.as_secs_f64() * 1000.0 / calls as f64),
            };
            Some(json!({
                "function": name,
                "calls": calls,
                "failed": totals.failed,
                "rate": one.moments.back().map(|moment| moment.rate),
                "mean": mean,
                "median": milliseconds(totals, 0.5),
                "p99": milliseconds(totals, 0.99),
                "moments": (index < CURVES).then_some(&one.moments),
            }))
        });
    json!({"moments": history.moments, "functions": rows.collect::<Vec<_>>()})
}

fn contexts(state: &State) -> Value {
    struct Context<'a> {
        opened_by: &'a str,
        workers: Vec<&'a str>,
        notes: Vec<Value>,
    }
    let mut contexts: BTreeMap<&str, Context<'_>> = BTreeMap::new();
    let mut in_all = 0_u64;
    for (worker, snapshot) in answering(state) {
        in_all = in_all.saturating_add(u64::from(snapshot.contexts));
        for one in &snapshot.open_contexts {
            let context = contexts.entry(&one.id).or_insert_with(|| Context {
                opened_by: &one.opened_by,
                workers: Vec::new(),
                notes: Vec::new(),
            });
            context.workers.push(worker);
            let notes = one.notes.iter();
            context
                .notes
                .extend(notes.map(|note| json!({"worker": worker, "note": note})));
        }
    }
    let age = |id: &str| Some((state.at? - state.contexts.get(id)?) / 1000.0);
    json!({
        "parts": in_all,
        "all": contexts.len(),
        "contexts": contexts.iter().take(ROWS).map(|(id, context)| json!({
            "id": id, "opened_by": context.opened_by, "workers": context.workers,
            "notes": context.notes, "age": age(id),
        })).collect::<Vec<_>>(),
    })
}

fn timeline(state: &State) -> Value {
    let running = answering(state).flat_map(|(worker, snapshot)| {
        let calls = snapshot.running.iter();
        calls.filter(|call| call.trace.is_some()).map(move |call| {
            json!({"worker": worker, "function": call.function, "age": call.age.as_secs_f64()})
        })
    });
    json!({
        "spans": state.timeline.latest(SPANS),
        "running": running.take(ROWS).collect::<Vec<_>>(),
        "seen": state.timeline.added,
        "missed": state.timeline.missed,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::view::fetch::Update;
    use crate::view::samples;

    const VIEWS: [&str; 8] = [
        "workers",
        "references",
        "calls",
        "rates",
        "contexts",
        "events",
        "leaks",
        "timeline",
    ];

    fn state(seen: Vec<Seen>) -> State {
        let mut state = State::new("here:1", Duration::from_secs(1));
        state.update(Update::Seen(seen.clone()), 1000.0);
        state.update(Update::Seen(samples::later(seen)), 2000.0);
        state
    }

    #[test]
    fn every_view_has_data_before_and_after_the_first_look() {
        let empty = State::new("here:1", Duration::from_secs(1));
        for name in VIEWS {
            for state in [&empty, &state(samples::group())] {
                assert!(
                    view(state, name, "").is_some_and(|data| data["data"].is_object()),
                    "{name}"
                );
            }
        }
        assert_eq!(view(&empty, "nothing", ""), None);
    }

    #[test]
    fn edges_go_from_holders_to_owners_and_a_search_leaves_only_what_matches() {
        let state = state(samples::group());
        let data = view(&state, "references", "").expect("a view")["data"].clone();
        assert_eq!(data["all"], 43);
        let edges = data["edges"].as_array().expect("edges");
        let edge = edges
            .iter()
            .find(|edge| edge["holder"] == "trainer0")
            .expect("an edge");
        assert_eq!(
            (&edge["owner"], &edge["count"]),
            (&json!("parameters"), &json!(42))
        );
        let data = view(&state, "references", "log.rs").expect("a view")["data"].clone();
        assert_eq!(
            (&data["found"], &data["edges"][0]["holder"]),
            (&json!(1), &json!("parameters"))
        );
    }

    #[test]
    fn a_call_that_waits_for_its_turn_is_blocked_and_one_in_a_circle_is_marked_as_such() {
        let mut seen = samples::group();
        let data = calls(&state(seen.clone()));
        assert_eq!(data["waiting"][0]["mark"], "blocked");
        assert_eq!(data["running"].as_array().map(Vec::len), Some(3));
        samples::edit(&mut seen[0], |snapshot| {
            let call = &mut snapshot.waiting[0];
            call.held_by_callers = vec![call.value.clone().expect("on a value")];
        });
        let data = calls(&state(seen));
        assert_eq!(
            (&data["waiting"][0]["mark"], &data["waiting"][0]["cycle"]),
            (&json!("cycle"), &json!(1))
        );
    }

    #[test]
    fn names_are_shown_with_their_publisher_and_no_more_than_a_page_can_show() {
        let data = workers(&state(samples::group()));
        let name = json!({
            "name": "weights", "publisher": "parameters", "version": 3, "owner": "parameters",
            "type": "alloc::vec::Vec<candle_core::tensor::Tensor>", "value": "r1@w0#1794751532",
        });
        assert_eq!(
            (&data["names"], &data["all_names"]),
            (&json!([name]), &json!(1))
        );
        let mut seen = samples::group();
        samples::edit(&mut seen[0], |snapshot| {
            snapshot.names = vec![snapshot.names[0].clone(); 1000];
            snapshot.names_in_all = usize::MAX;
        });
        let data = workers(&state(seen));
        assert_eq!(data["names"].as_array().map(Vec::len), Some(ROWS));
        assert_eq!(data["all_names"], usize::MAX);
    }

    #[test]
    fn two_hundred_workers_fit_into_a_page() {
        let state = state(samples::large(200));
        for name in VIEWS {
            let data = view(&state, name, "").expect("a view");
            let length = data.to_string().len();
            assert!(length < 400_000, "{name} has {length} bytes");
        }
        let data = references(&state, "");
        assert_eq!(data["nodes"].as_array().map(Vec::len), Some(200));
        assert!(
            data["edges"]
                .as_array()
                .is_some_and(|edges| edges.len() <= EDGES)
        );
    }
}
