//! Calls: CK-1 to CK-4.

use std::collections::BTreeMap;

use super::Violation;
use super::lives::Lives;
use crate::chaos::history::{Event, Expected, HOP, Life, Outcome, Record};
use crate::chaos::trouble::{Kind, Trouble};

/// By how much a time limit may seem to have come early: what is noted is noted a little after it happens.
const EARLY: u64 = 2_000;
/// By how much a call may end later than its limits say: what ends it has to get to run, and be noted.
const LATE: u64 = 5_000_000;

/// All that is noted of one call.
#[derive(Default)]
struct Story<'a> {
    begun: Option<Begun<'a>>,
    /// When, and by which life.
    ran: Vec<(u64, Life)>,
    ended: Vec<(u64, &'a Outcome)>,
}

/// How it was begun.
#[derive(Clone, Copy)]
struct Begun<'a> {
    at: u64,
    life: Life,
    function: &'a str,
    to: &'a str,
    through: &'a [String],
    value: Option<u64>,
    expects: &'a Expected,
    limit: u64,
    limits: u64,
}

pub(super) fn check(records: &[Record], lives: &Lives) -> Vec<Violation> {
    let stories = collect(records);
    let makers = makers(records);
    let checker = Checker { lives, makers };
    let mut violations = Vec::new();
    for (call, story) in &stories {
        checker.check_runs(*call, story, &stories, &mut violations);
        let Some(begun) = story.begun else {
            continue;
        };
        let in_time = checker.check_time(&begun, story);
        for (at, (rule, text)) in checker.check_end(&begun, story).into_iter().chain(in_time) {
            violations.push(Violation {
                rule,
                at,
                life: begun.life,
                text: format!("call {call} ({} on {}): {text}", begun.function, begun.to),
            });
        }
    }
    violations
}

fn collect(records: &[Record]) -> BTreeMap<u64, Story<'_>> {
    let mut stories = BTreeMap::<u64, Story<'_>>::new();
    for Record { at, life, event } in records {
        match event {
            Event::Begun {
                call,
                function,
                to,
                through,
                value,
                expects,
                limit_ms,
                limits,
            } => {
                stories.entry(*call).or_default().begun = Some(Begun {
                    at: *at,
                    life: *life,
                    function,
                    to,
                    through,
                    value: *value,
                    expects,
                    limit: limit_ms * 1_000,
                    limits: u64::from(*limits),
                });
            }
            Event::Ran { call, .. } => stories.entry(*call).or_default().ran.push((*at, *life)),
            Event::Ended { call, outcome } => {
                let story = stories.entry(*call).or_default();
                story.ended.push((*at, outcome));
            }
            _ => {}
        }
    }
    stories
}

/// Which life has made which value.
fn makers(records: &[Record]) -> BTreeMap<u64, Life> {
    let made = records.iter().filter_map(|record| match record.event {
        Event::Made { value } => Some((value, record.life)),
        _ => None,
    });
    made.collect()
}

struct Checker<'a> {
    lives: &'a Lives,
    makers: BTreeMap<u64, Life>,
}

/// Which rule is broken, and how.
type Broken = (&'static str, String);

impl Checker<'_> {
    /// CK-1
    fn check_runs(
        &self,
        call: u64,
        story: &Story<'_>,
        all: &BTreeMap<u64, Story<'_>>,
        violations: &mut Vec<Violation>,
    ) {
        let mut add = |(at, life): (u64, Life), text: String| {
            violations.push(Violation {
                rule: "CK-1",
                at,
                life,
                text: format!("call {call}: {text}"),
            });
        };
        if let [first, second, ..] = story.ran[..] {
            let [one, other] = [first.1, second.1].map(|life| self.lives.worker(life));
            let times = story.ran.len();
            add(
                second,
                format!("ran {times} times, on {one} and then on {other}"),
            );
        }
        // A call that is made in turn is begun by the one that it is made for.
        let origin = all.get(&(call & !HOP));
        let is_known = origin.is_some_and(|origin| origin.begun.is_some());
        if let (false, Some(first)) = (is_known, story.ran.first()) {
            add(*first, "ran, and nobody has made it".to_owned());
        }
    }

    /// What is wrong with how a call ended, and when.
    fn check_end(&self, begun: &Begun<'_>, story: &Story<'_>) -> Option<(u64, Broken)> {
        let (at, outcome) = match story.ended[..] {
            [end] => end,
            [] => {
                let text = "is not over, and its caller waits for nothing any more".to_owned();
                let is_over_due = self.lives.is_quiet(begun.life);
                return is_over_due.then_some((begun.at, ("CK-4", text)));
            }
            [_, (at, _), ..] => return Some((at, ("CK-4", "ended twice".to_owned()))),
        };
        let broken = match outcome {
            Outcome::Value(value) => self.check_value(begun, story, *value),
            Outcome::Refusal(number) => match begun.expects {
                Expected::Refusal(expected) if expected == number => None,
                expected => Some((
                    "CK-2",
                    format!("was refused with {number}, and expected {expected:?}"),
                )),
            },
            Outcome::Dropped => match begun.expects {
                Expected::Nothing => None,
                expected => Some(("CK-2", format!("was dropped, and expected {expected:?}"))),
            },
            Outcome::Failed(trouble) => self.check_trouble(begun, at, trouble),
        };
        broken.map(|broken| (at, broken))
    }

    /// CK-4: whether it was over when its limits were. Whose caller did not get to run is not asked.
    fn check_time(&self, begun: &Begun<'_>, story: &Story<'_>) -> Option<(u64, Broken)> {
        let due = begun.at + begun.limit * begun.limits + LATE + self.lives.unnoted();
        let ended = story.ended.first().map(|(at, _)| *at);
        let until = ended.unwrap_or_else(|| self.lives.lasts_until(begun.life));
        let is_late = until > due && !self.lives.was_kept_from_running(begun.life, begun.at, due);
        is_late.then(|| {
            let took = until - begun.at;
            let (limits, limit) = (begun.limits, begun.limit);
            let text = match ended {
                Some(_) => format!("took {took} us, with {limits} limits of {limit} us"),
                None => format!("not over after {took} us, with {limits} limits of {limit} us"),
            };
            (until, ("CK-4", text))
        })
    }

    /// CK-2
    fn check_value(&self, begun: &Begun<'_>, story: &Story<'_>, value: u64) -> Option<Broken> {
        let is_right = match begun.expects {
            Expected::Value(expected) => *expected == value,
            Expected::Anything => true,
            Expected::Refusal(_) | Expected::Timeout | Expected::Nothing => false,
        };
        if !is_right {
            let text = format!("brought {value}, and expected {:?}", begun.expects);
            return Some(("CK-2", text));
        }
        let Some((_, life)) = story.ran.first() else {
            return Some((
                "CK-2",
                "was answered, and its function never ran".to_owned(),
            ));
        };
        let worker = self.lives.worker(*life);
        (worker != begun.to).then(|| ("CK-2", format!("was carried out by {worker}")))
    }

    /// CK-3
    fn check_trouble(&self, begun: &Begun<'_>, at: u64, trouble: &Trouble) -> Option<Broken> {
        let took = at.saturating_sub(begun.at);
        let is_early = trouble.kind == Kind::Timeout && took + EARLY < begun.limit;
        if is_early {
            let text = format!("was out of time after {took} of {} us", begun.limit);
            return Some(("CK-3", text));
        }
        let is_allowed = match trouble.kind {
            Kind::Unexpected => false,
            Kind::Timeout => {
                let mut those = self.involved(begun, trouble);
                *begun.expects == Expected::Timeout
                    || self.lives.is_troubled(begun.life, begun.at, at)
                    || those.any(|worker| self.lives.was_touched(worker, begun.at, at))
            }
            Kind::OwnerLost | Kind::CreatorLost => self.is_value_lost(begun, at, trouble),
            Kind::PeerLost | Kind::ContextLost | Kind::Cancelled => {
                let is_on_value = begun.value.is_some();
                self.is_somebody_unsteady(begun, at, trouble)
                    || (is_on_value && self.is_value_lost(begun, at, trouble))
            }
            Kind::Evicted | Kind::Minority | Kind::NotMember => {
                self.is_somebody_unsteady(begun, at, trouble)
            }
        };
        (!is_allowed).then(|| {
            let kind = trouble.kind.name();
            let text = format!(
                "ended with `{kind}`, which nothing allows: {}",
                trouble.text
            );
            ("CK-3", text)
        })
    }

    /// The workers that it went to, and the one that the error names.
    fn involved<'b>(
        &self,
        begun: &Begun<'b>,
        trouble: &'b Trouble,
    ) -> impl Iterator<Item = &'b str> + use<'b> {
        let through = begun.through.iter().map(String::as_str);
        let named = trouble.worker.as_deref();
        [begun.to].into_iter().chain(through).chain(named)
    }

    fn is_somebody_unsteady(&self, begun: &Begun<'_>, at: u64, trouble: &Trouble) -> bool {
        let mut those = self.involved(begun, trouble);
        self.lives.is_troubled(begun.life, begun.at, at)
            || those.any(|worker| !self.lives.is_steady(worker, begun.at, at))
    }

    /// Whether the life that made the value is gone; if none has, whether one is gone that might have.
    fn is_value_lost(&self, begun: &Begun<'_>, at: u64, trouble: &Trouble) -> bool {
        let maker = begun.value.and_then(|value| self.makers.get(&value));
        let lives = self.lives;
        let by_maker = maker.map(|life| lives.is_troubled(*life, begun.at, at));
        let mut those = self.involved(begun, trouble);
        by_maker.unwrap_or_else(|| those.any(|one| lives.has_lost_a_life(one, begun.at, at)))
            || lives.is_troubled(begun.life, begun.at, at)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Run;
    use super::*;
    use crate::chaos::history::{DRIVER, Sample, hop};

    fn end(run: &mut Run, ms: u64, call: u64, outcome: Outcome) {
        run.note(ms, 1, Event::Ended { call, outcome });
    }

    fn failed(kind: Kind, worker: &str) -> Outcome {
        Outcome::Failed(Trouble {
            kind,
            worker: Some(worker.to_owned()),
            text: "for a test".to_owned(),
        })
    }

    /// A call of life 1 at 100 ms that ends at 200 ms, and runs in between or not.
    fn call(runs: bool, expects: Expected, outcome: Outcome) -> Run {
        let mut run = Run::new();
        run.begin(100, 7, expects);
        if runs {
            run.ran(150, 2, 7);
        }
        end(&mut run, 200, 7, outcome);
        run
    }

    #[test]
    fn a_call_that_runs_once_and_brings_what_it_is_to_bring_is_right() {
        let right = call(true, Expected::Value(3), Outcome::Value(3));
        assert!(right.broken().is_empty());
        let refused = call(true, Expected::Refusal(3), Outcome::Refusal(3));
        assert!(refused.broken().is_empty());
        let dropped = call(false, Expected::Nothing, Outcome::Dropped);
        assert!(dropped.broken().is_empty());
    }

    #[test]
    fn ck_1_a_function_that_runs_twice_is_found() {
        let mut run = call(true, Expected::Value(3), Outcome::Value(3));
        run.ran(160, 2, 7);
        assert_eq!(run.broken(), ["CK-1"]);
        // Also of a call that was made in turn.
        let mut run = call(true, Expected::Value(3), Outcome::Value(3));
        run.ran(155, 1, hop(7));
        run.ran(165, 1, hop(7));
        assert_eq!(run.broken(), ["CK-1"]);
    }

    #[test]
    fn ck_1_a_function_that_runs_for_no_call_is_found() {
        let mut run = Run::new();
        run.ran(150, 2, 7);
        assert_eq!(run.broken(), ["CK-1"]);
        let mut run = Run::new();
        run.ran(150, 2, hop(7));
        assert_eq!(run.broken(), ["CK-1"]);
    }

    #[test]
    fn ck_2_a_wrong_value_is_found() {
        for (expects, outcome) in [
            (Expected::Value(3), Outcome::Value(4)),
            (Expected::Value(3), Outcome::Refusal(3)),
            (Expected::Refusal(3), Outcome::Refusal(4)),
            (Expected::Refusal(3), Outcome::Value(3)),
            (Expected::Timeout, Outcome::Value(3)),
            (Expected::Value(3), Outcome::Dropped),
        ] {
            assert_eq!(call(true, expects, outcome).broken(), ["CK-2"]);
        }
    }

    #[test]
    fn ck_2_a_value_of_a_function_that_never_ran_or_ran_elsewhere_is_found() {
        let never = call(false, Expected::Value(3), Outcome::Value(3));
        assert_eq!(never.broken(), ["CK-2"]);
        let mut elsewhere = call(false, Expected::Value(3), Outcome::Value(3));
        elsewhere.ran(150, 1, 7);
        assert_eq!(elsewhere.broken(), ["CK-2"]);
    }

    #[test]
    fn ck_3_a_loss_is_allowed_for_a_worker_that_is_lost_and_for_no_other() {
        for kind in [Kind::PeerLost, Kind::ContextLost, Kind::Cancelled] {
            let lost = || call(false, Expected::Value(3), failed(kind, "worker1"));
            assert_eq!(lost().broken(), ["CK-3"]);
            let mut killed = lost();
            killed.killed(180, 1, 2, "worker1");
            assert!(killed.broken().is_empty());
            // Too late to be why.
            let mut killed = lost();
            killed.killed(300, 1, 2, "worker1");
            assert_eq!(killed.broken(), ["CK-3"]);
            // A fault that is over before anybody would be lost by it.
            let mut touched = lost();
            touched.fault(120, 1, 2, "worker1", false);
            assert_eq!(touched.broken(), ["CK-3"]);
            // The caller itself.
            let mut caller = lost();
            caller.fault(120, 1, 1, "worker0", true);
            assert!(caller.broken().is_empty());
        }
    }

    #[test]
    fn ck_3_a_lost_owner_is_the_life_that_made_the_value() {
        let lost = |made: bool| {
            let mut run = Run::new();
            if made {
                run.note(10, 2, Event::Made { value: 9 });
            }
            run.begin_on(20_000, 7, Some(9), Expected::Value(3));
            end(&mut run, 20_100, 7, failed(Kind::OwnerLost, "worker1"));
            run
        };
        assert_eq!(lost(true).broken(), ["CK-3"]);
        assert_eq!(lost(false).broken(), ["CK-3"]);
        for made in [true, false] {
            let mut run = lost(made);
            run.killed(1_000, 1, 2, "worker1");
            // The next life is well.
            run.start(2_000, 3, "worker1");
            assert!(run.broken().is_empty());
        }
    }

    #[test]
    fn ck_3_a_time_limit_may_not_come_early_nor_for_nothing() {
        let late = |ms: u64| {
            let mut run = Run::new();
            run.begin(100, 7, Expected::Value(3));
            end(&mut run, ms, 7, failed(Kind::Timeout, "worker1"));
            run
        };
        // Of 10 s.
        assert_eq!(late(5_000).broken(), ["CK-3"]);
        assert_eq!(late(10_101).broken(), ["CK-3"]);
        let mut touched = late(10_101);
        touched.fault(5_000, 1, 2, "worker1", false);
        touched.note(5_500, DRIVER, Event::FaultOver { number: 1 });
        assert!(touched.broken().is_empty());
        let mut meant = Run::new();
        meant.begin(100, 7, Expected::Timeout);
        end(&mut meant, 10_101, 7, failed(Kind::Timeout, "worker1"));
        assert!(meant.broken().is_empty());
    }

    #[test]
    fn ck_3_some_errors_are_allowed_for_nothing() {
        let mut run = call(
            true,
            Expected::Value(3),
            failed(Kind::Unexpected, "worker1"),
        );
        run.killed(150, 1, 2, "worker1");
        assert_eq!(run.broken(), ["CK-3"]);
    }

    #[test]
    fn ck_4_a_call_that_never_ends_or_ends_twice_is_found() {
        let mut run = Run::new();
        run.begin(100, 7, Expected::Value(3));
        run.note(500, 1, Event::Quiet);
        assert_eq!(run.broken(), ["CK-4"]);
        // Its caller was killed before it had to be over.
        let mut run = Run::new();
        run.begin(100, 7, Expected::Value(3));
        run.killed(500, 1, 1, "worker0");
        assert!(run.broken().is_empty());
        let mut run = call(true, Expected::Value(3), Outcome::Value(3));
        end(&mut run, 300, 7, Outcome::Value(3));
        assert_eq!(run.broken(), ["CK-4"]);
    }

    /// A call of life 1 at 100 ms, and a run that lasts for another 20 s. It has to be over at 16.1 s: a limit of 10 s, 5 s for whatever
    /// is slow, and 1 s, as long as one may stand still so that nobody notes it.
    fn begun(expects: Expected) -> Run {
        let mut run = Run::new();
        run.begin(100, 7, expects);
        run.note(20_100, 2, Event::Quiet);
        run
    }

    #[test]
    fn ck_4_a_call_that_is_not_over_when_its_limit_is_is_found_though_its_caller_still_waits() {
        assert_eq!(begun(Expected::Value(3)).broken(), ["CK-4"]);
        // Its caller ended long after that, or before.
        for (ms, expected) in [(18_000, &["CK-4"][..]), (16_000, &[])] {
            let mut killed = begun(Expected::Value(3));
            killed.killed(ms, 1, 1, "worker0");
            assert_eq!(killed.broken(), expected, "{ms}");
        }
    }

    #[test]
    fn ck_4_a_call_that_ends_long_after_its_limit_is_found() {
        let late = |ms| {
            let mut run = begun(Expected::Timeout);
            end(&mut run, ms, 7, failed(Kind::Timeout, "worker1"));
            run
        };
        assert!(late(16_000).broken().is_empty());
        assert_eq!(late(16_200).broken(), ["CK-4"]);
        // Two limits, one after the other.
        let mut two = late(16_200);
        for record in &mut two.0 {
            if let Event::Begun { limits, .. } = &mut record.event {
                *limits = 2;
            }
        }
        assert!(two.broken().is_empty());
    }

    #[test]
    fn ck_4_a_caller_that_did_not_get_to_run_may_be_late() {
        // Stopped for less than anybody would be lost by.
        let mut stopped = begun(Expected::Value(3));
        stopped.fault(5_000, 1, 1, "worker0", false);
        stopped.note(5_500, DRIVER, Event::FaultOver { number: 1 });
        assert!(stopped.broken().is_empty());
        let mut silent = begun(Expected::Value(3));
        for ms in [5_000, 7_000] {
            silent.note(ms, 1, Event::Sampled(Sample::default()));
        }
        assert!(silent.broken().is_empty());
        let mut stalled = begun(Expected::Value(3));
        stalled.note(5_000, DRIVER, Event::Stalled { micros: 800_000 });
        assert!(stalled.broken().is_empty());
        // The one that it called is no excuse, nor is what was over before.
        let mut other = begun(Expected::Value(3));
        other.fault(5_000, 1, 2, "worker1", false);
        assert_eq!(other.broken(), ["CK-4"]);
        let mut before = begun(Expected::Value(3));
        before.fault(10, 1, 1, "worker0", false);
        before.note(50, DRIVER, Event::FaultOver { number: 1 });
        assert_eq!(before.broken(), ["CK-4"]);
    }
}
