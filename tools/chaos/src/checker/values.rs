//! Values and references: CK-5 to CK-8.

use std::collections::BTreeMap;

use super::Violation;
use super::lives::Lives;
use crate::history::{Event, Life, Record};

/// All that is noted of one value.
#[derive(Default)]
struct Story {
    /// When, and by which life.
    made: Vec<(u64, Life)>,
    freed: Vec<(u64, Life)>,
    /// Uses that cannot be: of what was freed, or never made.
    misused: Vec<(u64, Life)>,
    holds: Vec<Hold>,
}

/// A reference that a worker keeps.
struct Hold {
    life: Life,
    kept: u64,
    released: Option<u64>,
}

pub(super) fn check(records: &[Record], lives: &Lives) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (value, story) in collect(records) {
        let mut add = |rule, (at, life): (u64, Life), text: String| {
            let text = format!("value {value}: {text}");
            violations.push(Violation {
                rule,
                at,
                life,
                text,
            });
        };
        if let [_, again, ..] = story.made[..] {
            add("CK-5", again, "made twice".to_owned());
        }
        for misuse in &story.misused {
            let text = "used, and it was not there (any more)".to_owned();
            add("CK-6", *misuse, text);
        }
        if story.freed.len() > story.made.len() {
            let text = format!(
                "freed {} times, and made {} times",
                story.freed.len(),
                story.made.len()
            );
            add("CK-6", story.freed[story.freed.len() - 1], text);
        }
        for freed in &story.freed {
            for hold in &story.holds {
                if is_held_by_somebody_well(hold, *freed, lives) {
                    let holder = lives.worker(hold.life);
                    let text = match hold.kept <= freed.0 {
                        true => format!("freed while {holder} (life {}) kept it", hold.life),
                        false => format!(
                            "freed {} us before {holder} (life {}) kept it: a reference was on its way",
                            hold.kept - freed.0,
                            hold.life
                        ),
                    };
                    add("CK-7", *freed, text);
                }
            }
        }
        for made in &story.made {
            let (_, life) = *made;
            let Some(settled) = lives.settled(life) else {
                continue;
            };
            let mut freed = story.freed.iter().filter(|freed| freed.1 == life);
            if made.0 > settled {
                // Somebody has asked for it and has not waited for it.
                continue;
            }
            // When its process ends everything goes: that does not count. Nor does what one has that was taken for dead just then.
            let before = settled.saturating_sub(lives.recovery());
            let is_excused = lives.is_excused(life, before, settled);
            if !is_excused && !freed.any(|(at, _)| *at <= settled) {
                add("CK-8", *made, "never freed".to_owned());
            }
        }
    }
    violations
}

/// CK-7. A worker that the others may take for dead keeps what they may free, and one that is about to go frees what they keep.
///
/// A value may have been freed before it was kept: then the reference was on its way, and nobody may free what one is on its way to
/// (R1), also if whoever handed it on is lost (R4).
fn is_held_by_somebody_well(hold: &Hold, freed: (u64, Life), lives: &Lives) -> bool {
    let (at, owner) = freed;
    let is_held = hold.released.is_none_or(|released| at < released);
    let (from, to) = (hold.kept.min(at), hold.kept.max(at));
    let is_well = |life| !lives.is_troubled(life, from, to);
    is_held && is_well(hold.life) && is_well(owner)
}

fn collect(records: &[Record]) -> BTreeMap<u64, Story> {
    let mut stories = BTreeMap::<u64, Story>::new();
    // Which value a hold is on, and which of its holds it is.
    let mut holds = BTreeMap::<u64, (u64, usize)>::new();
    for Record { at, life, event } in records {
        let here = (*at, *life);
        match event {
            Event::Made { value } => stories.entry(*value).or_default().made.push(here),
            Event::Freed { value } => stories.entry(*value).or_default().freed.push(here),
            Event::Used { value, .. } => {
                let story = stories.entry(*value).or_default();
                let is_here = |all: &[(u64, Life)]| all.iter().any(|(_, there)| there == life);
                if !is_here(&story.made) || is_here(&story.freed) {
                    story.misused.push(here);
                }
            }
            Event::Kept { hold, value } => {
                let story = stories.entry(*value).or_default();
                holds.insert(*hold, (*value, story.holds.len()));
                story.holds.push(Hold {
                    life: *life,
                    kept: *at,
                    released: None,
                });
            }
            Event::Released { hold } => {
                let Some((value, index)) = holds.get(hold) else {
                    continue;
                };
                let story = stories.get_mut(value);
                if let Some(found) = story.and_then(|story| story.holds.get_mut(*index)) {
                    found.released = Some(*at);
                }
            }
            _ => {}
        }
    }
    stories
}

#[cfg(test)]
mod tests {
    use super::super::testing::Run;
    use super::*;
    use crate::history::Sample;

    const VALUE: u64 = 9;

    /// A value of life 2 that is there from 100 to 900 ms.
    fn run() -> Run {
        let mut run = Run::new();
        run.note(100, 2, Event::Made { value: VALUE });
        run.note(900, 2, Event::Freed { value: VALUE });
        run
    }

    fn hold(run: &mut Run, kept: u64, released: u64) {
        let value = VALUE;
        run.note(kept, 1, Event::Kept { hold: 5, value });
        run.note(released, 1, Event::Released { hold: 5 });
    }

    fn used(run: &mut Run, ms: u64, life: Life) {
        let value = VALUE;
        run.note(ms, life, Event::Used { value, call: 3 });
    }

    #[test]
    fn a_value_that_is_there_for_as_long_as_it_is_kept_is_right() {
        let mut run = run();
        hold(&mut run, 200, 800);
        used(&mut run, 500, 2);
        run.note(1_000, 2, Event::Settled(Sample::default()));
        assert!(run.broken().is_empty());
    }

    #[test]
    fn ck_5_a_value_that_is_made_twice_is_found() {
        let mut run = run();
        run.note(950, 1, Event::Made { value: VALUE });
        assert_eq!(run.broken(), ["CK-5"]);
    }

    #[test]
    fn ck_6_a_use_after_the_end_and_a_second_end_are_found() {
        let mut after = run();
        used(&mut after, 901, 2);
        assert_eq!(after.broken(), ["CK-6"]);
        let mut elsewhere = run();
        used(&mut elsewhere, 500, 1);
        assert_eq!(elsewhere.broken(), ["CK-6"]);
        let mut twice = run();
        twice.note(950, 2, Event::Freed { value: VALUE });
        assert_eq!(twice.broken(), ["CK-6"]);
        let mut never_made = Run::new();
        never_made.note(900, 2, Event::Freed { value: VALUE });
        assert_eq!(never_made.broken(), ["CK-6"]);
    }

    #[test]
    fn ck_7_a_value_that_is_freed_while_somebody_well_keeps_it_is_found() {
        let mut kept = run();
        hold(&mut kept, 200, 1_500);
        assert_eq!(kept.broken(), ["CK-7"]);
        // For ever.
        let mut kept = run();
        kept.note(
            200,
            1,
            Event::Kept {
                hold: 5,
                value: VALUE,
            },
        );
        assert_eq!(kept.broken(), ["CK-7"]);
        // Its holder is taken for dead, or its owner leaves.
        let mut evicted = run();
        hold(&mut evicted, 200, 1_500);
        evicted.fault(300, 1, 1, "worker0", true);
        assert!(evicted.broken().is_empty());
        let mut leaving = run();
        hold(&mut leaving, 200, 1_500);
        leaving.note(800, 2, Event::Leaving);
        assert!(leaving.broken().is_empty());
    }

    #[test]
    fn ck_7_a_value_that_is_freed_while_a_reference_is_on_its_way_is_found() {
        let mut given = run();
        hold(&mut given, 1_000, 1_500);
        assert_eq!(given.broken(), ["CK-7"]);
        // Whoever gave it may have been lost: the reference is not (R4).
        let mut giver = run();
        giver.start(0, 3, "worker2");
        giver.killed(800, 1, 3, "worker2");
        hold(&mut giver, 1_000, 1_500);
        assert_eq!(giver.broken(), ["CK-7"]);
        // Whoever gets it was taken for dead meanwhile.
        let mut evicted = run();
        evicted.fault(950, 1, 1, "worker0", true);
        hold(&mut evicted, 1_000, 1_500);
        assert!(evicted.broken().is_empty());
        // The owner was about to go.
        let mut leaving = run();
        leaving.note(890, 2, Event::Leaving);
        hold(&mut leaving, 1_000, 1_500);
        assert!(leaving.broken().is_empty());
    }

    #[test]
    fn ck_8_a_value_that_is_not_freed_when_nobody_has_it_is_found() {
        let mut late = run();
        late.note(850, 2, Event::Settled(Sample::default()));
        assert_eq!(late.broken(), ["CK-8"]);
        let mut never = Run::new();
        never.note(100, 2, Event::Made { value: VALUE });
        never.note(850, 2, Event::Settled(Sample::default()));
        assert_eq!(never.broken(), ["CK-8"]);
        // It has died with its owner.
        let mut killed = Run::new();
        killed.note(100, 2, Event::Made { value: VALUE });
        killed.killed(850, 1, 2, "worker1");
        assert!(killed.broken().is_empty());
    }
}
