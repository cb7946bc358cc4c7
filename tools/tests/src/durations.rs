//! How long each program took the last time, so that the longest can begin first.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::run::Outcome;

/// The file in the target folder.
const FILE: &str = "farref-tests-seconds";

/// Seconds of each program. Without the file nothing is lost but some order.
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

    /// Smaller for a program that is to begin earlier. Unknown programs are the first.
    pub(crate) fn rank(&self, name: &str) -> Reverse<u64> {
        Reverse(self.seconds.get(name).copied().unwrap_or(u64::MAX))
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
