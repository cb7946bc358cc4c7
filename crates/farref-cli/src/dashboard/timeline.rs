//! Calls of all workers on one line of time, and as a trace that Chrome and Perfetto read.
//!
//! Workers tell the time of a call by how long they had been there. What that is here is learned from their answers: a
//! worker cannot have begun later than its answer came minus what it said, and the least of these is the best guess. It
//! is wrong by the time that the quickest answer took.
//!
//! A worker that has to be asked anew tells again of what it told before, and of what was over before anybody looked:
//! neither is added.

use std::collections::{BTreeMap, VecDeque};

use farref::FinishedCall;
use serde::Serialize;
use serde_json::{Value, json};

use crate::view::seen::Seen;

/// How many calls are kept.
const MOST: usize = 20_000;
/// After so many looks without a word of it, a worker is forgotten.
const FORGOTTEN: u64 = 3600;
/// How many workers are known at a time.
const WORKERS: usize = 20_000;

/// What is known of a life of a worker.
struct Clock {
    life: u32,
    /// When it began here, by the first answer and by the quickest.
    first_guess: f64,
    began: f64,
    /// How many calls it had recorded.
    recorded: u64,
    /// The last look at which it answered.
    looked: u64,
}

/// A call of the group that is over.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Span {
    pub(super) worker: String,
    pub(super) rank: u32,
    pub(super) function: String,
    pub(super) caller: String,
    /// Milliseconds since 1970.
    pub(super) at: f64,
    /// In milliseconds.
    pub(super) took: f64,
    pub(super) failed: bool,
    pub(super) trace: String,
    pub(super) span: String,
    /// None if it was made outside of remote functions.
    pub(super) parent: Option<String>,
}

/// The calls that were seen.
#[derive(Default)]
pub(super) struct Timeline {
    /// By rank.
    clocks: BTreeMap<u32, Clock>,
    /// When this began to look, and how often it has.
    since: Option<f64>,
    looks: u64,
    spans: VecDeque<Span>,
    /// How many have been added so far.
    pub(super) added: u64,
    /// How many were recorded and could not be fetched in time.
    pub(super) missed: u64,
}

impl Timeline {
    pub(super) fn update(&mut self, seen: &[Seen], at: f64) {
        let since = *self.since.get_or_insert(at);
        self.looks += 1;
        let oldest = self.looks.saturating_sub(FORGOTTEN);
        self.clocks.retain(|_, clock| clock.looked >= oldest);
        for (name, snapshot) in seen
            .iter()
            .filter_map(|one| Some((&one.name, one.answer()?)))
        {
            let guess = at - snapshot.uptime.as_secs_f64() * 1000.0;
            let is_crowded = self.clocks.len() >= WORKERS;
            let known = self.clocks.get_mut(&snapshot.rank);
            let known = known.filter(|clock| clock.life == snapshot.incarnation);
            let (began, new) = match known {
                Some(clock) => {
                    clock.began = clock.began.min(guess);
                    clock.looked = self.looks;
                    let new = snapshot.recorded.saturating_sub(clock.recorded);
                    clock.recorded = snapshot.recorded;
                    let missed = new.saturating_sub(snapshot.finished.len() as u64);
                    self.missed = self.missed.saturating_add(missed);
                    (clock.began, usize::try_from(new).unwrap_or(usize::MAX))
                }
                None if is_crowded => continue,
                None => {
                    let clock = Clock {
                        life: snapshot.incarnation,
                        first_guess: guess,
                        began: guess,
                        recorded: snapshot.recorded,
                        looked: self.looks,
                    };
                    self.clocks.insert(snapshot.rank, clock);
                    let since_then = |call: &&FinishedCall| {
                        let end = call.began.saturating_add(call.took);
                        guess + end.as_secs_f64() * 1000.0 >= since
                    };
                    let new = snapshot.finished.iter().rev().take_while(since_then);
                    (guess, new.count())
                }
            };
            let known = snapshot.finished.len().saturating_sub(new);
            for call in snapshot.finished.iter().skip(known) {
                if self.spans.len() == MOST {
                    self.spans.pop_front();
                }
                self.spans.push_back(span(name, snapshot.rank, began, call));
                self.added += 1;
            }
        }
    }

    /// When the life of a worker began that is known, in milliseconds since 1970: what was thought of it first.
    pub(super) fn began(&self, rank: u32) -> Option<f64> {
        self.clocks.get(&rank).map(|clock| clock.first_guess)
    }

    /// The latest, at most so many, the earliest of them first.
    pub(super) fn latest(&self, most: usize) -> Vec<&Span> {
        let skipped = self.spans.len().saturating_sub(most);
        let mut latest: Vec<&Span> = self.spans.iter().skip(skipped).collect();
        latest.sort_by(|one, other| one.at.total_cmp(&other.at));
        latest
    }

    /// Those that were added since there were so many.
    pub(super) fn since(&self, added: u64) -> impl Iterator<Item = &Span> {
        let new = usize::try_from(self.added.saturating_sub(added)).unwrap_or(usize::MAX);
        self.spans.iter().skip(self.spans.len().saturating_sub(new))
    }

    /// What Chrome's tracing and Perfetto open: a process for each worker, as many rows as it has calls at once, an
    /// arrow from the call that made a call.
    pub(super) fn chrome(&self) -> Value {
        let spans = self.latest(MOST);
        let mut events = Vec::new();
        let mut rows: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
        let mut places: BTreeMap<&str, (u32, usize, f64)> = BTreeMap::new();
        let microseconds = |milliseconds: f64| (milliseconds * 1000.0).round();
        for span in &spans {
            let ends = rows.entry(span.rank).or_insert_with(|| {
                events.push(json!({
                    "ph": "M", "name": "process_name", "pid": span.rank, "args": {"name": span.worker},
                }));
                Vec::new()
            });
            let free = ends.iter().position(|end| *end <= span.at);
            let row = free.unwrap_or(ends.len());
            match ends.get_mut(row) {
                Some(end) => *end = span.at + span.took,
                None => ends.push(span.at + span.took),
            }
            places.insert(&span.span, (span.rank, row, span.at));
            events.push(json!({
                "ph": "X", "name": span.function, "cat": if span.failed { "failed" } else { "call" },
                "pid": span.rank, "tid": row,
                "ts": microseconds(span.at), "dur": microseconds(span.took).max(1.0),
                "args": {
                    "caller": span.caller, "failed": span.failed,
                    "trace": span.trace, "span": span.span, "parent": span.parent,
                },
            }));
        }
        for span in &spans {
            let parent = span.parent.as_deref().and_then(|parent| places.get(parent));
            let (Some((rank, row, _)), Some(own)) = (parent, places.get(&*span.span)) else {
                continue;
            };
            let arrow = |phase: &str, rank: u32, row: usize| {
                json!({
                    "ph": phase, "name": "call", "cat": "flow", "id": span.span, "bp": "e",
                    "pid": rank, "tid": row, "ts": microseconds(span.at),
                })
            };
            events.push(arrow("s", *rank, *row));
            events.push(arrow("f", own.0, own.1));
        }
        json!({"displayTimeUnit": "ms", "traceEvents": events})
    }
}

fn span(worker: &str, rank: u32, began: f64, call: &FinishedCall) -> Span {
    let id = |number: u64| format!("{number:016x}");
    Span {
        worker: worker.to_owned(),
        rank,
        function: call.function.clone(),
        caller: call.caller.clone(),
        at: began + call.began.as_secs_f64() * 1000.0,
        took: call.took.as_secs_f64() * 1000.0,
        failed: call.failed,
        trace: id(call.trace.trace),
        span: id(call.trace.span),
        parent: (!call.trace.is_outermost()).then(|| id(call.trace.parent)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::samples;

    /// One call on `parameters` that was made by one on `trainer0`.
    fn nested() -> Vec<Seen> {
        let mut seen = samples::group();
        samples::edit(&mut seen[1], |snapshot| {
            snapshot.finished = samples::finished("train::step", (7, 8, 7), 7000, 300);
            snapshot.recorded = 1;
        });
        samples::edit(&mut seen[0], |snapshot| {
            snapshot.finished = samples::finished("apply", (7, 9, 8), 7100, 100);
            snapshot.recorded = 3;
        });
        seen
    }

    #[test]
    fn calls_of_several_workers_are_on_one_line_of_time() {
        let mut timeline = Timeline::default();
        timeline.update(&samples::group(), 7_400_000.0);
        timeline.update(&nested(), 7_384_000.0 + 100.0);
        let spans = timeline.latest(10);
        assert_eq!(spans.len(), 2);
        assert_eq!(
            (&*spans[0].function, &*spans[0].worker),
            ("train::step", "trainer0")
        );
        assert_eq!(spans[0].parent, None);
        assert_eq!(spans[1].parent.as_ref(), Some(&spans[0].span));
        // The quickest answer counts: they began 7384 s before it.
        assert_eq!((spans[0].at, spans[1].at), (7100.0, 7200.0));
        assert_eq!(timeline.missed, 2);
    }

    #[test]
    fn a_worker_that_tells_again_what_it_told_adds_nothing() {
        let mut timeline = Timeline::default();
        timeline.update(&samples::group(), 7_384_000.0);
        timeline.update(&nested(), 7_384_000.0);
        assert_eq!(timeline.added, 2);
        // The connection broke: whatever is still kept there comes again, and one more.
        let mut again = nested();
        timeline.update(&again, 7_385_000.0);
        assert_eq!(timeline.added, 2);
        samples::edit(&mut again[0], |snapshot| {
            let more = samples::finished("apply", (7, 10, 8), 7300, 100);
            snapshot.finished.extend(more);
            snapshot.recorded += 1;
        });
        timeline.update(&again, 7_386_000.0);
        let spans = timeline.latest(10);
        let ids: Vec<&str> = spans.iter().map(|span| &*span.span).collect();
        assert_eq!(ids.len(), 3);
        assert!(ids.iter().any(|id| id.ends_with('a')), "{ids:?}");
    }

    #[test]
    fn what_was_over_before_anybody_looked_is_not_shown() {
        // They ended 7.3 s after their workers began, which was 7384 s ago.
        let mut timeline = Timeline::default();
        timeline.update(&nested(), 7_384_000.0);
        assert_eq!((timeline.added, timeline.missed), (0, 0));
        // Of a life that came meanwhile all of it is news.
        let mut later = nested();
        samples::edit(&mut later[1], |snapshot| {
            snapshot.incarnation += 1;
            snapshot.uptime = std::time::Duration::from_secs(10);
        });
        timeline.update(&later, 7_394_000.0);
        let spans = timeline.latest(10);
        assert_eq!(spans.len(), 1);
        assert_eq!((&*spans[0].worker, spans[0].at), ("trainer0", 7_391_000.0));
    }

    #[test]
    fn workers_that_nobody_hears_of_are_forgotten() {
        let mut timeline = Timeline::default();
        let mut seen = samples::group();
        timeline.update(&seen, 0.0);
        seen.pop();
        for look in 0..FORGOTTEN + 2 {
            timeline.update(&seen, look as f64);
        }
        assert_eq!(timeline.clocks.len(), 2);
    }

    #[test]
    fn the_export_has_every_call_and_an_arrow_between_them() {
        let mut timeline = Timeline::default();
        timeline.update(&samples::group(), 7_384_000.0);
        timeline.update(&nested(), 7_384_000.0);
        let chrome = timeline.chrome();
        let events = chrome["traceEvents"].as_array().expect("events");
        let of = |phase: &str| events.iter().filter(|event| event["ph"] == phase).count();
        assert_eq!((of("X"), of("M"), of("s"), of("f")), (2, 2, 1, 1));
        let step = events.iter().find(|event| event["name"] == "train::step");
        assert_eq!(step.expect("it is there")["dur"], 300_000.0);
    }

    #[test]
    fn calls_at_the_same_time_have_rows_of_their_own_and_the_oldest_go_first() {
        let mut timeline = Timeline::default();
        let mut seen = samples::group();
        samples::edit(&mut seen[0], |snapshot| {
            let calls = (0..MOST as u64 + 5)
                .flat_map(|n| samples::finished("f", (1, n + 2, 1), 7000, 1000));
            snapshot.finished = calls.collect();
            snapshot.recorded = snapshot.finished.len() as u64;
        });
        timeline.update(&samples::group(), 0.0);
        timeline.update(&seen, 0.0);
        assert_eq!(timeline.latest(usize::MAX).len(), MOST);
        assert_eq!(timeline.since(timeline.added - 3).count(), 3);
        let mut few = Timeline::default();
        samples::edit(&mut seen[0], |snapshot| {
            snapshot.finished.truncate(3);
            snapshot.recorded = 3;
        });
        few.update(&samples::group(), 0.0);
        few.update(&seen, 0.0);
        let chrome = few.chrome();
        let events = chrome["traceEvents"].as_array().expect("events");
        let rows: Vec<u64> = events
            .iter()
            .filter(|event| event["ph"] == "X")
            .filter_map(|event| event["tid"].as_u64())
            .collect();
        assert_eq!(rows, [0, 1, 2]);
    }
}
