//! What is said of a run: as a summary, as JSON and as a page.

mod advice;
mod counts;
mod effects;
mod page;
mod summary;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;

use super::arguments::Arguments;
use super::checker::{Findings, Violation};
use super::driver::{self, Early};
use super::history::{Event, Life, Record};
use counts::{Calls, Values, calls, values};
use effects::Effects;

/// A run and what came of it.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Of farref.
    version: &'static str,
    /// Whether no rule was broken.
    pub(super) ok: bool,
    /// What does the same again.
    command: String,
    /// Where the histories are, if they were kept.
    pub(super) histories: Option<PathBuf>,
    pub(super) seed: u64,
    workers: u32,
    python: u32,
    tls: bool,
    /// How long they were to work, how long they did, and how long all of it took.
    seconds: u64,
    load_seconds: f64,
    took_seconds: f64,
    /// Why they worked for less time than they were to.
    ended_early: Option<Early>,
    faults_per_second: f64,
    operations_per_second: u32,
    peer_timeout_seconds: u64,
    /// How many faults there were of each kind.
    faults: BTreeMap<String, u32>,
    /// How many there would have been besides: by the plan nobody was left for them; their worker was not there.
    faults_left_out: u32,
    faults_skipped: u32,
    connections_cut: u64,
    calls: Calls,
    values: Values,
    /// How many times the machine stood still for so long that workers may have seemed dead.
    stalls: u32,
    /// How many times a worker did not get to run for so long, though nobody had stopped it.
    silences: u32,
    /// How many lives were long enough to look for growth in them (CK-11).
    growth_lives: u32,
    lives: Vec<LifeEntry>,
    timeline: Vec<FaultEntry>,
    /// How many calls ended with an error, in each second since the beginning. Those that were meant to be late are not among them.
    errors_per_second: Vec<u64>,
    violations: Vec<ViolationEntry>,
    /// When the first record was written, in microseconds of the histories' clock: to find a time of this report there.
    began: u64,
}

/// One process. Times are in seconds since the beginning.
#[derive(Debug, PartialEq, Serialize)]
struct LifeEntry {
    life: Life,
    worker: String,
    started: f64,
    joined: Option<f64>,
    ended: Option<f64>,
    /// `killed`, or its exit code.
    how: Option<String>,
    /// The most memory that it had, in KiB, by what it noted itself.
    peak_memory_kib: u64,
}

/// What must not be, and was, in seconds since the beginning.
#[derive(Debug, PartialEq, Serialize)]
struct ViolationEntry {
    rule: &'static str,
    at: f64,
    life: Life,
    text: String,
}

/// A fault, and which errors came while it lasted and for as long after it as it may have been why.
#[derive(Debug, PartialEq, Serialize)]
struct FaultEntry {
    at: f64,
    until: Option<f64>,
    worker: String,
    life: Life,
    kind: String,
    text: String,
    /// Whether its worker may be lost by it. If not, no losses are among the errors.
    loses: bool,
    errors: BTreeMap<&'static str, u64>,
}

impl Report {
    pub(super) fn new(
        arguments: &Arguments,
        seed: u64,
        faults_left_out: u32,
        outcome: driver::Outcome,
        took: Duration,
        records: &[Record],
        findings: Findings,
    ) -> Self {
        let began = records.first().map_or(0, |record| record.at);
        let effects = Effects::of(records, arguments.peer_timeout());
        let timeline = timeline(records, began, &effects);
        let mut faults = BTreeMap::new();
        for fault in &timeline {
            *faults.entry(fault.kind.clone()).or_default() += 1;
        }
        let is_stall = |record: &&Record| matches!(record.event, Event::Stalled { .. });
        let violations = findings.violations.into_iter();
        let violations: Vec<_> = violations.map(|one| entry(one, began)).collect();
        Self {
            version: env!("CARGO_PKG_VERSION"),
            ok: violations.is_empty(),
            command: arguments.again(seed),
            histories: None,
            seed,
            workers: arguments.workers,
            python: arguments.python,
            tls: arguments.tls,
            seconds: arguments.seconds,
            load_seconds: outcome.load.as_secs_f64(),
            took_seconds: took.as_secs_f64(),
            ended_early: outcome.early,
            faults_per_second: arguments.faults_per_second,
            operations_per_second: arguments.operations_per_second,
            peer_timeout_seconds: arguments.peer_timeout,
            faults,
            faults_left_out,
            faults_skipped: outcome.skipped,
            connections_cut: outcome.cuts,
            calls: calls(records),
            values: values(records),
            stalls: records.iter().filter(is_stall).count() as u32,
            silences: findings.silences,
            growth_lives: findings.growth_lives,
            lives: lives(records, began),
            timeline,
            errors_per_second: effects.by_second(began),
            violations,
            began,
        }
    }
}

fn seconds(at: u64, began: u64) -> f64 {
    at.saturating_sub(began) as f64 / 1e6
}

fn entry(violation: Violation, began: u64) -> ViolationEntry {
    ViolationEntry {
        rule: violation.rule,
        at: seconds(violation.at, began),
        life: violation.life,
        text: violation.text,
    }
}

fn lives(records: &[Record], began: u64) -> Vec<LifeEntry> {
    let mut lives = BTreeMap::<Life, LifeEntry>::new();
    for record in records {
        let at = seconds(record.at, began);
        match &record.event {
            Event::Started { life, worker, .. } => {
                let entry = LifeEntry {
                    life: *life,
                    worker: worker.clone(),
                    started: at,
                    joined: None,
                    ended: None,
                    how: None,
                    peak_memory_kib: 0,
                };
                lives.insert(*life, entry);
            }
            Event::Joined { .. } => {
                if let Some(entry) = lives.get_mut(&record.life) {
                    entry.joined = Some(at);
                }
            }
            Event::Sampled(sample) => {
                if let Some(entry) = lives.get_mut(&record.life) {
                    entry.peak_memory_kib = entry.peak_memory_kib.max(sample.memory);
                }
            }
            Event::Gone { life, killed, code } => {
                if let Some(entry) = lives.get_mut(life) {
                    entry.ended = Some(at);
                    entry.how = Some(match (killed, code) {
                        (true, _) => "killed".to_owned(),
                        (false, Some(code)) => format!("ended with {code}"),
                        (false, None) => "ended by a signal".to_owned(),
                    });
                }
            }
            _ => {}
        }
    }
    lives.into_values().collect()
}

fn timeline(records: &[Record], began: u64, effects: &Effects) -> Vec<FaultEntry> {
    let mut over = BTreeMap::new();
    for record in records {
        if let Event::FaultOver { number } = record.event {
            over.insert(number, record.at);
        }
    }
    let entry = |record: &Record| match &record.event {
        Event::Fault {
            number,
            kind,
            worker,
            life,
            loses,
            text,
            ..
        } => {
            let until = over.get(number).copied();
            Some(FaultEntry {
                at: seconds(record.at, began),
                until: until.map(|until| seconds(until, began)),
                worker: worker.clone(),
                life: *life,
                kind: kind.clone(),
                text: text.clone(),
                loses: *loses,
                errors: effects.around(worker, record.at, until.unwrap_or(record.at), *loses),
            })
        }
        _ => None,
    };
    records.iter().filter_map(entry).collect()
}

#[cfg(test)]
mod tests {
    use super::super::history::{DRIVER, Expected, Outcome, Sample};
    use super::super::trouble::{Kind, Trouble};
    use super::*;

    fn record(ms: u64, life: Life, event: Event) -> Record {
        let at = 1_000_000 + ms * 1_000;
        Record { at, life, event }
    }

    fn begun(call: u64) -> Event {
        Event::Begun {
            call,
            function: "sum".to_owned(),
            to: "worker1".to_owned(),
            through: Vec::new(),
            values: Vec::new(),
            expects: Expected::Value(1),
            limit_ms: 10,
            limits: 1,
        }
    }

    fn started(life: Life, worker: &str) -> Event {
        Event::Started {
            life,
            worker: worker.to_owned(),
            python: false,
        }
    }

    /// `worker1` is killed in the middle of a call.
    fn records() -> Vec<Record> {
        let lost = Outcome::Failed(Trouble {
            kind: Kind::PeerLost,
            worker: Some("worker1".to_owned()),
            text: "<gone>".to_owned(),
        });
        let fault = Event::Fault {
            number: 1,
            kind: "kill".to_owned(),
            worker: "worker1".to_owned(),
            life: 2,
            loses: true,
            text: "killed".to_owned(),
        };
        let gone = Event::Gone {
            life: 2,
            killed: true,
            code: None,
        };
        let sampled = |memory| {
            Event::Sampled(Sample {
                memory,
                ..Sample::default()
            })
        };
        vec![
            record(0, DRIVER, started(1, "worker0")),
            record(0, DRIVER, started(2, "worker1")),
            record(10, 2, sampled(50)),
            record(20, 2, sampled(70)),
            record(30, 2, sampled(60)),
            record(100, 1, begun(5)),
            record(110, DRIVER, fault),
            record(120, DRIVER, gone),
            record(
                130,
                1,
                Event::Ended {
                    call: 5,
                    outcome: lost,
                },
            ),
            record(500, DRIVER, Event::FaultOver { number: 1 }),
        ]
    }

    #[test]
    fn a_fault_is_told_with_the_errors_that_it_caused() {
        let records = records();
        let effects = Effects::of(&records, Duration::from_secs(2));
        let timeline = timeline(&records, records[0].at, &effects);
        assert_eq!(timeline.len(), 1);
        assert_eq!(timeline[0].errors, BTreeMap::from([("peer lost", 1)]));
        assert_eq!((timeline[0].at, timeline[0].until), (0.11, Some(0.5)));
    }

    #[test]
    fn a_fault_that_may_lose_nothing_is_not_blamed_for_losses() {
        let mut records = records();
        for record in &mut records {
            if let Event::Fault { loses, .. } = &mut record.event {
                *loses = false;
            }
        }
        let effects = Effects::of(&records, Duration::from_secs(2));
        let timeline = timeline(&records, records[0].at, &effects);
        assert!(timeline[0].errors.is_empty());
        // It came all the same.
        assert_eq!(effects.by_second(records[0].at), [1]);
    }

    #[test]
    fn violations_have_their_times_as_all_else_does() {
        let violation = Violation {
            rule: "CK-8",
            at: 3_500_000,
            life: 2,
            text: String::new(),
        };
        assert_eq!(entry(violation, 1_000_000).at, 2.5);
    }

    #[test]
    fn everything_is_counted() {
        let calls = calls(&records());
        assert_eq!((calls.made, calls.brought_values), (1, 0));
        assert_eq!(calls.failed, BTreeMap::from([("peer lost", 1)]));
        let lives = lives(&records(), 1_000_000);
        assert_eq!(lives.len(), 2);
        assert_eq!(lives[1].how.as_deref(), Some("killed"));
        assert_eq!(lives[1].ended, Some(0.12));
        assert_eq!(lives[1].peak_memory_kib, 70);
    }
}
