//! A run as a page: one file, nothing to fetch.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::{FaultEntry, Report};

const WIDTH: f64 = 1100.0;
/// What the names of the workers need.
const LEFT: f64 = 90.0;
const ROW: f64 = 26.0;
const TOP: f64 = 8.0;
/// The strip with the errors.
const STRIP: f64 = 60.0;
const BOTTOM: f64 = 24.0;

/// Of each kind of fault, also for those who see few colours.
const COLOURS: [(&str, &str); 7] = [
    ("kill", "#b22a2a"),
    ("leave", "#6b6b6b"),
    ("stop", "#d1730f"),
    ("cut", "#8d4bb0"),
    ("delay", "#1f6fb4"),
    ("throttle", "#2d8a3a"),
    ("half-open", "#0f8f8f"),
];

/// So many faults are in the table; all of them are in the picture and in the JSON.
const LISTED: usize = 3_000;

/// How the table of them begins.
const FAULTS: &str = "<h2>Faults, and the errors around them</h2>
<p>Errors of calls that the worker made, that were made to it, or that name it, while the fault lasted and until the group was itself again.
Losses are left out where the fault is one by which nothing may be lost. Calls that were meant to take longer than they may are left out.</p>
<table>
<tr><th>s<th>worker<th>what<th>errors";

impl Report {
    /// For a browser.
    pub(crate) fn page(&self) -> String {
        let class = if self.ok { "good" } else { "bad" };
        let verdict = self.verdict();
        format!(
            r#"<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>farref-chaos, seed {seed}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1140px; margin: 2em auto; padding: 0 1em }}
table {{ border-collapse: collapse; font-size: 13px }}
th, td {{ padding: .15em 1.2em .15em 0; border-bottom: 1px solid #ddd; text-align: left; vertical-align: top }}
svg {{ max-width: 100%; height: auto }}
pre {{ white-space: pre-wrap }}
.good {{ color: #2d8a3a }} .bad {{ color: #b22a2a; font-weight: bold }} .good::first-letter {{ text-transform: uppercase }}
.key span {{ padding-right: 1.2em }}
</style>
<h1>farref-chaos</h1>
<p><code>{command}</code></p>
<p class="{class}">{verdict}</p>
<h2>What was done to whom, and when</h2>
<p>A grey bar is a life of a worker, from the moment at which it has joined. Below: calls that ended with an error, in each second, but
for calls that were meant to take longer than they may. Red lines are violations.</p>
<p class="key">{key}</p>
{picture}
<h2>In figures</h2>
<pre>{summary}</pre>
{violations}
{faults}
</html>
"#,
            seed = self.seed,
            command = escaped(&self.command),
            key = key(),
            picture = self.picture(),
            summary = escaped(&self.summary()),
            violations = self.violation_table(),
            faults = self.fault_table(),
        )
    }

    /// The names of the workers, in the order of their rows.
    fn rows(&self) -> BTreeMap<&str, usize> {
        let mut names: Vec<&str> = self.lives.iter().map(|life| &*life.worker).collect();
        // By their numbers, which are the end of their names.
        let number = |name: &str| {
            let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
            digits.parse::<u32>().unwrap_or(u32::MAX)
        };
        names.sort_by_key(|name| (number(name), *name));
        names.dedup();
        let rows = names.into_iter().enumerate();
        rows.map(|(row, name)| (name, row)).collect()
    }

    fn picture(&self) -> String {
        let rows = self.rows();
        let bottom = TOP + ROW * rows.len() as f64;
        let height = bottom + STRIP + BOTTOM;
        let length = self.took_seconds.max(1.0);
        let x = |at: f64| LEFT + (WIDTH - LEFT) * (at / length).clamp(0.0, 1.0);
        let mut svg = format!(
            r#"<svg width="{WIDTH:.0}" height="{height:.0}" viewBox="0 0 {WIDTH:.0} {height:.0}" font-size="12">"#
        );
        let mut bar = |row: usize, from: f64, to: f64, inset: f64, fill: &str, text: &str| {
            let _ = write!(
                svg,
                r#"<rect x="{:.1}" y="{:.1}" width="{:.1}" height="{:.1}" fill="{fill}"><title>{}</title></rect>"#,
                x(from),
                TOP + ROW * row as f64 + inset,
                (x(to) - x(from)).max(1.5),
                ROW - 2.0 * inset,
                escaped(text),
            );
        };
        for life in &self.lives {
            let (Some(row), Some(joined)) = (rows.get(&*life.worker), life.joined) else {
                continue;
            };
            let ended = life.ended.unwrap_or(length);
            let how = life.how.as_deref().unwrap_or("was there to the end");
            let text = format!("{}, life {}: {how}", life.worker, life.life);
            bar(*row, joined, ended, 3.0, "#e4e4e4", &text);
        }
        for fault in &self.timeline {
            if let Some(row) = rows.get(&*fault.worker) {
                let until = fault.until.unwrap_or(length);
                let text = format!("{:.2} s: {}", fault.at, fault.text);
                bar(*row, fault.at, until, 7.0, colour(&fault.kind), &text);
            }
        }
        for (name, row) in &rows {
            let _ = write!(
                svg,
                r#"<text x="0" y="{:.1}">{}</text>"#,
                TOP + ROW * (*row as f64 + 0.68),
                escaped(name),
            );
        }
        let most = self.errors_per_second.iter().max().copied().unwrap_or(0);
        for (second, count) in self.errors_per_second.iter().enumerate() {
            let tall = (STRIP - 8.0) * *count as f64 / most.max(1) as f64;
            let (from, to) = (x(second as f64), x(second as f64 + 1.0));
            let _ = write!(
                svg,
                r##"<rect x="{from:.1}" y="{:.1}" width="{:.1}" height="{tall:.1}" fill="#d1730f"><title>second {second}: {count} errors</title></rect>"##,
                bottom + STRIP - tall,
                (to - from).max(0.5),
            );
        }
        let _ = write!(
            svg,
            r##"<text x="0" y="{:.0}" fill="#555">up to {most}/s</text><text x="{LEFT:.0}" y="{:.0}" fill="#555">0 s</text><text x="{WIDTH:.0}" y="{:.0}" text-anchor="end" fill="#555">{length:.0} s</text>"##,
            bottom + STRIP / 2.0,
            height - 6.0,
            height - 6.0,
        );
        for violation in &self.violations {
            let at = x(violation.at);
            let _ = write!(
                svg,
                r##"<line x1="{at:.1}" x2="{at:.1}" y1="0" y2="{:.0}" stroke="#f00"><title>{}</title></line>"##,
                bottom + STRIP,
                escaped(&violation.text),
            );
        }
        svg + "</svg>"
    }

    fn violation_table(&self) -> String {
        if self.violations.is_empty() {
            return String::new();
        }
        let mut table = "<h2>Violations</h2>\n<table>\n<tr><th>s<th>rule<th>what".to_owned();
        for violation in &self.violations {
            let at = violation.at;
            let text = escaped(&violation.text);
            let _ = write!(table, "\n<tr><td>{at:.3}<td>{}<td>{text}", violation.rule);
        }
        table + "\n</table>"
    }

    fn fault_table(&self) -> String {
        if self.timeline.is_empty() {
            return String::new();
        }
        let mut table = FAULTS.to_owned();
        for fault in self.timeline.iter().take(LISTED) {
            let _ = write!(
                table,
                "\n<tr><td>{:.2}<td>{}<td>{}: {}<td>{}",
                fault.at,
                escaped(&fault.worker),
                escaped(&fault.kind),
                escaped(&fault.text),
                errors(fault),
            );
        }
        let more = self.timeline.len().saturating_sub(LISTED);
        if more > 0 {
            let _ = write!(table, "\n<tr><td><td><td>and {more} more<td>");
        }
        table + "\n</table>"
    }
}

fn errors(fault: &FaultEntry) -> String {
    let errors = fault.errors.iter();
    let errors: Vec<String> = errors
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    match errors.is_empty() {
        true => "-".to_owned(),
        false => errors.join(", "),
    }
}

fn key() -> String {
    let mut key = String::new();
    for (kind, colour) in COLOURS {
        let _ = write!(key, r#"<span style="color: {colour}">■ {kind}</span>"#);
    }
    key
}

fn colour(kind: &str) -> &'static str {
    let found = COLOURS.into_iter().find(|(known, _)| *known == kind);
    found.map_or("#000", |(_, colour)| colour)
}

/// As text in a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::{LifeEntry, ViolationEntry};
    use super::*;
    use crate::driver::Early;

    fn report(violations: Vec<ViolationEntry>) -> Report {
        let life = |life, worker: &str| LifeEntry {
            life,
            worker: worker.to_owned(),
            started: 0.0,
            joined: Some(0.1),
            ended: None,
            how: None,
            peak_memory_kib: 0,
        };
        Report {
            version: "1",
            ok: violations.is_empty(),
            command: "farref-chaos --seed 4711 --python-program '<python>'".to_owned(),
            histories: Some("/histories".into()),
            seed: 4711,
            workers: 2,
            python: 0,
            tls: false,
            seconds: 10,
            load_seconds: 8.04,
            took_seconds: 12.0,
            ended_early: None,
            faults_per_second: 1.0,
            operations_per_second: 10,
            peer_timeout_seconds: 2,
            faults: BTreeMap::from([("kill".to_owned(), 1)]),
            faults_left_out: 0,
            faults_skipped: 0,
            connections_cut: 0,
            calls: Default::default(),
            values: Default::default(),
            stalls: 0,
            silences: 2,
            growth_lives: 0,
            lives: vec![life(1, "worker0"), life(2, "worker10"), life(3, "worker2")],
            timeline: vec![FaultEntry {
                at: 3.0,
                until: Some(4.0),
                worker: "worker10".to_owned(),
                life: 2,
                kind: "kill".to_owned(),
                text: "killed".to_owned(),
                loses: true,
                errors: BTreeMap::from([("peer lost", 3)]),
            }],
            errors_per_second: vec![0, 0, 0, 3],
            violations,
            began: 0,
        }
    }

    #[test]
    fn the_page_is_whole_and_shows_what_is_wrong() {
        let violation = ViolationEntry {
            rule: "CK-1",
            at: 5.0,
            life: 1,
            text: "a <function> ran twice".to_owned(),
        };
        let page = report(vec![violation]).page();
        assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert!(page.contains("a &lt;function&gt; ran twice"), "{page}");
        assert!(page.contains("3 peer lost") && page.contains("seed 4711"));
        assert!(page.contains(">1 violation<"), "{page}");
        assert!(page.contains("--python-program '&lt;python&gt;'"), "{page}");
        assert!(!page.contains("NaN") && !page.contains("http"));
        let page = report(Vec::new()).page();
        assert!(page.contains("no rule was broken; growth was not looked for"));
    }

    #[test]
    fn a_table_that_would_be_empty_is_left_out() {
        let mut report = report(Vec::new());
        report.timeline[0].errors.clear();
        let page = report.page();
        assert_eq!(page.matches("<table>").count(), 1);
        assert!(page.contains("killed<td>-"), "{page}");
        report.timeline.clear();
        assert!(!report.page().contains("<table>"));
    }

    #[test]
    fn workers_are_in_the_order_of_their_numbers() {
        let report = report(Vec::new());
        let rows = report.rows();
        assert_eq!(
            (rows["worker0"], rows["worker2"], rows["worker10"]),
            (0, 1, 2)
        );
    }

    #[test]
    fn the_summary_names_the_seed_and_every_violation() {
        let violation = |at| ViolationEntry {
            rule: "CK-8",
            at,
            life: 1,
            text: "never freed".to_owned(),
        };
        let summary = report(vec![violation(1.0), violation(2.0)]).summary();
        assert_eq!(summary.matches("never freed").count(), 2);
        assert!(
            summary.ends_with("chaos: FAILED (seed 4711)\n"),
            "{summary}"
        );
        // What the rule is, where to look, how to see it again.
        for part in [
            "CK-8: a value is not freed when nobody has a reference to it any more\n",
            "/histories/life-1.jsonl /histories/life-1.stderr\n",
            "farref-chaos --seed 4711",
            "docs/reliability.md#what-is-checked",
        ] {
            assert_eq!(summary.matches(part).count(), 1, "{summary}");
        }
        let mut report = report(Vec::new());
        let summary = report.summary();
        assert!(!summary.contains("what must not be"), "{summary}");
        assert!(!summary.contains("ended early"), "{summary}");
        report.ended_early = Some(Early::Interrupted);
        let summary = report.summary();
        assert!(summary.contains("ended early"), "{summary}");
        assert!(summary.contains("8.0 s under load"), "{summary}");
        let success = "chaos: success: no rule was broken; growth was not looked for (CK-11): no process lived for 40 s (seed 4711)";
        assert!(summary.contains(success), "{summary}");
        report.growth_lives = 1;
        let success = "chaos: success: no rule was broken (seed 4711)";
        assert!(report.summary().contains(success));
        assert!(summary.contains("2 times a worker"), "{summary}");
    }
}
