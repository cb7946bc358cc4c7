//! The results as a page: one file, nothing to fetch.

use std::fmt::Write as _;

use super::super::form::{Direction, Form, quantity};
use super::super::part::Part;
use super::super::transport::Transport;
use super::measurement::{Better, Measurement};
use super::plot::{Axis, Range, Series, escaped, lines, ranges};
use super::results::{Recorded, Report};
use super::words::{held_against, label, number, quantified, spoken};

const STYLE: &str = "\
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto; padding: 0 1em }
figure { display: inline-block; margin: 0 1em 1em 0; vertical-align: top }
figcaption { color: #555; text-align: center }
table { border-collapse: collapse; font-size: 13px }
th { text-align: left; font-weight: 600 }
td, th { padding: .15em 1.2em .15em 0; border-bottom: 1px solid #ddd }
.number { text-align: right; font-variant-numeric: tabular-nums }
.bad { color: #b22a2a }
svg { max-width: 100%; height: auto }
summary { cursor: pointer; color: #1f6fb4 }
";

const TIME: Axis = Axis {
    title: "microseconds: the median, a bar to the 99th percentile, a thin one to the 99.9th",
    label: short,
};

pub(super) fn write(report: &Report) -> String {
    let mut body = String::new();
    let _ = writeln!(
        body,
        "<h1>farref-bench</h1>\n<p>farref {}, {} build, {} processors, {} s for most measurements. Everything was measured \
         in one run; what a figure is held against is dashed or grey.</p>",
        report.version, report.build, report.processors, report.seconds,
    );
    body += &budgets(report);
    for part in report.parts() {
        let _ = writeln!(body, "<h2>{}</h2>", part.title());
        let plots = plots(report, part);
        let open = if plots.is_empty() { " open" } else { "" };
        for (plot, caption) in plots {
            if !plot.is_empty() {
                let caption = escaped(&caption);
                let _ = writeln!(
                    body,
                    "<figure>{plot}<figcaption>{caption}</figcaption></figure>"
                );
            }
        }
        let _ = writeln!(
            body,
            "<details{open}><summary>all figures</summary>\n{}</details>",
            table(report, part)
        );
    }
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>farref-bench</title>\n<style>\n{STYLE}</style>\n{body}</html>\n"
    )
}

/// What has a budget, and whether it is kept.
fn budgets(report: &Report) -> String {
    let mut rows = String::new();
    for one in &report.measurements {
        for limit in &one.measured.limits {
            let (Some(budget), Some(kept)) = (limit.budget, limit.kept()) else {
                continue;
            };
            let (value, bound, than) = match limit.name {
                "budget" => (
                    one.measured.value,
                    limit.value,
                    one.measured.unit.to_owned(),
                ),
                name => (limit.ratio, budget, format!("x {}", spoken(name))),
            };
            let side = match limit.better {
                Better::Lower => "≤",
                Better::Higher => "≥",
            };
            let class = if kept { "number" } else { "number bad" };
            let _ = writeln!(
                rows,
                "<tr><td>{}</td><td>{}</td><td class=\"{class}\">{}</td><td>{}</td><td class=\"number\">{side} {}</td><td>{}</td></tr>",
                one.transport.name(),
                escaped(&label(&one.measured)),
                number(value),
                escaped(&than),
                number(bound),
                if kept {
                    "kept"
                } else {
                    "<span class=\"bad\">not met</span>"
                },
            );
        }
    }
    match rows.is_empty() {
        true => rows,
        false => format!(
            "<h2>Budgets</h2>\n<table>\n<tr><th>over</th><th>what</th><th></th><th></th><th>budget</th><th></th></tr>\n{rows}</table>\n"
        ),
    }
}

fn table(report: &Report, part: Part) -> String {
    let mut text = "<table>\n<tr><th>over</th><th>what</th><th>p50 or rate</th><th></th><th>p50, us</th><th>p99, us</th>\
                    <th>p99.9, us</th><th>beside</th></tr>\n"
        .to_owned();
    for one in report.of(part) {
        let measured = &one.measured;
        let (value, unit) = quantified(measured);
        let limits: Vec<_> = measured.limits.iter().map(held_against).collect();
        let times = match measured.times {
            Some(times) => [times.p50, times.p99, times.p999].map(number),
            None => Default::default(),
        };
        let _ = write!(
            text,
            "<tr><td>{}</td><td>{}</td><td class=\"number\">{}</td><td>{}</td>",
            one.transport.name(),
            escaped(&label(measured)),
            value,
            unit,
        );
        for time in times {
            let _ = write!(text, "<td class=\"number\">{time}</td>");
        }
        let _ = writeln!(text, "<td>{}</td></tr>", escaped(&limits.join(", ")));
    }
    text + "</table>\n"
}

/// The plots of a part, with what is below them.
fn plots(report: &Report, part: Part) -> Vec<(String, String)> {
    match part {
        Part::Calls | Part::References | Part::Autograd => {
            vec![(times_of(report, part), String::new())]
        }
        Part::Pipelined => vec![(pipelined(report), "calls or frames a second".to_owned())],
        Part::Values => values(report),
        Part::Groups => vec![(
            groups(report),
            "until all have joined, and until all have ended".to_owned(),
        )],
        Part::Cuda => tensors(report),
        Part::Costs | Part::Streams | Part::Live => Vec::new(),
    }
}

fn times_of(report: &Report, part: Part) -> String {
    let timed = report.of(part).filter_map(|one| {
        let times = one.measured.times?;
        Some(Range {
            name: format!("{}: {}", one.transport.name(), label(&one.measured)),
            limit: one.measured.limits.is_empty(),
            times: [times.p50, times.p99, times.p999],
        })
    });
    ranges(&TIME, &timed.collect::<Vec<_>>())
}

/// Measurements of one name over one transport, as a line.
fn series<'a>(
    name: String,
    measured: impl Iterator<Item = &'a Recorded>,
    x: impl Fn(&Measurement) -> Option<f64>,
) -> Series {
    let measured: Vec<_> = measured.map(|one| &one.measured).collect();
    Series {
        name,
        limit: measured.iter().all(|one| one.limits.is_empty()),
        points: measured
            .into_iter()
            .filter_map(|one| Some((x(one)?, one.value)))
            .collect(),
    }
}

fn pipelined(report: &Report) -> String {
    let mut all = Vec::new();
    for name in ["pipelined_calls", "bare_frames"] {
        for transport in Transport::ALL {
            let measured = report.of(Part::Pipelined);
            let measured =
                measured.filter(|one| one.measured.name == name && one.transport == transport);
            let name = format!("{}, {}", spoken(name), transport.name());
            all.push(series(name, measured, |one| Some(one.in_flight? as f64)));
        }
    }
    all.retain(|one| !one.points.is_empty());
    let x = Axis {
        title: "at once",
        label: short,
    };
    let y = Axis {
        title: "per second",
        label: short,
    };
    lines(&x, &y, &all)
}

fn values(report: &Report) -> Vec<(String, String)> {
    let size = Axis {
        title: "size",
        label: |bytes| quantity(bytes as usize),
    };
    let speed = Axis {
        title: "GB/s",
        label: short,
    };
    let mut plots = Vec::new();
    for transport in Transport::ALL {
        for direction in Direction::ALL {
            let here = || {
                report
                    .of(Part::Values)
                    .filter(move |one| one.transport == transport)
            };
            let bytes = |one: &Measurement| Some(one.bytes? as f64);
            let mut all = Vec::new();
            for form in Form::ALL {
                let measured = here().filter(|one| {
                    one.measured.form == Some(form) && one.measured.direction == Some(direction)
                });
                all.push(series(form.name().to_owned(), measured, bytes));
            }
            let bare = here().filter(|one| {
                one.measured.name == "bare_message" && one.measured.direction == Some(direction)
            });
            all.push(series("bare socket".to_owned(), bare, bytes));
            let memory = here().filter(|one| one.measured.name == "memcpy");
            all.push(series("memcpy".to_owned(), memory, bytes));
            all.retain(|one| !one.points.is_empty());
            let caption = format!("over {}, {}", transport.name(), direction.name());
            plots.push((lines(&size, &speed, &all), caption));
        }
    }
    plots
}

/// Tensors on a GPU: how long they take, by their size.
fn tensors(report: &Report) -> Vec<(String, String)> {
    let size = Axis {
        title: "size",
        label: |bytes| quantity(bytes as usize),
    };
    let time = Axis {
        title: "microseconds",
        label: short,
    };
    let mut plots = Vec::new();
    for transport in Transport::ALL {
        for direction in Direction::ALL {
            let mut all = Vec::new();
            for name in ["same_tensor", "new_tensor", "torch_tensor"] {
                let measured = report.of(Part::Cuda).filter(|one| {
                    one.transport == transport
                        && one.measured.name == name
                        && one.measured.direction == Some(direction)
                });
                let bytes = |one: &Measurement| Some(one.bytes? as f64);
                all.push(series(spoken(name).to_owned(), measured, bytes));
            }
            all.retain(|one| !one.points.is_empty());
            let caption = format!("over {}, {}", transport.name(), direction.name());
            plots.push((lines(&size, &time, &all), caption));
        }
    }
    plots
}

fn groups(report: &Report) -> String {
    let mut all = Vec::new();
    for name in ["join", "shutdown", "signal"] {
        for transport in Transport::ALL {
            let measured = report.of(Part::Groups);
            let measured =
                measured.filter(|one| one.measured.name == name && one.transport == transport);
            let name = format!("{name}, {}", transport.name());
            all.push(series(name, measured, |one| Some(f64::from(one.workers?))));
        }
    }
    all.retain(|one| !one.points.is_empty());
    let x = Axis {
        title: "workers",
        label: short,
    };
    let y = Axis {
        title: "microseconds",
        label: short,
    };
    lines(&x, &y, &all)
}

/// `1.5`, `20`, `3k`, `1M`.
fn short(value: f64) -> String {
    let digits = |value: f64| match value {
        10.0.. => format!("{value:.0}"),
        _ => {
            let text = format!("{value:.2}");
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    };
    match value {
        0.0..0.01 => format!("{value:.4}"),
        1e6.. => digits(value / 1e6) + "M",
        1e4.. => digits(value / 1e3) + "k",
        _ => digits(value),
    }
}
