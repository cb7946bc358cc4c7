//! What the workers have counted, as Prometheus reads it.

use std::fmt::Write as _;

use super::metrics::{Family, Kind, Number, Point};

pub(super) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

pub(super) fn write(families: &[Family<'_>]) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.points.is_empty()) {
        let Family {
            name,
            help,
            kind,
            points,
        } = family;
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for point in points {
            let labels = labels(point);
            match &point.value {
                Number::Plain(value) => {
                    let _ = writeln!(text, "{name}{{{labels}}} {value}");
                }
                Number::Spread(spread) => {
                    let mut so_far = 0_u64;
                    for (bound, count) in &spread.buckets {
                        so_far = so_far.saturating_add(*count);
                        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {so_far}");
                    }
                    let (count, sum) = (spread.count, spread.sum);
                    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
                    let _ = writeln!(
                        text,
                        "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {count}"
                    );
                }
            }
        }
    }
    text
}

fn labels(point: &Point<'_>) -> String {
    let mut labels = format!("worker=\"{}\"", escaped(point.worker));
    if let Some(function) = point.function {
        let _ = write!(labels, ",function=\"{}\"", escaped(function));
    }
    labels
}

/// A label's value: a quotation mark would end it.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::metrics::families;
    use super::super::state::State;
    use super::*;
    use crate::view::fetch::Update;
    use crate::view::samples;

    fn scraped() -> String {
        let mut seen = samples::group();
        samples::edit(&mut seen[0], |snapshot| {
            snapshot.served = samples::served("say \"hi\"\\", 2, &[1; 27]);
        });
        let mut state = State::new("here:1", Duration::from_secs(1));
        state.update(Update::Seen(seen), 1.0);
        write(&families(&state))
    }

    #[test]
    fn functions_are_told_apart_and_their_names_cannot_break_out() {
        let text = scraped();
        let labels = r#"worker="parameters",function="say \"hi\"\\""#;
        for line in [
            format!("farref_served_total{{{labels}}} 27"),
            format!("farref_served_failed_total{{{labels}}} 2"),
            format!("farref_serve_seconds_bucket{{{labels},le=\"0.000016\"}} 5"),
            format!("farref_serve_seconds_bucket{{{labels},le=\"+Inf\"}} 27"),
            format!("farref_serve_seconds_sum{{{labels}}} 1"),
            format!("farref_serve_seconds_count{{{labels}}} 27"),
            "farref_up{worker=\"trainer0\"} 1".to_owned(),
            "farref_calls_total{worker=\"trainer1\"} 120000".to_owned(),
        ] {
            assert!(
                text.lines().any(|known| known == line),
                "{line} is not in\n{text}"
            );
        }
    }

    #[test]
    fn every_name_has_its_help_and_its_type_once() {
        let text = scraped();
        let mut names: Vec<&str> = Vec::new();
        for line in text.lines() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => {
                    let name = rest.split(' ').next().unwrap_or_default();
                    assert!(!names.contains(&name), "{name} twice");
                    names.push(name);
                    let counter = rest.ends_with(" counter");
                    assert_eq!(counter, name.ends_with("_total"), "{rest}");
                }
                None if line.starts_with("# HELP ") => {}
                None => {
                    let name = names.last().expect("a type before the first line");
                    assert!(line.starts_with(name), "{line} under {name}");
                }
            }
        }
        assert!(names.len() > 20);
    }
}
