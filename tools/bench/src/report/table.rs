//! The results for the terminal.

use std::fmt::Write as _;

use super::results::{Recorded, Report};
use super::words::{held_against, label, number, quantified};

pub(super) fn write(report: &Report) -> String {
    let mut text = String::new();
    for (index, part) in report.parts().into_iter().enumerate() {
        if index > 0 {
            text.push('\n');
        }
        let _ = writeln!(
            text,
            "{:<44} {:>12} {:<13} {:>9} {:>9}",
            part.title(),
            "p50 or rate",
            "",
            "p99",
            "p99.9",
        );
        for one in report.of(part) {
            text += line(one).trim_end();
            text.push('\n');
        }
    }
    text
}

fn line(one: &Recorded) -> String {
    let measured = &one.measured;
    // Where the figure is a speed, a high percentile of times has no column.
    let times = measured.times.filter(|_| measured.unit == "us");
    let shown = |value: Option<f64>| value.map(number).unwrap_or_default();
    let (value, unit) = quantified(measured);
    let limits: Vec<_> = measured.limits.iter().map(held_against).collect();
    format!(
        "{:<5} {:<38} {:>12} {:<13} {:>9} {:>9}  {}",
        one.transport.name(),
        label(measured),
        value,
        unit,
        // Of few, they would be the slowest one.
        shown(
            times
                .filter(|times| times.samples >= 100)
                .map(|times| times.p99)
        ),
        shown(
            times
                .filter(|times| times.samples >= 1000)
                .map(|times| times.p999)
        ),
        limits.join(", "),
    )
}
