//! How workers end, and what is left of them then: CK-9 and CK-10.

use std::collections::BTreeSet;

use super::Violation;
use super::lives::Lives;
use crate::history::{END, Event, Life, Record};
use crate::worker::{EVICTED, IN_MINORITY};

pub(super) fn check(records: &[Record], lives: &Lives) -> Vec<Violation> {
    let mut violations = Vec::new();
    // Lives that have left, and whether all have been told to end: 0 is right only then.
    let mut left = BTreeSet::new();
    let mut is_the_end = false;
    for record in records {
        let found = match &record.event {
            Event::Leaving => {
                left.insert(record.life);
                None
            }
            Event::Phase { name } => {
                is_the_end |= name == END;
                None
            }
            Event::Gone { life, killed, code } if !killed => {
                let may_end = is_the_end || left.contains(life);
                let text = check_code(record.at, *life, *code, may_end, lives);
                text.map(|text| ("CK-9", *life, text))
            }
            Event::Hung { life, what } => Some(("CK-9", *life, what.clone())),
            Event::Settled(has) => {
                let counts = [
                    (has.references, "references"),
                    (has.open_calls, "open calls"),
                    (has.contexts, "contexts"),
                    (has.values, "values"),
                ];
                let counts = counts.into_iter().filter(|(count, _)| *count > 0);
                let counts: Vec<_> = counts
                    .map(|(count, what)| format!("{count} {what}"))
                    .collect();
                let text = format!("has {} left", counts.join(", "));
                let before = record.at.saturating_sub(lives.recovery());
                let is_excused = lives.is_excused(record.life, before, record.at);
                (!counts.is_empty() && !is_excused).then_some(("CK-10", record.life, text))
            }
            _ => None,
        };
        if let Some((rule, life, text)) = found {
            violations.push(Violation {
                rule,
                at: record.at,
                life,
                text: format!("{}, life {life}: {text}", lives.worker(life)),
            });
        }
    }
    violations
}

/// What is wrong with how a process ended by itself.
fn check_code(
    at: u64,
    life: Life,
    code: Option<i32>,
    may_end: bool,
    lives: &Lives,
) -> Option<String> {
    let before = at.saturating_sub(lives.recovery());
    let is_excused = || lives.is_excused(life, before, at);
    match code {
        Some(0) if may_end => None,
        Some(0) => Some("ended as if it were told to, and was not".to_owned()),
        Some(EVICTED | IN_MINORITY) if is_excused() => None,
        Some(EVICTED) => Some("was taken for dead, and nothing was done to it".to_owned()),
        Some(IN_MINORITY) => Some("gave its group up, and nothing was done to it".to_owned()),
        Some(code) => Some(format!("ended with {code}: see what it wrote")),
        None => Some("was ended by a signal that nobody here sent".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Run;
    use super::*;
    use crate::history::{DRIVER, Sample};

    fn gone(run: &mut Run, ms: u64, code: Option<i32>) {
        run.note(
            ms,
            DRIVER,
            Event::Gone {
                life: 2,
                killed: false,
                code,
            },
        );
    }

    #[test]
    fn ck_9_an_end_that_nobody_asked_for_is_found() {
        for (code, expected) in [
            (Some(0), &["CK-9"][..]),
            (Some(1), &["CK-9"]),
            (Some(101), &["CK-9"]),
            (Some(EVICTED), &["CK-9"]),
            (Some(IN_MINORITY), &["CK-9"]),
            (None, &["CK-9"]),
        ] {
            let mut run = Run::new();
            gone(&mut run, 500, code);
            assert_eq!(run.broken(), expected, "{code:?}");
        }
    }

    #[test]
    fn ck_9_who_has_left_or_was_told_to_end_ends_with_0_and_with_nothing_else() {
        for (code, expected) in [(0, &[][..]), (1, &["CK-9"]), (EVICTED, &["CK-9"])] {
            let mut leaves = Run::new();
            leaves.note(400, 2, Event::Leaving);
            gone(&mut leaves, 500, Some(code));
            assert_eq!(leaves.broken(), expected, "{code}");
            let mut ends = Run::new();
            let name = END.to_owned();
            ends.note(400, DRIVER, Event::Phase { name });
            gone(&mut ends, 500, Some(code));
            assert_eq!(ends.broken(), expected, "{code}");
        }
        // Another one has left.
        let mut other = Run::new();
        other.note(400, 1, Event::Leaving);
        gone(&mut other, 500, Some(0));
        assert_eq!(other.broken(), ["CK-9"]);
    }

    #[test]
    fn ck_9_who_was_stopped_for_long_may_be_taken_for_dead() {
        for code in [EVICTED, IN_MINORITY] {
            let mut run = Run::new();
            run.fault(500, 1, 2, "worker1", true);
            run.note(4_000, DRIVER, Event::FaultOver { number: 1 });
            gone(&mut run, 4_200, Some(code));
            assert!(run.broken().is_empty());
        }
        // That was long ago.
        let mut run = Run::new();
        run.fault(500, 1, 2, "worker1", true);
        run.note(4_000, DRIVER, Event::FaultOver { number: 1 });
        gone(&mut run, 40_000, Some(EVICTED));
        assert_eq!(run.broken(), ["CK-9"]);
    }

    #[test]
    fn ck_9_who_does_not_do_what_it_is_told_is_found() {
        let mut run = Run::new();
        let what = "does not end".to_owned();
        run.note(500, DRIVER, Event::Hung { life: 2, what });
        assert_eq!(run.broken(), ["CK-9"]);
    }

    #[test]
    fn ck_10_whatever_is_left_is_found() {
        let nothing = Sample {
            memory: 5_000,
            ..Sample::default()
        };
        for (left, expected) in [
            (nothing, &[][..]),
            (
                Sample {
                    references: 1,
                    ..nothing
                },
                &["CK-10"],
            ),
            (
                Sample {
                    open_calls: 1,
                    ..nothing
                },
                &["CK-10"],
            ),
            (
                Sample {
                    contexts: 1,
                    ..nothing
                },
                &["CK-10"],
            ),
            (
                Sample {
                    values: 1,
                    ..nothing
                },
                &["CK-10"],
            ),
        ] {
            let mut run = Run::new();
            run.note(500, 1, Event::Settled(left));
            assert_eq!(run.broken(), expected, "{left:?}");
        }
    }
}
