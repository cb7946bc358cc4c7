//! What one process measured, as it is written and read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One figure. The Python scripts write the same names.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    #[serde(rename = "empty_p50_us")]
    EmptyP50,
    #[serde(rename = "empty_p99_us")]
    EmptyP99,
    #[serde(rename = "calls_per_second_1")]
    Calls1,
    #[serde(rename = "calls_per_second_16")]
    Calls16,
    #[serde(rename = "calls_per_second_256")]
    Calls256,
    #[serde(rename = "calls_per_second_4096")]
    Calls4096,
    #[serde(rename = "send_1mib_gb_per_second")]
    Send1MiB,
    #[serde(rename = "send_64mib_gb_per_second")]
    Send64MiB,
}

impl Measure {
    pub const ALL: [Self; 8] = [
        Self::EmptyP50,
        Self::EmptyP99,
        Self::Calls1,
        Self::Calls16,
        Self::Calls256,
        Self::Calls4096,
        Self::Send1MiB,
        Self::Send64MiB,
    ];

    /// The head of a column.
    pub fn title(self) -> &'static str {
        match self {
            Self::EmptyP50 => "empty call, p50",
            Self::EmptyP99 => "p99",
            Self::Calls1 => "calls/s, 1 in flight",
            Self::Calls16 => "16",
            Self::Calls256 => "256",
            Self::Calls4096 => "4096",
            Self::Send1MiB => "1 MiB",
            Self::Send64MiB => "64 MiB",
        }
    }

    /// The figure with its unit.
    pub fn shown(self, value: f64) -> String {
        match self {
            Self::EmptyP50 | Self::EmptyP99 => format!("{} µs", digits(value)),
            Self::Calls1 | Self::Calls16 | Self::Calls256 | Self::Calls4096 => {
                format!("{} k", digits(value / 1e3))
            }
            Self::Send1MiB | Self::Send64MiB => format!("{} GB/s", digits(value)),
        }
    }
}

/// About two digits that mean something.
pub fn digits(value: f64) -> String {
    match value {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.1.. => format!("{value:.2}"),
        0.01.. => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

/// What one system did in one process.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Results {
    /// The system's own version.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    measures: BTreeMap<Measure, f64>,
}

impl Results {
    pub fn set(&mut self, measure: Measure, value: f64) {
        self.measures.insert(measure, value);
    }

    pub fn get(&self, measure: Measure) -> Option<f64> {
        self.measures.get(&measure).copied()
    }
}
