//! References that are held for long, by the source line that made them, and whether they become more.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Serialize;

use crate::view::references::Reference;
use crate::view::text::short_type;

/// How many lines are told of.
const LINES: usize = 200;
/// How many moments are kept of each.
const MOMENTS: usize = 120;
/// How many types, owners and holders of a line are named.
const NAMED: usize = 5;

/// The references of one source line.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct LeakLine {
    pub(super) line: String,
    pub(super) count: usize,
    /// Seconds that the oldest has been held.
    pub(super) oldest: Option<f64>,
    pub(super) types: Vec<String>,
    pub(super) owners: Vec<String>,
    pub(super) holders: Vec<String>,
    /// How many there were at the last looks, the latest last.
    pub(super) history: Vec<usize>,
    /// Whether there are more than at first, and never were fewer from one half of the history to the other.
    pub(super) grows: bool,
}

/// How many references of each line there were.
#[derive(Default)]
pub(super) struct LeakHistory(BTreeMap<String, VecDeque<usize>>);

#[derive(Default)]
struct Lines {
    count: usize,
    oldest: Option<Duration>,
    types: Vec<String>,
    owners: Vec<String>,
    holders: Vec<String>,
}

impl LeakHistory {
    pub(super) fn update(&mut self, references: &[Reference]) {
        let now = by_line(references);
        self.0.retain(|line, _| now.contains_key(&**line));
        for (line, lines) in now {
            if !self.0.contains_key(line) && self.0.len() >= 10 * LINES {
                continue;
            }
            let history = self.0.entry(line.to_owned()).or_default();
            if history.len() == MOMENTS {
                history.pop_front();
            }
            history.push_back(lines.count);
        }
    }

    /// Lines that hold most for longest first: those that grow, then by age.
    pub(super) fn lines(&self, references: &[Reference]) -> Vec<LeakLine> {
        let lines = by_line(references).into_iter().map(|(line, found)| {
            let history: Vec<usize> = self.0.get(line).into_iter().flatten().copied().collect();
            LeakLine {
                grows: grows(&history),
                line: line.to_owned(),
                count: found.count,
                oldest: found.oldest.map(|age| age.as_secs_f64()),
                types: found.types,
                owners: found.owners,
                holders: found.holders,
                history,
            }
        });
        let mut lines: Vec<LeakLine> = lines.collect();
        let age = |line: &LeakLine| line.oldest.unwrap_or_default();
        lines.sort_by(|one, other| {
            let by_growth = other.grows.cmp(&one.grows);
            by_growth.then(age(other).total_cmp(&age(one)))
        });
        lines.truncate(LINES);
        lines
    }
}

fn by_line(references: &[Reference]) -> BTreeMap<&str, Lines> {
    let mut lines: BTreeMap<&str, Lines> = BTreeMap::new();
    for reference in references {
        let Some(line) = reference.line() else {
            continue;
        };
        let found = lines.entry(line).or_default();
        found.count += 1;
        found.oldest = found.oldest.max(reference.age());
        name(&mut found.types, &short_type(&reference.type_name));
        name(&mut found.owners, &reference.owner);
        for holder in reference.holds.keys() {
            name(&mut found.holders, holder);
        }
    }
    lines
}

fn name(names: &mut Vec<String>, another: &str) {
    if names.len() < NAMED && !another.is_empty() && !names.iter().any(|known| known == another) {
        names.push(another.to_owned());
    }
}

/// Whether the least of the second half is more than the most of the first.
fn grows(history: &[usize]) -> bool {
    let (first, second) = history.split_at(history.len() / 2);
    first.len() >= 4 && second.iter().min() > first.iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{references, samples};

    #[test]
    fn references_are_put_together_by_the_line_that_made_them() {
        let merged = references::merge(&samples::group());
        let mut history = LeakHistory::default();
        history.update(&merged);
        let lines = history.lines(&merged);
        let line = lines.iter().find(|line| line.line == "src/log.rs:3:1");
        let line = line.expect("a line with one reference");
        assert_eq!((line.count, line.oldest), (1, Some(7300.0)));
        assert_eq!(
            (&*line.types[0], &*line.owners[0]),
            ("String", "parameters")
        );
        assert_eq!(line.history, [1]);
        assert_eq!(lines[0].line, line.line); // held for longest
    }

    #[test]
    fn only_what_becomes_more_and_more_grows() {
        assert!(grows(&[1, 2, 3, 4, 5, 6, 7, 8]));
        assert!(!grows(&[5, 5, 5, 5, 5, 5, 5, 5]));
        assert!(!grows(&[1, 9, 1, 9, 1, 9, 1, 9]));
        assert!(!grows(&[1, 2]));
        assert!(!grows(&[]));
    }
}
