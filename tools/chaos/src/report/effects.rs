//! Which errors came around which fault.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::history::{Event, Expected, Life, Outcome, Record};
use crate::plan::recovery;
use crate::trouble::Kind;

/// All errors of a run, by time.
#[derive(Debug)]
pub(super) struct Effects {
    errors: Vec<Failed>,
    recovery: u64,
}

#[derive(Debug)]
struct Failed {
    at: u64,
    kind: Kind,
    /// Who called, who was called, who is named.
    workers: Vec<String>,
}

impl Effects {
    pub(super) fn of(records: &[Record], peer_timeout: Duration) -> Self {
        let mut workers = BTreeMap::<Life, &str>::new();
        let mut begun = BTreeMap::<u64, &str>::new();
        let mut errors = Vec::new();
        for record in records {
            match &record.event {
                Event::Started { life, worker, .. } => {
                    workers.insert(*life, worker);
                }
                // What is to be late is no effect of anything.
                Event::Begun {
                    call, to, expects, ..
                } if *expects != Expected::Timeout => {
                    begun.insert(*call, to);
                }
                Event::Ended { call, outcome } => {
                    let (Some(to), Outcome::Failed(trouble)) = (begun.remove(call), outcome) else {
                        continue;
                    };
                    let caller = workers.get(&record.life).copied();
                    let named = trouble.worker.as_deref();
                    let all = [caller, Some(to), named].into_iter().flatten();
                    errors.push(Failed {
                        at: record.at,
                        kind: trouble.kind,
                        workers: all.map(str::to_owned).collect(),
                    });
                }
                _ => {}
            }
        }
        Self {
            errors,
            recovery: recovery(peer_timeout).as_micros() as u64,
        }
    }

    /// Errors that have to do with a worker, from one moment to another and a while after it. Losses among them only if it may be
    /// lost: they are of another fault then, or break a rule, which is told elsewhere.
    pub(super) fn around(
        &self,
        worker: &str,
        from: u64,
        to: u64,
        loses: bool,
    ) -> BTreeMap<&'static str, u64> {
        let to = to + self.recovery;
        let first = self.errors.partition_point(|error| error.at < from);
        let errors = self.errors[first..].iter();
        let mut kinds = BTreeMap::new();
        for error in errors.take_while(|error| error.at <= to) {
            let is_involved = error.workers.iter().any(|involved| involved == worker);
            if is_involved && (loses || !error.kind.is_of_a_loss()) {
                *kinds.entry(error.kind.name()).or_default() += 1;
            }
        }
        kinds
    }

    /// How many errors there were in each second of a run, from its beginning.
    pub(super) fn by_second(&self, began: u64) -> Vec<u64> {
        let mut seconds = Vec::new();
        for error in &self.errors {
            let second = (error.at.saturating_sub(began) / 1_000_000) as usize;
            if seconds.len() <= second {
                seconds.resize(second + 1, 0);
            }
            seconds[second] += 1;
        }
        seconds
    }
}
