//! A group as the tests of tables and screens see it.

use farref::{ContextSnapshot, FinishedCall, FunctionTotals, Snapshot};

use super::seen::Seen;

/// An owner with 43 references, and two trainers that hold some of them.
pub(crate) fn group() -> Vec<Seen> {
    let names = ["parameters", "trainer0", "trainer1"];
    (0..3)
        .map(|rank| {
            let snapshot = parse(&json(names[rank as usize], rank));
            Seen::new(names[rank as usize], rank, Ok(snapshot))
        })
        .collect()
}

/// Another second has passed.
pub(crate) fn later(mut group: Vec<Seen>) -> Vec<Seen> {
    for seen in &mut group {
        edit(seen, |snapshot| {
            snapshot.uptime += std::time::Duration::from_secs(1);
            snapshot.recorded += snapshot.finished.len() as u64;
            snapshot.totals.calls += 1500;
            snapshot.totals.served += 250;
            snapshot.totals.bytes_sent += 3 << 20;
        });
    }
    group
}

pub(crate) fn edit(seen: &mut Seen, change: impl FnOnce(&mut Snapshot)) {
    change(seen.snapshot.as_mut().expect("it has answered"));
}

/// What was counted of a function.
pub(crate) fn served(function: &str, failed: u64, classes: &[u64]) -> Vec<FunctionTotals> {
    let time = serde_json::json!({"secs": 1, "nanos": 0});
    let totals = serde_json::json!([{
        "function": function, "failed": failed, "time": time, "classes": classes,
    }]);
    serde_json::from_value(totals).expect("totals")
}

/// A call that is over: its trace, its span and that of its caller; when it began and how long it took, in milliseconds.
pub(crate) fn finished(
    function: &str,
    (trace, span, parent): (u64, u64, u64),
    began: u64,
    took: u64,
) -> Vec<FinishedCall> {
    let time = |ms: u64| serde_json::json!({"secs": ms / 1000, "nanos": ms % 1000 * 1_000_000});
    let call = serde_json::json!([{
        "function": function, "caller": "trainer0", "began": time(began), "took": time(took), "failed": false,
        "trace": {"trace": trace, "span": span, "parent": parent},
    }]);
    serde_json::from_value(call).expect("a call")
}

pub(crate) fn contexts() -> Vec<ContextSnapshot> {
    let context = serde_json::json!([{
        "id": "c1@w0#1", "opened_by": "parameters", "workers": ["trainer0"], "notes": ["passes: 1"],
    }]);
    serde_json::from_value(context).expect("a context")
}

/// A group of so many workers that hold references to each other.
pub(crate) fn large(workers: u32) -> Vec<Seen> {
    let name = |rank: u32| format!("trainer{rank}");
    let like = parse(&json("parameters", 0));
    let worker = |rank: u32| {
        let mut snapshot = like.clone();
        (snapshot.worker, snapshot.rank) = (name(rank), rank);
        let peer = snapshot.peers.remove(0);
        snapshot.peers = (0..workers)
            .map(|rank| {
                let mut peer = peer.clone();
                (peer.name, peer.rank) = (name(rank), rank);
                peer
            })
            .collect();
        for (index, reference) in snapshot.references.iter_mut().enumerate() {
            let owner = (rank * 7 + index as u32 * 13) % workers;
            reference.id = format!("r{index}@w{rank}#1");
            reference.owner = name(owner);
            reference.holders = vec![name(rank)];
            reference.location = Some(format!("src/layer{}.rs:{index}:7", rank % 10));
        }
        snapshot.served = (0..40)
            .flat_map(|n| served(&format!("train::function{n}"), 0, &[n; 27]))
            .collect();
        snapshot.finished = (0..100)
            .flat_map(|n| {
                let span = u64::from(rank) * 1000 + n + 1;
                finished("train::step", (span, span, span), 7000 + n * 10, 8)
            })
            .collect();
        Seen::new(&name(rank), rank, Ok(snapshot))
    };
    (0..workers).map(worker).collect()
}

pub(crate) fn parse(text: &str) -> Snapshot {
    serde_json::from_str(text).expect("a snapshot")
}

/// A worker's snapshot, as `Snapshot` is stored.
pub(crate) fn json(name: &str, rank: u32) -> String {
    let age = |seconds: u64| serde_json::json!({"secs": seconds, "nanos": 0});
    let peer = |name: &str, rank: u32| {
        serde_json::json!({
            "name": name, "rank": rank, "incarnation": 1_794_751_532, "status": "alive",
            "addresses": ["tcp://127.0.0.1:40001"], "transport": "tcp", "connections": 1,
            "queued_messages": 2, "queued_bytes": 3000, "bytes_sent": 123_456, "bytes_received": 99,
            "calls_made": 1, "calls_held_back": 0, "calls_served": 1,
        })
    };
    let reference = |id: u32| {
        let (holder, line) = match rank {
            // The owner knows who holds its values, but not where they got them.
            0 => (vec!["trainer0", "trainer1"], None),
            _ => (vec![name], Some(format!("src/main.rs:{}:7", 40 + rank))),
        };
        serde_json::json!({
            "id": format!("r{id}@w0#1794751532"), "type_name": "alloc::vec::Vec<candle_core::tensor::Tensor>",
            "owner": "parameters", "holders": holder, "location": line,
            "age": line.as_ref().map(|_| age(u64::from(60 * rank))),
        })
    };
    let own = serde_json::json!({
        "id": "r900@w0#1794751532", "type_name": "alloc::string::String", "owner": "parameters",
        "holders": ["parameters"], "location": "src/log.rs:3:1", "age": age(7300),
    });
    let mut references: Vec<_> = (0..if rank < 2 { 42 } else { 41 }).map(reference).collect();
    if rank == 0 {
        references.push(own);
    }
    let running = serde_json::json!({
        "function": "train::layers::forward_and_keep", "caller": "trainer1", "age": age(3),
    });
    let waiting = serde_json::json!({
        "function": "train::Layer::apply", "caller": "trainer0", "value": "r1@w0#1794751532",
        "waits_for": "turn", "used_by": ["train::Layer::step"], "age": age(2),
    });
    let published = serde_json::json!({
        "name": "weights", "version": 3, "type_name": "alloc::vec::Vec<candle_core::tensor::Tensor>",
        "owner": "parameters", "value": "r1@w0#1794751532",
    });
    serde_json::json!({
        "names": match rank { 0 => vec![published], _ => Vec::new() },
        "names_in_all": usize::from(rank == 0),
        "version": "0.1.0", "worker": name, "rank": rank, "incarnation": 1_794_751_532, "uptime": age(7384),
        "peers": [peer("parameters", 0), peer("trainer0", 1), peer("trainer1", 2)],
        "references_in_all": references.len(), "references": references,
        "running": [running],
        "waiting": match rank { 0 => vec![waiting], _ => Vec::new() },
        "totals": {
            "calls": 120_000, "calls_failed": 3, "calls_cancelled": 1, "served": 60_000,
            "served_failed": 0, "references_created": 50, "references_shared": 84,
            "values_freed": 8, "bytes_sent": 5_000_000_000_u64, "bytes_received": 4_000_000,
        },
        "open_calls": 4, "contexts": 2, "blocking_queue": 0, "functions": 12,
    })
    .to_string()
}
