//! Reads the histories of a run and says what in them must not be. Nothing else: no clock, no files, no processes.
//!
//! | part | what must not be |
//! | --- | --- |
//! | [`calls`] | CK-1: a function runs twice for one call (D1), or for no call. CK-2: a call brings a wrong value, or the value of a function that never ran (D2). CK-3: it ends with an error that nothing allows (F1, F2), or before its time (D3). CK-4: it never ends, ends late, or twice (D3, D1). |
//! | [`values`] | CK-5: a value is made twice. CK-6: it is used after it was freed, or freed twice (R3). CK-7: it is freed while a worker that is well keeps a reference, or has one on its way (R1, R4). CK-8: it is not freed when nobody has one (R2, R5). |
//! | [`endings`] | CK-9: a worker ends badly, is taken for dead for nothing (F1), or does not do what it is told in time (S1). CK-10: something is left on a worker that has let go of everything. |
//! | [`growth`] | CK-11: a process grows (D5). |
//!
//! [`rules`] has them in words.
//!
//! What an error is allowed for is in [`lives`]: when which worker was well.

mod calls;
mod endings;
mod growth;
mod lives;
mod rules;
mod values;

use std::time::Duration;

use serde::Serialize;

use super::history::{Life, Record};
use super::plan::recovery;
use lives::Lives;

pub(super) use rules::sentence;

/// What must not be, and is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Violation {
    /// Which rule of this checker it breaks.
    pub(super) rule: &'static str,
    /// When, in microseconds of the histories' clock, and who noted it.
    pub(super) at: u64,
    pub(super) life: Life,
    pub(super) text: String,
}

/// How long things take at most in the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    /// How long a worker may be silent, in microseconds.
    silence: u64,
    /// How long the group takes to be itself again.
    recovery: u64,
}

impl Times {
    pub(super) fn new(peer_timeout: Duration) -> Self {
        Self {
            silence: peer_timeout.as_micros() as u64,
            recovery: recovery(peer_timeout).as_micros() as u64,
        }
    }
}

/// What is found in the histories.
#[derive(Debug)]
pub(super) struct Findings {
    /// All that must not be, by time.
    pub(super) violations: Vec<Violation>,
    /// How many times a worker did not note how it is for so long that losses were allowed around it, and nobody had stopped it.
    pub(super) silences: u32,
    /// How many lives were long enough to say whether they grow (CK-11).
    pub(super) growth_lives: u32,
}

/// Checks everything. The records are in their order.
pub(super) fn check(records: &[Record], times: Times) -> Findings {
    let lives = Lives::of(records, times);
    let mut violations = calls::check(records, &lives);
    violations.extend(values::check(records, &lives));
    violations.extend(endings::check(records, &lives));
    let (growth, growth_lives) = growth::check(records);
    violations.extend(growth);
    violations.sort_by_key(|violation| violation.at);
    Findings {
        violations,
        silences: lives.silences(),
        growth_lives,
    }
}

#[cfg(test)]
mod testing {
    //! Histories that are written by hand, in milliseconds.

    use super::*;
    use crate::history::{DRIVER, Event, Expected};

    /// 2 s, and 4 s to recover.
    pub(super) const PEER_TIMEOUT: Duration = Duration::from_secs(2);

    /// A run of two workers, `worker0` (life 1) and `worker1` (life 2), which are well from 0 on.
    pub(super) struct Run(pub(super) Vec<Record>);

    impl Run {
        pub(super) fn new() -> Self {
            let mut run = Self(Vec::new());
            for (life, worker) in [(1, "worker0"), (2, "worker1")] {
                run.start(0, life, worker);
            }
            run
        }

        pub(super) fn start(&mut self, ms: u64, life: Life, worker: &str) {
            self.note(
                ms,
                DRIVER,
                Event::Started {
                    life,
                    worker: worker.to_owned(),
                    python: false,
                },
            );
            let worker = worker.to_owned();
            self.note(ms, life, Event::Joined { worker });
        }

        pub(super) fn note(&mut self, ms: u64, life: Life, event: Event) {
            let at = ms * 1_000;
            self.0.push(Record { at, life, event });
        }

        pub(super) fn fault(
            &mut self,
            ms: u64,
            number: u32,
            life: Life,
            worker: &str,
            loses: bool,
        ) {
            self.note(
                ms,
                DRIVER,
                Event::Fault {
                    number,
                    kind: "stop".to_owned(),
                    worker: worker.to_owned(),
                    life,
                    loses,
                    text: String::new(),
                },
            );
        }

        pub(super) fn killed(&mut self, ms: u64, number: u32, life: Life, worker: &str) {
            self.fault(ms, number, life, worker, true);
            self.note(
                ms,
                DRIVER,
                Event::Gone {
                    life,
                    killed: true,
                    code: None,
                },
            );
        }

        /// Life 1 calls `worker1`, with a limit of 10 s, once.
        pub(super) fn begin(&mut self, ms: u64, call: u64, expects: Expected) {
            self.begin_on(ms, call, &[], expects);
        }

        pub(super) fn begin_on(&mut self, ms: u64, call: u64, values: &[u64], expects: Expected) {
            self.note(
                ms,
                1,
                Event::Begun {
                    call,
                    function: "sum".to_owned(),
                    to: "worker1".to_owned(),
                    through: Vec::new(),
                    values: values.to_vec(),
                    expects,
                    limit_ms: 10_000,
                    limits: 1,
                },
            );
        }

        pub(super) fn ran(&mut self, ms: u64, life: Life, call: u64) {
            let function = "sum".to_owned();
            self.note(ms, life, Event::Ran { call, function });
        }

        /// The rules that are broken.
        pub(super) fn broken(mut self) -> Vec<&'static str> {
            self.0.sort_by_key(|record| record.at);
            let Findings { violations, .. } = check(&self.0, Times::new(PEER_TIMEOUT));
            violations.iter().map(|violation| violation.rule).collect()
        }
    }
}
