//! How long each program took the last time, so that the longest can begin first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::run::Outcome;

/// The file in the target folder.
const FILE: &str = "farref-tests-seconds";

/// The programs that take longest, for the first run in a folder.
const LONGEST: [&str; 8] = [
    "farref:processes",
    "farref-torch:interop",
    "farref-model:models",
    "documentation",
    "farref:lib",
    "farref:laws",
    "farref-examples:examples",
    "farref-cli:command",
];

/// Seconds of each program.
pub(crate) struct Durations {
    file: PathBuf,
    seconds: BTreeMap<String, u64>,
}

impl Durations {
    pub(crate) fn read(target_folder: &Path) -> Self {
        let file = target_folder.join(FILE);
        let text = fs::read_to_string(&file).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let seconds = lines
            .filter_map(|(seconds, name)| Some((name.to_owned(), seconds.parse().ok()?)))
            .collect();
        Self { file, seconds }
    }

    /// Smaller for a program that is to begin earlier.
    pub(crate) fn rank(&self, name: &str) -> Reverse<u64> {
        let known = self.seconds.get(name).copied();
        let guess = LONGEST.iter().rev().position(|longest| *longest == name);
        Reverse(known.unwrap_or_else(|| guess.map_or(0, |place| 1 + place as u64)))
    }

    pub(crate) fn write(mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            let seconds = outcome.duration.as_secs();
            self.seconds.insert(outcome.name.clone(), seconds);
        }
        let lines = self.seconds.iter();
        let text: String = lines
            .map(|(name, seconds)| format!("{seconds} {name}\n"))
            .collect();
        // The next run is a little slower without it.
        let _ = fs::write(self.file, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_begin_first_by_guess_and_by_measurement() {
        let mut durations = Durations {
            file: PathBuf::new(),
            seconds: BTreeMap::new(),
        };
        let order = |durations: &Durations| {
            let mut names = ["farref-shm:lib", "farref:laws", "farref:processes"];
            names.sort_by_key(|name| durations.rank(name));
            names
        };
        let guessed = ["farref:processes", "farref:laws", "farref-shm:lib"];
        assert_eq!(order(&durations), guessed);
        durations.seconds.insert("farref-shm:lib".to_owned(), 600);
        let measured = ["farref-shm:lib", "farref:processes", "farref:laws"];
        assert_eq!(order(&durations), measured);
    }
}
