//! A run in some lines.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::Report;
use crate::driver::Early;

/// So many violations are told; all of them are in the JSON.
pub(super) const TOLD: usize = 20;

impl Report {
    /// For people, as text.
    pub(crate) fn summary(&self) -> String {
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
            format!("{:.1} s under load, {took} in all", self.load_seconds),
        );
        if let Some(early) = self.ended_early {
            let why = match early {
                Early::Interrupted => "it was asked to",
                Early::BadEnds => "workers ended badly again and again",
            };
            let (after, all) = (self.load_seconds, self.seconds);
            let text = format!("after {after:.1} of {all} s: {why}; all until then was checked");
            line("ended early", text);
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
        line("calls", format!("{} made by the workers", calls.made));
        line(
            "functions",
            format!(
                "{} ran, with those that functions called in turn",
                calls.ran
            ),
        );
        line(
            "their ends",
            format!(
                "{} values, {} refusals, {} dropped",
                calls.brought_values, calls.refused, calls.dropped
            ),
        );
        line("errors", listed(&calls.failed));
        let values = &self.values;
        let left = values.made.saturating_sub(values.freed + values.gone);
        let left = match left {
            0 => String::new(),
            left => format!(", {left} left"),
        };
        line(
            "values",
            format!(
                "{} made: {} freed, {} gone with a worker that ended{left}",
                values.made, values.freed, values.gone
            ),
        );
        line(
            "their uses",
            format!("{}, and {} references kept", values.used, values.kept),
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
        line("growth", self.growth());
        line("violations", self.violations.len().to_string());
        for violation in self.violations.iter().take(TOLD) {
            let _ = writeln!(
                text,
                "  {} at {:.3} s: {}",
                violation.rule, violation.at, violation.text
            );
        }
        if self.violations.len() > TOLD {
            let _ = writeln!(text, "  and {} more", self.violations.len() - TOLD);
        }
        text += &self.advice();
        let verdict = match self.ok {
            true => format!("success: {}", self.verdict()),
            false => "FAILED".to_owned(),
        };
        let _ = writeln!(text, "\nchaos: {verdict} (seed {})", self.seed);
        text
    }

    /// No more than was checked: growth often cannot be.
    pub(super) fn verdict(&self) -> String {
        match (self.violations.len(), self.growth_lives) {
            (0, 0) => format!("no rule was broken; growth was {}", self.growth()),
            (0, _) => "no rule was broken".to_owned(),
            (1, _) => "1 violation".to_owned(),
            (count, _) => format!("{count} violations"),
        }
    }

    fn growth(&self) -> String {
        match self.growth_lives {
            0 => "not looked for (CK-11): no process lived for 40 s".to_owned(),
            some => format!("looked for in {some} of {} processes", self.lives.len()),
        }
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
