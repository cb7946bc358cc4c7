//! What was measured, and how it is taken down.

use serde::Serialize;

use super::super::part::Part;
use super::super::plan::Plan;
use super::super::transport::Transport;
use super::measurement::Measurement;
use farref_progress::Progress;

/// All that was measured in one run.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    pub(super) version: &'static str,
    pub(super) build: &'static str,
    pub(super) processors: usize,
    /// How long most measurements took.
    pub(super) seconds: f64,
    pub(super) measurements: Vec<Recorded>,
}

#[derive(Debug, Serialize)]
pub(super) struct Recorded {
    pub(super) part: Part,
    pub(super) transport: Transport,
    #[serde(flatten)]
    pub(super) measured: Measurement,
}

impl Report {
    pub(crate) fn new(plan: &Plan) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            build: match cfg!(debug_assertions) {
                true => "development",
                false => "release",
            },
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            seconds: plan.time.as_secs_f64(),
            measurements: Vec::new(),
        }
    }

    pub(crate) fn is_development_build(&self) -> bool {
        self.build == "development"
    }

    /// The parts that were measured, in order.
    pub(super) fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<_> = self.measurements.iter().map(|one| one.part).collect();
        parts.dedup();
        parts
    }

    pub(super) fn of(&self, part: Part) -> impl Iterator<Item = &Recorded> {
        self.measurements.iter().filter(move |one| one.part == part)
    }
}

/// Takes what one part measures over one transport.
pub(crate) struct Recorder<'a> {
    pub(crate) part: Part,
    pub(crate) transport: Transport,
    pub(crate) report: &'a mut Report,
    pub(crate) progress: &'a Progress,
}

impl Recorder<'_> {
    /// What is measured next.
    pub(crate) fn say(&self, what: &str) {
        let (part, over) = (self.part.name(), self.transport.name());
        self.progress.say(&format!("{part} over {over}: {what}"));
    }

    /// What a reader of the results should know.
    pub(crate) fn note(&self, text: &str) {
        self.progress.note(text);
    }

    pub(crate) fn add(&mut self, measured: Measurement) {
        self.report.measurements.push(Recorded {
            part: self.part,
            transport: self.transport,
            measured,
        });
    }
}
