//! The results, as a table and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::samples::Samples;
use super::transport::Transport;

/// All that was measured in one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: &'static str,
    build: &'static str,
    /// How long each measurement took.
    seconds: f64,
    measurements: Vec<Measurement>,
}

#[derive(Debug, Serialize)]
pub(super) struct Measurement {
    name: &'static str,
    transport: Transport,
    unit: &'static str,
    /// The median of times, or a rate.
    value: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    p99: Option<f64>,
    /// Beside which other measurement of the same transport.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
    /// What the ratio should not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<f64>,
}

impl Report {
    pub(super) fn new(time: Duration) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            build: match cfg!(debug_assertions) {
                true => "development",
                false => "release",
            },
            seconds: time.as_secs_f64(),
            measurements: Vec::new(),
        }
    }

    pub(super) fn is_development_build(&self) -> bool {
        self.build == "development"
    }

    pub(super) fn add(&mut self, measurement: Measurement) {
        self.measurements.push(measurement);
    }
}

impl Measurement {
    pub(super) fn times(name: &'static str, transport: Transport, samples: &Samples) -> Self {
        Self {
            p99: Some(samples.p99()),
            ..Self::rate(name, transport, "us", samples.p50())
        }
    }

    pub(super) fn rate(
        name: &'static str,
        transport: Transport,
        unit: &'static str,
        value: f64,
    ) -> Self {
        Self {
            name,
            transport,
            unit,
            value,
            p99: None,
            baseline: None,
            ratio: None,
            budget: None,
        }
    }

    pub(super) fn against(mut self, baseline: &'static str, ratio: f64) -> Self {
        self.baseline = Some(baseline);
        self.ratio = Some(ratio);
        self
    }

    pub(super) fn budget(mut self, budget: f64) -> Self {
        self.budget = Some(budget);
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:<5} {:<36} {:>12} {:<8} {:>10}  ratio",
            "over", "what", "p50 or rate", "", "p99"
        )?;
        for one in &self.measurements {
            let p99 = one.p99.map(|p99| format!("{p99:.1}")).unwrap_or_default();
            let mut ratio = match (one.ratio, one.baseline) {
                (Some(ratio), Some(baseline)) => format!("{ratio:.2} x {}", spoken(baseline)),
                _ => String::new(),
            };
            if let Some(budget) = one.budget {
                ratio += &format!(" (budget {budget})");
            }
            let line = format!(
                "{:<5} {:<36} {:>12} {:<8} {p99:>10}  {ratio}",
                one.transport.name(),
                spoken(one.name),
                shown(one.value),
                one.unit,
            );
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Two digits behind the point say nothing about a large number.
fn shown(value: f64) -> String {
    match value {
        10_000.0.. => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

fn spoken(name: &str) -> &str {
    match name {
        "bare_ping_pong" => "bare socket, ping-pong",
        "bare_64mib" => "bare socket, 64 MiB",
        "empty_call" => "empty call",
        "plain_fn_call" => "empty call of a plain fn",
        "hand_on_reference" => "hand a reference on",
        "create_fetch_drop" => "create, fetch and drop a reference",
        "pipelined_calls" => "empty calls, 64 at once",
        "blob_64mib" => "64 MiB blob",
        other => other,
    }
}

/// Says on standard error what is going on.
pub(super) fn progress(text: &str) {
    eprintln!("farref bench: {text}");
}
