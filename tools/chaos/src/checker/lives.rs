//! When which worker was well: what the others may say of it depends on that.
//!
//! A worker is not well from the moment at which something is done to it that the others may lose it by, and a new life is not yet, for as
//! long as the group may take to hear of it. Nor is anybody around a moment at which the machine stood still.

use std::collections::BTreeMap;

use super::Times;
use crate::history::{Event, Life, Record};

/// From a moment to another, both in microseconds.
#[derive(Clone, Copy, Debug)]
struct Span {
    from: u64,
    to: u64,
}

impl Span {
    fn meets(self, from: u64, to: u64) -> bool {
        self.from <= to && from <= self.to
    }
}

/// One process.
#[derive(Debug)]
struct Story {
    worker: String,
    /// Whether another life of the worker was there before it.
    is_a_return: bool,
    joined: Option<u64>,
    /// When others may have lost it, because of what was done to it.
    excuses: Vec<Span>,
    /// When it did not get to run: stopped by the driver, for however long, or without a sample for long.
    pauses: Vec<Span>,
    /// Since when it is no member, or is about to be none.
    over: Option<u64>,
    /// Since when it does nothing any more.
    ended: Option<u64>,
    last_sample: Option<u64>,
    is_quiet: bool,
    settled: Option<u64>,
}

/// A fault, whether or not anybody may be lost by it.
#[derive(Debug)]
struct Touched {
    number: u32,
    worker: String,
    span: Span,
}

/// All processes of a run.
#[derive(Debug)]
pub(super) struct Lives {
    times: Times,
    stories: BTreeMap<Life, Story>,
    by_worker: BTreeMap<String, Vec<Life>>,
    faults: Vec<Touched>,
    /// When the machine stood still.
    stalls: Vec<Span>,
    /// How many times a worker was excused because it did not note how it is for long, and nobody had stopped it.
    silences: u32,
    /// When the last record was written.
    last: u64,
}

impl Lives {
    pub(super) fn of(records: &[Record], times: Times) -> Self {
        let mut lives = Self {
            times,
            stories: BTreeMap::new(),
            by_worker: BTreeMap::new(),
            faults: Vec::new(),
            stalls: Vec::new(),
            silences: 0,
            last: records.last().map_or(0, |record| record.at),
        };
        // The life that a fault is done to, while it lasts.
        let mut standing = BTreeMap::<u32, Life>::new();
        for record in records {
            lives.read(record, &mut standing);
        }
        lives
    }

    fn read(&mut self, record: &Record, standing: &mut BTreeMap<u32, Life>) {
        let Record { at, life, event } = record;
        let (at, recovery) = (*at, self.times.recovery);
        match event {
            Event::Started { life, worker, .. } => self.start(*life, worker),
            Event::Fault {
                number,
                kind,
                worker,
                life,
                loses,
                ..
            } => {
                let span = Span {
                    from: at,
                    to: u64::MAX,
                };
                self.faults.push(Touched {
                    number: *number,
                    worker: worker.clone(),
                    span,
                });
                if let Some(story) = self.stories.get_mut(life) {
                    story.excuses.extend(loses.then_some(span));
                    story.pauses.extend((kind == "stop").then_some(span));
                    standing.insert(*number, *life);
                }
            }
            Event::FaultOver { number } => {
                let fault = self.faults.iter_mut().find(|fault| fault.number == *number);
                if let Some(fault) = fault {
                    fault.span.to = at + recovery;
                }
                let Some(life) = standing.remove(number) else {
                    return;
                };
                let Some(story) = self.stories.get_mut(&life) else {
                    return;
                };
                let is_open = |span: &&mut Span| span.to == u64::MAX;
                if let Some(excuse) = story.excuses.iter_mut().find(is_open) {
                    excuse.to = at + recovery;
                }
                if let Some(pause) = story.pauses.iter_mut().find(is_open) {
                    pause.to = at;
                }
            }
            Event::Stalled { micros } => self.stalls.push(Span {
                from: at.saturating_sub(*micros),
                to: at + recovery,
            }),
            Event::Gone { life, .. } => self.end(*life, at, true),
            Event::Over { .. } => self.end(*life, at, true),
            Event::Leaving => self.end(*life, at, false),
            Event::Joined { .. } => {
                if let Some(story) = self.stories.get_mut(life) {
                    story.joined.get_or_insert(at);
                }
            }
            Event::Sampled(_) => self.sample(*life, at),
            Event::Quiet => {
                if let Some(story) = self.stories.get_mut(life) {
                    story.is_quiet = true;
                }
            }
            Event::Settled(_) => {
                if let Some(story) = self.stories.get_mut(life) {
                    story.settled = Some(at);
                }
            }
            _ => {}
        }
    }

    fn start(&mut self, life: Life, worker: &str) {
        let lives = self.by_worker.entry(worker.to_owned()).or_default();
        let story = Story {
            worker: worker.to_owned(),
            is_a_return: !lives.is_empty(),
            joined: None,
            excuses: Vec::new(),
            pauses: Vec::new(),
            over: None,
            ended: None,
            last_sample: None,
            is_quiet: false,
            settled: None,
        };
        lives.push(life);
        self.stories.insert(life, story);
    }

    fn end(&mut self, life: Life, at: u64, does_nothing_more: bool) {
        if let Some(story) = self.stories.get_mut(&life) {
            story.over.get_or_insert(at);
            if does_nothing_more {
                story.ended.get_or_insert(at);
            }
        }
    }

    /// One that has not noted for long how it is has said nothing to the others either.
    fn sample(&mut self, life: Life, at: u64) {
        let times = self.times;
        if let Some(story) = self.stories.get_mut(&life) {
            let before = story.last_sample.replace(at);
            if let Some(from) = before.filter(|before| at - before > times.silence / 2) {
                let is_in_it = |stop: &Span| stop.from < at && from < stop.to;
                let was_stopped = story.pauses.iter().any(is_in_it);
                self.silences += u32::from(!was_stopped);
                let to = at + times.recovery;
                story.excuses.push(Span { from, to });
                story.pauses.push(Span { from, to: at });
            }
        }
    }

    /// What the worker of a life is called.
    pub(super) fn worker(&self, life: Life) -> &str {
        let story = self.stories.get(&life);
        story.map_or("nobody", |story| &story.worker)
    }

    /// Whether something happened in that time that a life may have been lost by.
    pub(super) fn is_excused(&self, life: Life, from: u64, to: u64) -> bool {
        let meets = |span: &Span| span.meets(from, to);
        let story = self.stories.get(&life);
        self.stalls.iter().any(meets) || story.is_none_or(|story| story.excuses.iter().any(meets))
    }

    /// Whether it was not well at some moment of that time: over, or excused.
    pub(super) fn is_troubled(&self, life: Life, from: u64, to: u64) -> bool {
        let story = self.stories.get(&life);
        let is_over = story.is_none_or(|story| story.over.is_some_and(|over| over <= to));
        is_over || self.is_excused(life, from, to)
    }

    /// Whether a life did not get to run for some of that time, as far as anybody noted it.
    pub(super) fn was_kept_from_running(&self, life: Life, from: u64, to: u64) -> bool {
        let meets = |span: &Span| span.meets(from, to);
        let story = self.stories.get(&life);
        self.stalls.iter().any(meets) || story.is_none_or(|story| story.pauses.iter().any(meets))
    }

    /// Until when a life may have done anything: its end, or the end of the run.
    pub(super) fn lasts_until(&self, life: Life) -> u64 {
        let ended = self.stories.get(&life).and_then(|story| story.ended);
        ended.unwrap_or(self.last)
    }

    /// Whether one and the same life of a worker was well all that time, and all knew of it.
    pub(super) fn is_steady(&self, worker: &str, from: u64, to: u64) -> bool {
        let lives = self.by_worker.get(worker).into_iter().flatten();
        let mut lives = lives.filter_map(|life| Some((life, self.stories.get(life)?)));
        lives.any(|(life, story)| {
            let wait = match story.is_a_return {
                true => self.times.recovery,
                false => 0,
            };
            let is_known = story.joined.is_some_and(|joined| joined + wait <= from);
            is_known && !self.is_troubled(*life, from, to)
        })
    }

    /// Whether some life of a worker came to its end in that time, or may have been lost during it.
    pub(super) fn has_lost_a_life(&self, worker: &str, from: u64, to: u64) -> bool {
        let ended = |life| {
            let over = self.stories.get(life).and_then(|story: &Story| story.over);
            over.is_some_and(|over| from <= over && over <= to)
        };
        let lives = self.by_worker.get(worker);
        lives.is_none_or(|lives| {
            let mut lives = lives.iter();
            lives.any(|life| ended(life) || self.is_excused(*life, from, to))
        })
    }

    /// Whether anything was done to a worker, or to its connections, in that time.
    pub(super) fn was_touched(&self, worker: &str, from: u64, to: u64) -> bool {
        let mut faults = self.faults.iter().filter(|fault| fault.worker == worker);
        faults.any(|fault| fault.span.meets(from, to))
            || self.stalls.iter().any(|stall| stall.meets(from, to))
            || !self.is_steady(worker, from, to)
    }

    /// Whether all calls of a life are to be over.
    pub(super) fn is_quiet(&self, life: Life) -> bool {
        self.stories.get(&life).is_some_and(|story| story.is_quiet)
    }

    /// When a life had let go of everything, if it lived to do so.
    pub(super) fn settled(&self, life: Life) -> Option<u64> {
        self.stories.get(&life)?.settled
    }

    pub(super) fn recovery(&self) -> u64 {
        self.times.recovery
    }

    /// How many times a worker stood still by itself, and was excused.
    pub(super) fn silences(&self) -> u32 {
        self.silences
    }

    /// For how long a worker or the machine may stand still so that nobody notes it.
    pub(super) fn unnoted(&self) -> u64 {
        self.times.silence / 2
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{PEER_TIMEOUT, Run};
    use super::*;
    use crate::history::{DRIVER, Sample};

    const MS: u64 = 1_000;

    fn lives(run: &Run) -> Lives {
        Lives::of(&run.0, Times::new(PEER_TIMEOUT))
    }

    #[test]
    fn a_worker_is_steady_until_something_is_done_to_it_and_again_when_all_know_its_next_life() {
        let mut run = Run::new();
        run.killed(1_000, 1, 2, "worker1");
        run.start(2_000, 3, "worker1");
        run.note(2_000, DRIVER, Event::FaultOver { number: 1 });
        let lives = lives(&run);
        assert!(lives.is_steady("worker1", 100 * MS, 900 * MS));
        assert!(!lives.is_steady("worker1", 900 * MS, 1_100 * MS));
        assert!(!lives.is_steady("worker1", 2_100 * MS, 2_200 * MS));
        assert!(lives.is_steady("worker1", 6_100 * MS, 9_000 * MS));
        assert!(lives.is_steady("worker0", 0, 9_000 * MS));
        assert!(!lives.has_lost_a_life("worker1", 0, 900 * MS));
        assert!(lives.has_lost_a_life("worker1", 900 * MS, 9_000 * MS));
        // That was before.
        assert!(!lives.has_lost_a_life("worker1", 20_000 * MS, 21_000 * MS));
        assert_eq!(lives.worker(3), "worker1");
    }

    #[test]
    fn a_fault_that_nobody_is_lost_by_touches_and_excuses_nothing() {
        let mut run = Run::new();
        run.fault(1_000, 1, 2, "worker1", false);
        run.note(1_500, DRIVER, Event::FaultOver { number: 1 });
        let lives = lives(&run);
        assert!(lives.is_steady("worker1", 0, 9_000 * MS));
        assert!(lives.was_touched("worker1", 1_200 * MS, 1_300 * MS));
        assert!(!lives.was_touched("worker1", 0, 900 * MS));
        assert!(!lives.was_touched("worker1", 5_600 * MS, 9_000 * MS));
    }

    #[test]
    fn one_that_was_silent_for_long_or_stood_on_a_machine_that_did_is_excused() {
        let mut run = Run::new();
        for ms in [0, 500, 2_000, 2_500] {
            run.note(ms, 1, Event::Sampled(Sample::default()));
        }
        run.note(20_000, DRIVER, Event::Stalled { micros: 1_000 * MS });
        let lives = lives(&run);
        assert_eq!(lives.silences(), 1);
        assert!(lives.is_excused(1, 1_000 * MS, 1_100 * MS));
        assert!(!lives.is_excused(2, 1_000 * MS, 1_100 * MS));
        assert!(!lives.is_excused(1, 7_000 * MS, 8_000 * MS));
        assert!(lives.is_excused(2, 19_500 * MS, 19_600 * MS));
    }

    #[test]
    fn a_silence_is_counted_unless_its_worker_was_stopped() {
        let mut run = Run::new();
        run.fault(600, 1, 1, "worker0", true);
        run.note(1_900, DRIVER, Event::FaultOver { number: 1 });
        for ms in [0, 500, 2_000, 2_500, 4_000] {
            run.note(ms, 1, Event::Sampled(Sample::default()));
            run.note(ms, 2, Event::Sampled(Sample::default()));
        }
        // Once the one that was stopped, after that; twice the other one.
        assert_eq!(lives(&run).silences(), 3);
    }
}
