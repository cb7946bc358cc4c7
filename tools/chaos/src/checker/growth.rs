//! Processes that grow: CK-11.
//!
//! The workload is the same from beginning to end, and what a worker keeps is bounded, so the middle of the second quarter of its
//! life is held against the middle of the last one. What is new in the first quarter (pools, caches, the allocator's) does not count.

use std::collections::BTreeMap;

use super::Violation;
use crate::history::{Event, Life, Record, Sample};

/// A life with fewer samples says nothing.
const LEAST: usize = 80;

/// What is counted, how, and how much of it there may be in the end: so many halves of what there was, and so much besides.
type Counted = (&'static str, fn(&Sample) -> u64, u64, u64);

const COUNTED: [Counted; 4] = [
    ("KiB of memory", |sample| sample.memory, 3, 96 << 10),
    ("references", |sample| sample.references, 4, 400),
    ("open calls", |sample| sample.open_calls, 4, 200),
    ("values", |sample| sample.values, 4, 400),
];

/// What grows, and how many lives were long enough to say.
pub(super) fn check(records: &[Record]) -> (Vec<Violation>, u32) {
    let mut lives = BTreeMap::<Life, Vec<(u64, Sample)>>::new();
    for record in records {
        if let Event::Sampled(sample) = record.event {
            let samples = lives.entry(record.life).or_default();
            samples.push((record.at, sample));
        }
    }
    let mut violations = Vec::new();
    let mut long_enough = 0;
    for (life, samples) in lives.into_iter().filter(|(_, all)| all.len() >= LEAST) {
        long_enough += 1;
        let quarter = samples.len() / 4;
        let (early, late) = (&samples[quarter..2 * quarter], &samples[3 * quarter..]);
        for (what, count, halves, besides) in COUNTED {
            let [before, after] = [early, late].map(|part| middle(part, count));
            if after > before * halves / 2 + besides {
                violations.push(Violation {
                    rule: "CK-11",
                    at: samples[samples.len() - 1].0,
                    life,
                    text: format!("life {life} has grown from {before} to {after} {what}"),
                });
            }
        }
    }
    (violations, long_enough)
}

fn middle(samples: &[(u64, Sample)], count: fn(&Sample) -> u64) -> u64 {
    let mut counts: Vec<u64> = samples.iter().map(|(_, sample)| count(sample)).collect();
    counts.sort_unstable();
    counts.get(counts.len() / 2).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::super::testing::Run;
    use super::*;

    fn sampled(count: u64, sample: impl Fn(u64) -> Sample) -> Run {
        let mut run = Run::new();
        for n in 0..count {
            run.note(500 * n, 1, Event::Sampled(sample(n)));
        }
        run
    }

    #[test]
    fn ck_11_whatever_grows_and_grows_is_found() {
        type Grown = fn(u64) -> Sample;
        let grown: [Grown; 4] = [
            |n| Sample {
                memory: 20_000 + 1_000 * n,
                ..Sample::default()
            },
            |n| Sample {
                references: 10 * n,
                ..Sample::default()
            },
            |n| Sample {
                open_calls: 10 * n,
                ..Sample::default()
            },
            |n| Sample {
                values: 10 * n,
                ..Sample::default()
            },
        ];
        for sample in grown {
            assert_eq!(sampled(400, sample).broken(), ["CK-11"]);
            assert_eq!(check(&sampled(400, sample).0).1, 1);
            // Too short to say.
            assert_eq!(check(&sampled(79, sample).0), (Vec::new(), 0));
            assert!(sampled(79, sample).broken().is_empty());
        }
    }

    #[test]
    fn what_goes_up_and_down_or_grows_only_in_the_beginning_does_not_grow() {
        let run = sampled(400, |n| Sample {
            memory: 20_000 + 5_000 * n.min(60) + 900 * (n % 7),
            references: 30 + 50 * (n % 3),
            ..Sample::default()
        });
        assert!(run.broken().is_empty());
    }
}
