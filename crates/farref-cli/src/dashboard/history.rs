//! How fast everything went, over the last minutes: of the group and of each function.

use std::collections::{BTreeMap, VecDeque};

use farref::{FunctionTotals, Snapshot, Totals};
use serde::Serialize;

use crate::view::seen::Seen;

/// How many moments are kept.
pub(super) const MOMENTS: usize = 300;
/// How many functions have a history.
const FUNCTIONS: usize = 200;

/// Rates of the whole group, and what some hold, at one moment.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct Moment {
    /// Milliseconds since 1970.
    pub(super) at: f64,
    pub(super) calls: f64,
    pub(super) failed: f64,
    pub(super) sent: f64,
    pub(super) received: f64,
    pub(super) references: f64,
    pub(super) open_calls: f64,
}

/// What a function did in the time before a moment.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub(super) struct FunctionMoment {
    pub(super) at: f64,
    /// Calls per second.
    pub(super) rate: f64,
    /// In milliseconds; none if there were no calls.
    pub(super) median: Option<f64>,
    pub(super) p99: Option<f64>,
}

/// A function of the group.
#[derive(Default)]
pub(super) struct FunctionHistory {
    /// Since the workers began, of all of them that are there.
    pub(super) totals: Option<FunctionTotals>,
    pub(super) moments: VecDeque<FunctionMoment>,
}

/// The last minutes.
#[derive(Default)]
pub(super) struct History {
    /// By rank: which life, and what it had counted.
    before: BTreeMap<u32, Counted>,
    pub(super) moments: VecDeque<Moment>,
    pub(super) functions: BTreeMap<String, FunctionHistory>,
}

struct Counted {
    life: u32,
    uptime: f64,
    totals: Totals,
    served: BTreeMap<String, FunctionTotals>,
}

impl History {
    pub(super) fn update(&mut self, seen: &[Seen], at: f64) {
        let mut moment = Moment {
            at,
            ..Moment::default()
        };
        let mut grown: BTreeMap<&str, (f64, FunctionTotals)> = BTreeMap::new();
        let mut totals: BTreeMap<&str, FunctionTotals> = BTreeMap::new();
        let mut is_known = false;
        for snapshot in seen.iter().filter_map(Seen::answer) {
            moment.references += snapshot.references_in_all as f64;
            moment.open_calls += f64::from(snapshot.open_calls);
            for function in &snapshot.served {
                add(totals.entry(&function.function), function);
            }
            let before = self.before.get(&snapshot.rank);
            let before = before.filter(|before| before.life == snapshot.incarnation);
            let Some(before) = before else { continue };
            let seconds = snapshot.uptime.as_secs_f64() - before.uptime;
            if seconds < 0.01 {
                continue;
            }
            is_known = true;
            moment.add(&before.totals, &snapshot.totals, seconds);
            for function in &snapshot.served {
                let since = since(function, before.served.get(&function.function));
                let rate = since.calls() as f64 / seconds;
                let entry = grown.entry(&function.function);
                let sum = entry.or_insert_with(|| (0.0, empty(function)));
                sum.0 += rate;
                put_together(&mut sum.1, &since);
            }
        }
        if is_known {
            push(&mut self.moments, moment);
        }
        self.note_functions(at, is_known, &grown, totals);
        self.before = seen
            .iter()
            .filter_map(Seen::answer)
            .map(|snapshot| (snapshot.rank, Counted::of(snapshot)))
            .collect();
    }

    fn note_functions(
        &mut self,
        at: f64,
        is_known: bool,
        grown: &BTreeMap<&str, (f64, FunctionTotals)>,
        totals: BTreeMap<&str, FunctionTotals>,
    ) {
        self.functions
            .retain(|name, _| totals.contains_key(&**name));
        for (name, totals) in totals {
            if !self.functions.contains_key(name) && self.functions.len() >= FUNCTIONS {
                continue;
            }
            let function = self.functions.entry(name.to_owned()).or_default();
            function.totals = Some(totals);
            if is_known {
                let (rate, since) = match grown.get(name) {
                    Some((rate, since)) => (*rate, Some(since)),
                    None => (0.0, None),
                };
                let share = |share| milliseconds(since?, share);
                let moment = FunctionMoment {
                    at,
                    rate,
                    median: share(0.5),
                    p99: share(0.99),
                };
                push(&mut function.moments, moment);
            }
        }
    }
}

impl Counted {
    fn of(snapshot: &Snapshot) -> Self {
        let served = snapshot.served.iter();
        Self {
            life: snapshot.incarnation,
            uptime: snapshot.uptime.as_secs_f64(),
            totals: snapshot.totals,
            served: served
                .map(|one| (one.function.clone(), one.clone()))
                .collect(),
        }
    }
}

impl Moment {
    fn add(&mut self, before: &Totals, now: &Totals, seconds: f64) {
        let rate = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        self.calls += rate(before.calls, now.calls);
        self.failed += rate(before.calls_failed, now.calls_failed);
        self.sent += rate(before.bytes_sent, now.bytes_sent);
        self.received += rate(before.bytes_received, now.bytes_received);
    }
}

/// What share of the calls took at most, in milliseconds. Those beyond all bounds took more than the last one.
pub(super) fn milliseconds(totals: &FunctionTotals, share: f64) -> Option<f64> {
    if totals.calls() == 0 {
        return None;
    }
    let took = totals.took_at_most(share);
    Some(took.map_or(60_000.0, |took| took.as_secs_f64() * 1000.0))
}

fn push<T>(moments: &mut VecDeque<T>, moment: T) {
    if moments.len() == MOMENTS {
        moments.pop_front();
    }
    moments.push_back(moment);
}

fn empty(like: &FunctionTotals) -> FunctionTotals {
    let mut empty = like.clone();
    empty.failed = 0;
    empty.time = Default::default();
    empty.classes.clear();
    empty
}

fn add(
    entry: std::collections::btree_map::Entry<'_, &str, FunctionTotals>,
    totals: &FunctionTotals,
) {
    put_together(entry.or_insert_with(|| empty(totals)), totals);
}

fn put_together(sum: &mut FunctionTotals, more: &FunctionTotals) {
    sum.failed = sum.failed.saturating_add(more.failed);
    sum.time = sum.time.saturating_add(more.time);
    let most = sum.classes.len().max(more.classes.len());
    sum.classes.resize(most, 0);
    for (sum, more) in sum.classes.iter_mut().zip(&more.classes) {
        *sum = sum.saturating_add(*more);
    }
}

/// What has come since.
fn since(now: &FunctionTotals, before: Option<&FunctionTotals>) -> FunctionTotals {
    let mut since = now.clone();
    if let Some(before) = before {
        since.failed = since.failed.saturating_sub(before.failed);
        since.time = since.time.saturating_sub(before.time);
        for (since, before) in since.classes.iter_mut().zip(&before.classes) {
            *since = since.saturating_sub(*before);
        }
    }
    since
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    fn with_served(seen: &mut [Seen], classes: &[u64]) {
        for one in seen {
            samples::edit(one, |snapshot| {
                snapshot.served = samples::served("train::step", 1, classes);
            });
        }
    }

    #[test]
    fn rates_are_those_of_all_workers_between_two_looks() {
        let mut history = History::default();
        let mut seen = samples::group();
        with_served(&mut seen, &[0, 5]);
        history.update(&seen, 1.0);
        assert!(history.moments.is_empty()); // nothing to compare with
        let mut later = samples::later(seen);
        with_served(&mut later, &[0, 15, 0, 1]);
        history.update(&later, 2.0);
        let moment = history.moments[0];
        assert_eq!((moment.at, moment.calls), (2.0, 4500.0));
        let function = &history.functions["train::step"];
        let moment = function.moments[0];
        assert_eq!(moment.rate, 33.0);
        assert_eq!((moment.median, moment.p99), (Some(0.002), Some(0.008)));
        assert_eq!(
            function.totals.as_ref().map(FunctionTotals::calls),
            Some(48)
        );
    }

    #[test]
    fn another_life_begins_anew_and_nothing_grows_without_end() {
        let mut history = History::default();
        let mut seen = samples::group();
        for round in 0..MOMENTS + 10 {
            seen = samples::later(seen);
            history.update(&seen, round as f64);
        }
        assert_eq!(history.moments.len(), MOMENTS);
        for one in &mut seen {
            samples::edit(one, |snapshot| {
                snapshot.incarnation += 1;
                snapshot.totals.calls = 0;
            });
        }
        let count = history.moments.back().map(|moment| moment.at);
        history.update(&seen, 1e6);
        assert_eq!(history.moments.back().map(|moment| moment.at), count);
    }
}
