//! What the workers have counted, as families of series: for whoever collects them.
//!
//! The names are those that a worker gives its own recorder, and mean the same.

use std::collections::HashSet;

use farref::{FunctionTotals, PeerSnapshot, Snapshot};

use super::state::State;
use crate::view::tables;

/// The classes whose bounds are told: every fourth, from 1 µs to 17 s. All of them would be too many lines.
const CLASSES: [usize; 7] = [0, 4, 8, 12, 16, 20, 24];

/// What a series is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// It only grows.
    Counter,
    Gauge,
    Histogram,
}

/// Series of one name.
#[derive(Debug)]
pub(super) struct Family<'a> {
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) points: Vec<Point<'a>>,
}

/// The last value of a series.
#[derive(Debug)]
pub(super) struct Point<'a> {
    pub(super) worker: &'a str,
    pub(super) function: Option<&'a str>,
    pub(super) value: Number,
}

#[derive(Clone, PartialEq, Debug)]
pub(super) enum Number {
    Plain(f64),
    Spread(Spread),
}

/// How values are spread.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Spread {
    pub(super) count: u64,
    pub(super) sum: f64,
    /// How many are above the bound before and at most this one, in seconds.
    pub(super) buckets: Vec<(f64, u64)>,
}

impl Spread {
    fn of(totals: &FunctionTotals) -> Self {
        let mut first = 0;
        let buckets = CLASSES.iter().filter_map(|&last| {
            let classes = totals.classes.iter().take(last + 1).skip(first);
            let count = classes.fold(0_u64, |sum, class| sum.saturating_add(*class));
            first = last + 1;
            Some((FunctionTotals::bound(last)?.as_secs_f64(), count))
        });
        Self {
            count: totals.calls(),
            sum: totals.time.as_secs_f64(),
            buckets: buckets.collect(),
        }
    }
}

type OfSnapshot = fn(&Snapshot) -> f64;

const OF_WORKERS: [(&str, Kind, &str, OfSnapshot); 18] = {
    use Kind::{Counter, Gauge};
    [
        ("farref_calls_total", Counter, "Calls made.", |one| {
            one.totals.calls as f64
        }),
        (
            "farref_calls_failed_total",
            Counter,
            "Calls that brought an error.",
            |one| one.totals.calls_failed as f64,
        ),
        (
            "farref_calls_cancelled_total",
            Counter,
            "Calls that the program dropped.",
            |one| one.totals.calls_cancelled as f64,
        ),
        (
            "farref_references_created_total",
            Counter,
            "References made.",
            |one| one.totals.references_created as f64,
        ),
        (
            "farref_references_shared_total",
            Counter,
            "References sent along with calls and answers.",
            |one| one.totals.references_shared as f64,
        ),
        (
            "farref_values_freed_total",
            Counter,
            "Values that nobody referred to any more.",
            |one| one.totals.values_freed as f64,
        ),
        (
            "farref_bytes_sent_total",
            Counter,
            "Bytes written.",
            |one| one.totals.bytes_sent as f64,
        ),
        (
            "farref_bytes_received_total",
            Counter,
            "Bytes read.",
            |one| one.totals.bytes_received as f64,
        ),
        (
            "farref_references",
            Gauge,
            "References owned or held.",
            |one| one.references_in_all as f64,
        ),
        (
            "farref_contexts",
            Gauge,
            "Autograd contexts that are open.",
            |one| f64::from(one.contexts),
        ),
        (
            "farref_open_calls",
            Gauge,
            "Calls in either direction that are not answered.",
            |one| f64::from(one.open_calls),
        ),
        (
            "farref_running_calls",
            Gauge,
            "Functions that run for others.",
            |one| one.running.len() as f64,
        ),
        (
            "farref_waiting_calls",
            Gauge,
            "Calls that have arrived and wait.",
            |one| one.waiting.len() as f64,
        ),
        (
            "farref_blocking_queue",
            Gauge,
            "Plain functions that wait for a thread.",
            |one| one.blocking_queue as f64,
        ),
        (
            "farref_queued_bytes",
            Gauge,
            "Bytes that peers have not acknowledged.",
            |one| sum(one, |peer| peer.queued_bytes),
        ),
        (
            "farref_calls_held_back",
            Gauge,
            "Calls that wait because the peer has enough to do.",
            |one| sum(one, |peer| peer.calls_held_back),
        ),
        (
            "farref_connections",
            Gauge,
            "Peers with a connection.",
            |one| sum(one, |peer| usize::from(peer.transport.is_some())),
        ),
        (
            "farref_uptime_seconds",
            Gauge,
            "How long the worker has been there.",
            |one| one.uptime.as_secs_f64(),
        ),
    ]
};

fn sum(snapshot: &Snapshot, of: fn(&PeerSnapshot) -> usize) -> f64 {
    tables::sum(snapshot, |peer| of(peer) as u64) as f64
}

/// All that is known of the workers that answer.
pub(super) fn families(state: &State) -> Vec<Family<'_>> {
    let answering = || {
        let seen = state.seen.iter();
        seen.filter_map(|one| Some((&*one.name, one.answer()?)))
    };
    let is_up = |worker, is_up: bool| Point {
        worker,
        function: None,
        value: Number::Plain(f64::from(u8::from(is_up))),
    };
    let known: HashSet<&str> = state.seen.iter().map(|one| &*one.name).collect();
    let seen = state.seen.iter();
    let seen = seen.map(|one| is_up(&*one.name, one.snapshot.is_ok() && state.lost.is_none()));
    // Nobody looks at those any more, and whoever waits for a death would never hear of it.
    let dead = state.membership.dead().filter(|name| !known.contains(name));
    let up = seen.chain(dead.map(|name| is_up(name, false)));
    let mut families = vec![Family {
        name: "farref_up",
        help: "Whether the worker answers who looks; 0 also of one that has died, until it comes back.",
        kind: Kind::Gauge,
        points: up.collect(),
    }];
    families.extend(OF_WORKERS.iter().map(|(name, kind, help, of)| {
        Family {
            name,
            help,
            kind: *kind,
            points: answering()
                .map(|(worker, snapshot)| Point {
                    worker,
                    function: None,
                    value: Number::Plain(of(snapshot)),
                })
                .collect(),
        }
    }));
    type OfFunction = fn(&FunctionTotals) -> Number;
    let of_functions: [(&str, Kind, &str, OfFunction); 3] = [
        (
            "farref_served_total",
            Kind::Counter,
            "Calls carried out for others.",
            |one| Number::Plain(one.calls() as f64),
        ),
        (
            "farref_served_failed_total",
            Kind::Counter,
            "Those of them that failed.",
            |one| Number::Plain(one.failed as f64),
        ),
        (
            "farref_serve_seconds",
            Kind::Histogram,
            "From the arrival of a call to its end.",
            |one| Number::Spread(Spread::of(one)),
        ),
    ];
    for (name, kind, help, of) in of_functions {
        let points = answering().flat_map(|(worker, snapshot)| {
            snapshot.served.iter().map(move |one| Point {
                worker,
                function: Some(&one.function),
                value: of(one),
            })
        });
        families.push(Family {
            name,
            help,
            kind,
            points: points.collect(),
        });
    }
    families
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    #[test]
    fn every_call_is_in_one_bucket_or_beyond_all_of_them() {
        let mut classes = [1; 27];
        classes[26] = 5;
        let totals = samples::served("f", 2, &classes);
        let spread = Spread::of(&totals[0]);
        assert_eq!((spread.count, spread.sum), (31, 1.0));
        let counts: Vec<u64> = spread.buckets.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [1, 4, 4, 4, 4, 4, 4]);
        assert_eq!(spread.buckets[0].0, 1e-6);
    }

    /// Who waits for a death looks for a zero, and not for what is not there.
    #[test]
    fn who_has_died_is_down_until_it_comes_back() {
        let mut state = State::new("here:1", std::time::Duration::from_secs(1));
        let mut look = |seen: &[crate::view::seen::Seen], at| {
            state.update(crate::view::fetch::Update::Seen(seen.to_vec()), at);
            let families = families(&state);
            let up = families.iter().find(|one| one.name == "farref_up");
            let points = up.expect("it is there").points.iter();
            let up = points.map(|one| (one.worker.to_owned(), one.value.clone()));
            up.collect::<Vec<_>>()
        };
        let [up, down] = [1.0, 0.0].map(Number::Plain);
        let all = samples::group();
        assert_eq!(look(&all, 1.0)[2], ("trainer1".to_owned(), up));
        let mut others = all.clone();
        others.pop();
        for (at, status, expected) in [
            (2.0, "dead", vec![("trainer1".to_owned(), down)]),
            (3.0, "left", Vec::new()),
        ] {
            for one in &mut others {
                samples::edit(one, |snapshot| {
                    snapshot.peers[2].incarnation += 1;
                    snapshot.peers[2].status = status.to_owned();
                });
            }
            assert_eq!(look(&others, at)[2..], expected, "{status}");
        }
        assert_eq!(look(&all, 4.0).len(), 3);
    }

    /// Whatever a worker says, it is shown.
    #[test]
    fn absurd_numbers_are_as_large_as_numbers_get() {
        let totals = samples::served("f", u64::MAX, &[u64::MAX; 27]);
        let spread = Spread::of(&totals[0]);
        assert_eq!(spread.count, u64::MAX);
        let mut seen = samples::group();
        for one in &mut seen {
            samples::edit(one, |snapshot| {
                snapshot.served = totals.clone();
                snapshot.recorded = u64::MAX;
                snapshot.references_in_all = usize::MAX;
                snapshot.blocking_queue = usize::MAX;
                for peer in &mut snapshot.peers {
                    peer.queued_bytes = usize::MAX;
                    peer.calls_held_back = usize::MAX;
                    peer.calls_made = usize::MAX;
                }
            });
        }
        let mut state = State::new("here:1", std::time::Duration::from_secs(1));
        for at in [1.0, 2.0] {
            state.update(crate::view::fetch::Update::Seen(seen.clone()), at);
        }
        assert!(families(&state).len() > 18);
        let text = super::super::prometheus::write(&families(&state));
        assert!(text.contains("farref_serve_seconds_count"), "{text}");
        for view in ["workers", "references", "calls", "rates"] {
            assert!(
                super::super::data::view(&state, view, "").is_some(),
                "{view}"
            );
        }
        let told = super::super::otlp::told(&state).to_string();
        assert!(told.contains("farref_serve_seconds"), "{told}");
    }
}
