//! A run in some lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Report;
use crate::chaos::driver::Early;

/// So many violations are told; all of them are in the JSON.
const TOLD: usize = 20;

impl Report {
    /// For people, as text.
    pub(in crate::chaos) fn summary(&self) -> String {
        let mut text = String::new();
        let mut line = |what: &str, much: String| {
            let _ = writeln!(text, "{what:<22}{much}");
        };
        let python = match self.python {
            0 => String::new(),
            count => format!(", {count} of them Python's"),
        };
        let tls = if self.tls { ", with TLS" } else { "" };
        let lives = self.lives.len();
        line(
            "workers",
            format!("{}{python}{tls}; {lives} processes", self.workers),
        );
        let took = format!("{:.1} s", self.took_seconds);
        line(
            "time",
            format!("{} s under load, {took} in all", self.seconds),
        );
        if let Some(early) = self.ended_early {
            let why = match early {
                Early::Interrupted => "it was asked to",
                Early::BadEnds => "workers ended badly again and again",
            };
            line("ended early", format!("{why}; all until then was checked"));
        }
        line("faults", listed(&self.faults));
        let left_out = self.faults_left_out + self.faults_skipped;
        if left_out > 0 {
            line(
                "faults left out",
                format!("{left_out}, for want of a worker"),
            );
        }
        line("connections cut", self.connections_cut.to_string());
        let calls = &self.calls;
        line("calls", format!("{} made, {} ran", calls.made, calls.ran));
        line(
            "their ends",
            format!(
                "{} values, {} refusals, {} dropped",
                calls.brought_values, calls.refused, calls.dropped
            ),
        );
        line("errors", listed(&calls.failed));
        let values = &self.values;
        line(
            "values",
            format!(
                "{} made, {} used, {} freed, {} references kept",
                values.made, values.used, values.freed, values.kept
            ),
        );
        let peak = self.lives.iter().map(|life| life.peak_memory_kib).max();
        let peak = peak.unwrap_or(0) / 1024;
        line("memory", format!("{peak} MiB at most, of one process"));
        if self.stalls > 0 {
            let text = "times the machine stood still: less could be checked then";
            line("stalls", format!("{} {text}", self.stalls));
        }
        if self.silences > 0 {
            let text = "times a worker stood still by itself: less could be checked then";
            line("silences", format!("{} {text}", self.silences));
        }
        line("violations", self.violations.len().to_string());
        for violation in self.violations.iter().take(TOLD) {
            let at = super::seconds(violation.at, self.began);
            let _ = writeln!(
                text,
                "  {} at {at:.3} s: {}",
                violation.rule, violation.text
            );
        }
        if self.violations.len() > TOLD {
            let _ = writeln!(text, "  and {} more", self.violations.len() - TOLD);
        }
        let verdict = match self.violations.is_empty() {
            true => "success: everything that is promised was kept",
            false => "FAILED",
        };
        let _ = writeln!(text, "\nchaos: {verdict} (seed {})", self.seed);
        text
    }
}

/// `3 kill, 2 stop`.
fn listed<K: AsRef<str>, C: Copy + Into<u64>>(counts: &BTreeMap<K, C>) -> String {
    let all: u64 = counts.values().map(|count| (*count).into()).sum();
    let each: Vec<String> = counts
        .iter()
        .map(|(what, count)| {
            let count: u64 = (*count).into();
            format!("{count} {}", what.as_ref())
        })
        .collect();
    match each.is_empty() {
        true => "none".to_owned(),
        false => format!("{all}: {}", each.join(", ")),
    }
}
