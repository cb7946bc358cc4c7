//! What became of all calls and of all values.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::history::{Event, Life, Outcome, Record};

/// What became of all calls.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Calls {
    pub(super) made: u64,
    /// Functions that ran, those of calls that were made in turn among them.
    pub(super) ran: u64,
    pub(super) brought_values: u64,
    /// Failed as they were asked to.
    pub(super) refused: u64,
    pub(super) dropped: u64,
    /// Ended with an error, by kind.
    pub(super) failed: BTreeMap<&'static str, u64>,
}

/// And of all values.
#[derive(Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Values {
    pub(super) made: u64,
    pub(super) used: u64,
    pub(super) freed: u64,
    /// Not freed: they were gone with the process of their worker, before it was told to let go of everything.
    pub(super) gone: u64,
    /// How often a worker has kept a reference.
    pub(super) kept: u64,
}

pub(super) fn calls(records: &[Record]) -> Calls {
    let mut calls = Calls::default();
    for record in records {
        match &record.event {
            Event::Begun { .. } => calls.made += 1,
            Event::Ran { .. } => calls.ran += 1,
            Event::Ended { outcome, .. } => match outcome {
                Outcome::Value(_) => calls.brought_values += 1,
                Outcome::Refusal(_) => calls.refused += 1,
                Outcome::Dropped => calls.dropped += 1,
                Outcome::Failed(trouble) => {
                    *calls.failed.entry(trouble.kind.name()).or_default() += 1;
                }
            },
            _ => {}
        }
    }
    calls
}

pub(super) fn values(records: &[Record]) -> Values {
    let mut values = Values::default();
    let mut there = BTreeMap::<u64, Life>::new();
    let mut settled = BTreeSet::<Life>::new();
    for record in records {
        match record.event {
            Event::Made { value } => {
                values.made += 1;
                there.insert(value, record.life);
            }
            Event::Used { .. } => values.used += 1,
            Event::Freed { value } => {
                values.freed += 1;
                there.remove(&value);
            }
            Event::Kept { .. } => values.kept += 1,
            Event::Settled(_) => {
                settled.insert(record.life);
            }
            _ => {}
        }
    }
    let gone = there.values().filter(|life| !settled.contains(life));
    values.gone = gone.count() as u64;
    values
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Sample;

    #[test]
    fn values_are_freed_or_gone_with_their_worker_or_left() {
        let record = |at, life, event| Record { at, life, event };
        let mut records = Vec::new();
        for (life, value) in [(1, 7), (1, 8), (2, 9)] {
            records.push(record(20, life, Event::Made { value }));
        }
        records.push(record(90, 1, Event::Freed { value: 7 }));
        records.push(record(600, 1, Event::Settled(Sample::default())));
        let values = values(&records);
        assert_eq!((values.made, values.freed, values.gone), (3, 1, 1));
    }
}
