//! What to do about violations: what the rules are, where to look, how to run the same again.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::Report;
use super::summary::TOLD;
use crate::checker;
use crate::history::{self, DRIVER};

/// Where all of it is explained.
const EXPLAINED: &str = "docs/reliability.md#what-is-checked";

impl Report {
    /// For a run that has broken rules. Nothing of any other.
    pub(super) fn advice(&self) -> String {
        let mut text = String::new();
        if self.violations.is_empty() {
            return text;
        }
        let rules: BTreeSet<&str> = self.violations.iter().map(|one| one.rule).collect();
        let _ = writeln!(text, "\nwhat must not be, and was ({EXPLAINED}):");
        for rule in rules {
            let _ = writeln!(text, "  {rule}: {}", checker::sentence(rule));
        }
        if let Some(folder) = &self.histories {
            // Of those that are told: all lives of a bad run would be no help.
            let told = self.violations.iter().take(TOLD);
            let lives: BTreeSet<_> = told.map(|one| one.life).collect();
            let _ = writeln!(text, "who noted it: its history, and what it printed:");
            for life in lives {
                let path = history::path(folder, life);
                let printed = path.with_extension("stderr");
                let _ = match life {
                    DRIVER => writeln!(text, "  {}", path.display()),
                    _ => writeln!(text, "  {} {}", path.display(), printed.display()),
                };
            }
        }
        let _ = writeln!(
            text,
            "the same faults and the same work again:\n  {}",
            self.command
        );
        text
    }
}
