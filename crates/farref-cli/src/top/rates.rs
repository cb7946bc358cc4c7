//! How fast the counters of workers grow, from one look to the next.

use std::collections::BTreeMap;
use std::time::Duration;

use farref::{Snapshot, Totals};

use crate::view::quantity;
use crate::view::seen::{self, Seen, States};
use crate::view::table::{Cell, Column, Table};
use crate::view::tables::{bytes, count, name, sum, who, who_was};

/// Rates by rank.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<u32, Counter>);

#[derive(Debug)]
struct Counter {
    incarnation: u32,
    /// The worker's own clock: how long a look takes does not matter.
    uptime: Duration,
    totals: Totals,
    rate: Option<Rate>,
}

/// Per second.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Rate {
    pub(super) calls: f64,
    pub(super) served: f64,
    pub(super) sent: f64,
    pub(super) received: f64,
}

impl Rates {
    pub(super) fn update(&mut self, seen: &[Seen]) {
        // Of those who are silent nothing is known.
        let answers = |rank| {
            seen.iter()
                .any(|one| one.rank == rank && one.snapshot.is_ok())
        };
        self.0.retain(|rank, _| answers(*rank));
        for (rank, snapshot) in seen
            .iter()
            .filter_map(|one| Some((one.rank, one.answer()?)))
        {
            let before = self
                .0
                .get(&rank)
                .filter(|before| before.incarnation == snapshot.incarnation);
            let rate = before.and_then(|before| before.rate_until(snapshot));
            let counter = Counter {
                incarnation: snapshot.incarnation,
                uptime: snapshot.uptime,
                totals: snapshot.totals,
                rate,
            };
            self.0.insert(rank, counter);
        }
    }

    pub(super) fn of(&self, rank: u32) -> Option<Rate> {
        self.0.get(&rank)?.rate
    }

    /// Calls per second, of all workers.
    pub(super) fn calls(&self) -> f64 {
        self.0
            .values()
            .filter_map(|counter| counter.rate)
            .map(|rate| rate.calls)
            .sum()
    }
}

impl Counter {
    fn rate_until(&self, now: &Snapshot) -> Option<Rate> {
        let seconds = now.uptime.checked_sub(self.uptime)?.as_secs_f64();
        if seconds < 0.01 {
            return self.rate;
        }
        let per_second = |before: u64, now: u64| now.saturating_sub(before) as f64 / seconds;
        let (before, now) = (&self.totals, &now.totals);
        Some(Rate {
            calls: per_second(before.calls, now.calls),
            served: per_second(before.served, now.served),
            sent: per_second(before.bytes_sent, now.bytes_sent),
            received: per_second(before.bytes_received, now.bytes_received),
        })
    }
}

/// Who is there, what each has, and how fast it goes.
pub(super) fn table(seen: &[Seen], rates: &Rates) -> Table {
    let mut table = Table::new([
        name("worker"),
        Column::number("rank").spare(5),
        Column::number("life").spare(6),
        Column::word("state"),
        Column::number("uptime"),
        Column::number("open"),
        Column::number("refs"),
        Column::number("ctxs").spare(3),
        Column::number("queued").spare(2),
        Column::number("failed").spare(4),
        Column::number("calls/s"),
        Column::number("served/s"),
        Column::number("sent/s"),
        Column::number("recv/s"),
    ]);
    let states = States::of(seen);
    for one in seen {
        let mut row = who(&states, one);
        match one.answer() {
            Some(snapshot) => {
                let totals = &snapshot.totals;
                row.extend([
                    bytes(sum(snapshot, |peer| peer.queued_bytes as u64)),
                    count(totals.calls_failed.saturating_add(totals.served_failed)),
                ]);
            }
            None => row.extend((0..2).map(|_| Cell::none())),
        }
        match rates.of(one.rank) {
            Some(rate) => row.extend([
                Cell::number(rate.calls, per_second),
                Cell::number(rate.served, per_second),
                Cell::number(rate.sent, quantity::bytes),
                Cell::number(rate.received, quantity::bytes),
            ]),
            None => row.extend((0..4).map(|_| Cell::none())),
        }
        table.push(row);
    }
    for gone in seen::dead(seen) {
        table.push(who_was(gone, 10));
    }
    table
}

/// A rate below ten with one digit after the point, or none if it stands still.
fn per_second(rate: f64) -> String {
    match rate {
        rate if rate < 0.05 => "0".to_owned(),
        rate if rate < 10.0 => format!("{rate:.1}"),
        rate => quantity::count(rate.round()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    #[test]
    fn rates_are_what_was_counted_per_second_of_the_worker() {
        let mut rates = Rates::default();
        let first = samples::group();
        rates.update(&first);
        assert_eq!(rates.of(0), None);
        let second = samples::later(first);
        rates.update(&second);
        let rate = rates.of(0).expect("two looks");
        assert_eq!(
            (rate.calls, rate.served, rate.received),
            (1500.0, 250.0, 0.0)
        );
        assert_eq!(rates.calls(), 4500.0);
    }

    #[test]
    fn a_worker_that_came_back_begins_anew() {
        let mut rates = Rates::default();
        let mut seen = samples::group();
        rates.update(&seen);
        samples::edit(&mut seen[1], |snapshot| {
            snapshot.incarnation += 1;
            snapshot.uptime = Duration::from_secs(1);
            snapshot.totals = Totals::default();
        });
        rates.update(&seen);
        assert_eq!(rates.of(1), None);
        rates.update(&samples::later(seen)[1..2]);
        assert_eq!(rates.of(1).map(|rate| rate.calls), Some(1500.0));
        assert_eq!(rates.of(0), None); // not seen any more
        let mut seen = samples::group();
        seen[1].snapshot = Err("gone".to_owned());
        rates.update(&seen);
        assert_eq!(rates.of(1), None);
    }
}
