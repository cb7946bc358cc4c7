//! Calls: CK-1 to CK-4.

use std::collections::BTreeMap;

use super::Violation;
use super::lives::Lives;
use crate::history::{Event, Expected, HOP, Life, Outcome, Record};
use crate::trouble::{Kind, Trouble};

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
    /// What it was to be answered with.
    lent: Option<u64>,
}

/// How it was begun.
#[derive(Clone, Copy)]
struct Begun<'a> {
    at: u64,
    life: Life,
    function: &'a str,
    to: &'a str,
    through: &'a [String],
    values: &'a [u64],
    expects: &'a Expected,
    limit: u64,
    limits: u64,
}

pub(super) fn check(records: &[Record], lives: &Lives) -> Vec<Violation> {
    let stories = collect(records);
    let checker = Checker {
        lives,
        makers: makers(records),
        first_kept: first_kept(records),
    };
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
                values,
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
                    values,
                    expects,
                    limit: limit_ms * 1_000,
                    limits: u64::from(*limits),
                });
            }
            Event::Ran { call, .. } => stories.entry(*call).or_default().ran.push((*at, *life)),
            Event::Lent { call, value } => stories.entry(*call).or_default().lent = Some(*value),
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

/// When anybody kept a reference to a value first. Its creator does as soon as it has asked for it.
fn first_kept(records: &[Record]) -> BTreeMap<u64, u64> {
    let mut first = BTreeMap::new();
    for record in records {
        if let Event::Kept { value, .. } = record.event {
            first.entry(value).or_insert(record.at);
        }
    }
    first
}

/// The life that has asked for a value: the one that gave it its number.
fn creator(value: u64) -> Life {
    (value >> 32) as Life
}

struct Checker<'a> {
    lives: &'a Lives,
    makers: BTreeMap<u64, Life>,
    first_kept: BTreeMap<u64, u64>,
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
            Outcome::Failed(trouble) => self.check_trouble(begun, story.lent, at, trouble),
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
    fn check_trouble(
        &self,
        begun: &Begun<'_>,
        lent: Option<u64>,
        at: u64,
        trouble: &Trouble,
    ) -> Option<Broken> {
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
            Kind::OwnerLost | Kind::CreatorLost => {
                let mut values = begun.values.iter().copied().chain(lent).peekable();
                match values.peek() {
                    Some(_) => {
                        values.any(|value| self.is_value_lost(begun, at, trouble, value))
                            || self.lives.is_troubled(begun.life, begun.at, at)
                    }
                    // What it has to do with has come to be by this call itself.
                    None => self.is_somebody_unsteady(begun, at, trouble),
                }
            }
            Kind::PeerLost | Kind::ContextLost | Kind::Cancelled => {
                self.is_somebody_unsteady(begun, at, trouble)
                    || self.is_owner_of_a_lost_value(begun, at, trouble)
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

    /// Whether the life that made the value is gone, however long ago: references to it may be used long afterwards. If none has made it,
    /// whether one is gone that might have: one that was there when it was asked for, or is said to have been.
    fn is_value_lost(&self, begun: &Begun<'_>, at: u64, trouble: &Trouble, value: u64) -> bool {
        let lives = self.lives;
        let is_creator_lost = || lives.is_troubled(creator(value), begun.at, at);
        if trouble.kind == Kind::CreatorLost && is_creator_lost() {
            return true;
        }
        if let Some(maker) = self.makers.get(&value) {
            return lives.is_troubled(*maker, begun.at, at);
        }
        let kept = self.first_kept.get(&value).copied().unwrap_or(begun.at);
        let from = kept.min(begun.at).saturating_sub(lives.recovery());
        let mut those = self.involved(begun, trouble);
        those.any(|worker| lives.has_lost_a_life(worker, from, at))
    }

    /// Whether an error names the worker that had a value of the call, and lost it with a life that is over.
    fn is_owner_of_a_lost_value(&self, begun: &Begun<'_>, at: u64, trouble: &Trouble) -> bool {
        let named = trouble.worker.as_deref().unwrap_or(begun.to);
        begun.values.iter().any(|value| {
            let maker = self.makers.get(value);
            maker.is_none_or(|life| self.lives.worker(*life) == named)
                && self.is_value_lost(begun, at, trouble, *value)
        })
    }
}

#[cfg(test)]
#[path = "calls_tests.rs"]
mod tests;
