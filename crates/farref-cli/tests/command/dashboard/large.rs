//! What the page is told of a large group, without one: the same fields as `dashboard/data.rs` writes, as many rows as it
//! lets through.

use serde_json::{Value, json};

pub(crate) const VIEWS: [&str; 8] = [
    "workers",
    "references",
    "calls",
    "rates",
    "contexts",
    "events",
    "leaks",
    "timeline",
];

/// Answers the page in place of the command.
pub(crate) const FEED: &str = "const fed = arguments[0];
window.fetch = async (url) => {
  const view = new URL(url, location).searchParams.get('view');
  return { ok: true, json: async () => ({ status: fed.status, data: fed[view] }) };
};";

pub(crate) fn group(workers: usize) -> Value {
    let name = |index: usize| format!("worker{}", index % workers);
    let rows = |count: usize, row: &dyn Fn(usize) -> Value| (0..count).map(row).collect::<Vec<_>>();
    let now = 1_800_000_000_000_f64;
    let at = |index: usize| now + index as f64 * 1000.0;
    let moments = rows(300, &|index| {
        json!({"at": at(index), "calls": index * 7, "failed": 1, "sent": index * 1000, "received": 5,
               "references": 8000, "open_calls": 300, "rate": index, "median": 0.5, "p99": index})
    });
    json!({
        "status": {"address": "here:1", "at": now, "interval": 0.5, "lost": null, "workers": workers,
                   "answers": workers, "dead": 0, "waiting": 500, "cycles": 0},
        "workers": {"workers": rows(workers, &|index| json!({
            "name": name(index), "rank": index, "state": "alive", "error": null, "life": 1, "version": "0.1.0",
            "uptime": 7200, "open_calls": 3, "running": 2, "waiting": 1, "references": 40, "contexts": 1,
            "blocking": 0, "calls": 120_000, "served": 60_000, "failed": 3, "sent": 5_000_000_000_u64,
            "received": 4_000_000, "queued": 3000, "held_back": 0,
        }))},
        "references": {
            "all": 8000, "found": 8000, "unseen": 100, "all_edges": 7000, "all_groups": 7500,
            "nodes": rows(workers, &|index| json!({"name": name(index), "owns": index % 50, "holds": 40})),
            "edges": rows(400, &|index| json!({
                "holder": name(index * 7), "owner": name(index * 13 + 1), "count": 400 - index, "oldest": 60,
            })),
            "groups": rows(500, &|index| json!({
                "count": 1, "oldest": 60, "key": ["Tensor", name(index), name(index + 1), format!("src/main.rs:{index}")],
            })),
        },
        "calls": {
            "all_running": 400, "all_waiting": 500, "all_pairs": 600, "cycles": [],
            "running": rows(400, &|index| json!({
                "function": "train::step", "worker": name(index), "caller": name(index + 1), "value": null, "age": 0.5,
            })),
            "waiting": rows(500, &|index| json!({
                "function": "train::apply", "worker": name(index), "caller": name(index + 1), "value": "r1@w0", "age": 2,
                "waits_for": "its turn", "used_by": ["train::step"], "mark": "blocked", "cycle": null,
            })),
            "pairs": rows(500, &|index| json!({"from": name(index), "to": name(index + 1), "unanswered": 2, "held_back": 0})),
        },
        "rates": {
            "moments": moments,
            "functions": rows(200, &|index| json!({
                "function": format!("train::function{index}"), "calls": 1000, "failed": 0, "rate": 5, "mean": 1.5,
                "median": 1, "p99": 8, "moments": if index < 12 { json!(moments) } else { Value::Null },
            })),
        },
        "contexts": {"parts": 200, "all": 100, "contexts": rows(100, &|index| json!({
            "id": format!("c{index}@w0"), "opened_by": name(index), "age": 3,
            "workers": (0..10).map(|other| name(index + other)).collect::<Vec<_>>(),
            "notes": [{"worker": name(index), "note": "passes: 1, sent: 2"}],
        }))},
        "events": {"events": rows(500, &|index| json!({
            "at": at(index), "change": "joined", "worker": name(index), "rank": index % workers, "life": 1,
        }))},
        "leaks": {"lines": rows(200, &|index| json!({
            "line": format!("src/layer.rs:{index}:7"), "count": 40, "oldest": 600, "types": ["Tensor"],
            "owners": [name(index)], "holders": [name(index + 1)], "history": [1, 2, 3, 4, 5, 6], "grows": true,
        }))},
        "timeline": {"seen": 20_000, "missed": 5, "running": [], "spans": rows(1500, &|index| json!({
            "worker": name(index), "rank": index % workers, "function": format!("train::function{}", index % 9),
            "caller": name(index + 1), "at": at(0) + index as f64, "took": 12, "failed": index % 50 == 0,
            "trace": format!("{:016x}", index / 5 + 1), "span": format!("{index:016x}"),
            "parent": (index % 5 != 0).then(|| format!("{:016x}", index - 1)),
        }))},
    })
}
