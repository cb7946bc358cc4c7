//! References of all workers put together: who keeps what alive.
//!
//! The owner of a value knows who holds references to it; each holder knows where it got its own, and
//! when. One reference is what all of them know about one id.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;

use super::seen::Seen;
use super::text::{short_line, short_type};

/// One value and all who refer to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Reference {
    pub(crate) id: String,
    /// Empty if nobody knows it.
    pub(crate) type_name: String,
    pub(crate) owner: String,
    /// By holder.
    pub(crate) holds: BTreeMap<String, Hold>,
}

/// What a holder knows of its reference.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hold {
    /// The source line that made or received it.
    pub(crate) line: Option<String>,
    pub(crate) age: Option<Duration>,
}

/// Puts together what the workers know, in the order in which they were made on each worker.
pub(crate) fn merge(seen: &[Seen]) -> Vec<Reference> {
    let mut merged: BTreeMap<&str, Reference> = BTreeMap::new();
    for (worker, known) in seen
        .iter()
        .filter_map(|seen| Some((&seen.name, seen.answer()?)))
        .flat_map(|(name, snapshot)| snapshot.references.iter().map(move |known| (name, known)))
    {
        let reference = merged.entry(&known.id).or_insert_with(|| Reference {
            id: known.id.clone(),
            type_name: String::new(),
            owner: known.owner.clone(),
            holds: BTreeMap::new(),
        });
        if reference.type_name.is_empty() {
            reference.type_name.clone_from(&known.type_name);
        }
        for holder in &known.holders {
            let hold = reference.holds.entry(holder.clone()).or_default();
            if holder == worker {
                hold.line.clone_from(&known.location);
                hold.age = known.age;
            }
        }
    }
    let mut merged: Vec<Reference> = merged.into_values().collect();
    // `r10@w0` comes after `r9@w0`.
    merged.sort_by_cached_key(|one| {
        let (counter, worker) = one.id.split_once('@').unwrap_or((&one.id, ""));
        (worker.to_owned(), counter.len(), counter.to_owned())
    });
    merged
}

impl Reference {
    /// How long it has been held.
    pub(crate) fn age(&self) -> Option<Duration> {
        self.holds.values().filter_map(|hold| hold.age).max()
    }

    /// The line of whoever has had it for longest.
    pub(crate) fn line(&self) -> Option<&str> {
        let lines = self.holds.values().filter(|hold| hold.line.is_some());
        lines.max_by_key(|hold| hold.age)?.line.as_deref()
    }

    /// All who hold it.
    pub(crate) fn holders(&self) -> String {
        match self.holds.is_empty() {
            true => NOBODY.to_owned(),
            false => self.holds.keys().cloned().collect::<Vec<_>>().join(", "),
        }
    }

    /// Whether the id, the type, the owner, a holder or a source line contains the text, in whatever
    /// case.
    pub(crate) fn matches(&self, text: &str) -> bool {
        let text = text.to_lowercase();
        let lines = self.holds.values().filter_map(|hold| hold.line.as_ref());
        [&self.id, &self.type_name, &self.owner]
            .into_iter()
            .chain(self.holds.keys())
            .chain(lines)
            .any(|known| known.to_lowercase().contains(&text))
            // As it is shown.
            || short_type(&self.type_name).to_lowercase().contains(&text)
    }
}

/// Ids without the life of the worker, `r7@w0` for `r7@w0#1794751532`, unless that would make two of them
/// the same.
pub(crate) fn short_ids<'a>(references: &[&'a Reference]) -> Vec<&'a str> {
    let short = |one: &&'a Reference| one.id.split_once('#').map_or(&*one.id, |(id, _)| id);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for reference in references {
        *counts.entry(short(reference)).or_default() += 1;
    }
    let ids = references.iter().map(|one| match counts.get(short(one)) {
        Some(1) => short(one),
        _ => &*one.id,
    });
    ids.collect()
}

/// Values that nobody holds are on their way, or about to be freed.
const NOBODY: &str = "nobody";
const UNKNOWN: &str = "unknown";
/// What stands for the source line of references that came with a message.
pub(crate) const RECEIVED: &str = "received";

fn no_line(reference: &Reference) -> &'static str {
    match reference.age() {
        Some(_) => RECEIVED,
        None => UNKNOWN,
    }
}

/// What references are grouped by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(crate) enum By {
    /// Type, owner, holders and source line
    #[default]
    All,
    /// The type of the value
    Type,
    /// The worker that has the value
    Owner,
    /// The workers that hold references
    Holder,
    /// The source lines where holders got them
    Line,
}

impl By {
    /// The next in a circle of all.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::All => Self::Type,
            Self::Type => Self::Owner,
            Self::Owner => Self::Holder,
            Self::Holder => Self::Line,
            Self::Line => Self::All,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::All => "type, owner, holders and line",
            Self::Type => "type",
            Self::Owner => "owner",
            Self::Holder => "holder",
            Self::Line => "source line",
        }
    }

    /// What the columns of a group's key are called.
    pub(crate) fn titles(self) -> &'static [&'static str] {
        match self {
            Self::All => &["type", "owner", "held by", "got at"],
            Self::Type => &["type"],
            Self::Owner => &["owner"],
            Self::Holder => &["held by"],
            Self::Line => &["got at"],
        }
    }

    /// The groups that a reference belongs to, without repetitions.
    pub(crate) fn keys(self, reference: &Reference, full: bool) -> Vec<Vec<String>> {
        let shown = |line: &str| shown_line(line, full).to_owned();
        let some = |mut texts: Vec<String>, none: &str| {
            texts.dedup();
            if texts.is_empty() {
                texts.push(none.to_owned());
            }
            texts.into_iter().map(|text| vec![text]).collect()
        };
        let type_name = || shown_type(&reference.type_name, full);
        match self {
            Self::All => vec![vec![
                type_name(),
                reference.owner.clone(),
                reference.holders(),
                reference
                    .line()
                    .map_or_else(|| no_line(reference).to_owned(), shown),
            ]],
            Self::Type => vec![vec![type_name()]],
            Self::Owner => vec![vec![reference.owner.clone()]],
            Self::Holder => some(reference.holds.keys().cloned().collect(), NOBODY),
            Self::Line => {
                let lines = reference.holds.values();
                let lines = lines.filter_map(|hold| hold.line.as_deref().map(shown));
                let mut lines: Vec<String> = lines.collect();
                lines.sort();
                some(lines, no_line(reference))
            }
        }
    }
}

/// References that have something in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    pub(crate) key: Vec<String>,
    pub(crate) count: usize,
    /// How long the oldest has been held.
    pub(crate) oldest: Option<Duration>,
}

/// Groups references, the largest group first.
pub(crate) fn groups<'a>(
    references: impl IntoIterator<Item = &'a Reference>,
    by: By,
    full: bool,
) -> Vec<Group> {
    let mut groups: BTreeMap<Vec<String>, (usize, Option<Duration>)> = BTreeMap::new();
    for reference in references {
        for key in by.keys(reference, full) {
            let (count, oldest) = groups.entry(key).or_default();
            *count += 1;
            *oldest = (*oldest).max(reference.age());
        }
    }
    let groups = groups
        .into_iter()
        .map(|(key, (count, oldest))| Group { key, count, oldest });
    let mut groups: Vec<Group> = groups.collect();
    groups.sort_by_key(|group| std::cmp::Reverse((group.count, group.oldest)));
    groups
}

pub(crate) fn shown_type(name: &str, full: bool) -> String {
    match (name, full) {
        ("", _) => UNKNOWN.to_owned(),
        (name, true) => name.to_owned(),
        (name, false) => short_type(name),
    }
}

pub(crate) fn shown_line(line: &str, full: bool) -> &str {
    if full { line } else { short_line(line) }
}

#[cfg(test)]
mod tests {
    use super::super::samples;
    use super::*;

    #[test]
    fn a_reference_is_what_its_owner_and_its_holders_know_together() {
        let references = merge(&samples::group());
        assert_eq!(references.len(), 43);
        let reference = &references[0];
        assert_eq!(reference.holders(), "trainer0, trainer1");
        let lines: Vec<_> = reference
            .holds
            .values()
            .map(|hold| hold.line.as_deref())
            .collect();
        assert_eq!(lines, [Some("src/main.rs:41:7"), Some("src/main.rs:42:7")]);
        assert_eq!(reference.age(), Some(Duration::from_secs(120)));
        assert_eq!(reference.line(), Some("src/main.rs:42:7"));
    }

    #[test]
    fn what_a_silent_holder_would_know_is_left_open() {
        let mut seen = samples::group();
        seen[2].snapshot = Err("gone".to_owned());
        let references = merge(&seen);
        assert_eq!(references[0].holds["trainer1"], Hold::default());
        seen[0].snapshot = Err("gone".to_owned());
        // The owner is silent: the holder still tells of it.
        assert_eq!(merge(&seen)[0].owner, "parameters");
    }

    #[test]
    fn any_part_of_a_reference_finds_it() {
        let references = merge(&samples::group());
        let found = |text| references.iter().filter(|one| one.matches(text)).count();
        assert_eq!(found("vec<tensor>"), 42);
        assert_eq!(found("alloc::string"), 1);
        assert_eq!(found("trainer0"), 42);
        assert_eq!(found("log.rs:3"), 1);
        assert_eq!(found("r900@"), 1);
        assert_eq!(found("nothing of the kind"), 0);
    }

    #[test]
    fn ids_are_short_as_long_as_that_is_clear() {
        let mut references = merge(&samples::group());
        references.truncate(3);
        references[1].id = "r0@w0#17".to_owned();
        let ids = short_ids(&references.iter().collect::<Vec<_>>());
        assert_eq!(ids, ["r0@w0#1794751532", "r0@w0#17", "r2@w0"]);
    }

    #[test]
    fn no_reference_is_lost_by_grouping() {
        let references = merge(&samples::group());
        for by in [By::All, By::Type, By::Owner] {
            let groups = groups(&references, by, false);
            let sum: usize = groups.iter().map(|group| group.count).sum();
            assert_eq!(sum, references.len(), "{by:?}");
        }
        let by_holder = groups(&references, By::Holder, false);
        let counts: Vec<_> = by_holder
            .iter()
            .map(|one| (&*one.key[0], one.count))
            .collect();
        assert_eq!(
            counts,
            [("trainer0", 42), ("trainer1", 42), ("parameters", 1)]
        );
        assert_eq!(
            groups(&references, By::Line, false)[0].oldest,
            Some(Duration::from_secs(120))
        );
    }
}
