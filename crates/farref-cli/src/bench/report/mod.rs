//! The results: as they come, as a table, as JSON and as a page.
//!
//! | part | job |
//! | --- | --- |
//! | [`measurement`] | one figure, with the limits that it is held against |
//! | [`words`] | how figures and their names are written |
//! | [`table`] | for the terminal |
//! | [`page`], [`plot`] | for the browser |

mod measurement;
mod page;
mod plot;
mod table;
mod words;

use serde::Serialize;

use super::parts::Part;
use super::plan::Plan;
use super::transport::Transport;
use crate::progress::Progress;

pub(super) use measurement::Measurement;

/// All that was measured in one run.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    version: &'static str,
    build: &'static str,
    processors: usize,
    /// How long most measurements took.
    seconds: f64,
    measurements: Vec<Recorded>,
}

#[derive(Debug, Serialize)]
struct Recorded {
    part: Part,
    transport: Transport,
    #[serde(flatten)]
    measured: Measurement,
}

impl Report {
    pub(super) fn new(plan: &Plan) -> Self {
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

    pub(super) fn is_development_build(&self) -> bool {
        self.build == "development"
    }

    pub(super) fn table(&self) -> String {
        table::write(self)
    }

    pub(super) fn page(&self) -> String {
        page::write(self)
    }

    /// The parts that were measured, in order.
    fn parts(&self) -> Vec<Part> {
        let mut parts: Vec<_> = self.measurements.iter().map(|one| one.part).collect();
        parts.dedup();
        parts
    }

    fn of(&self, part: Part) -> impl Iterator<Item = &Recorded> {
        self.measurements.iter().filter(move |one| one.part == part)
    }
}

/// Takes what one part measures over one transport.
pub(super) struct Recorder<'a> {
    pub(super) part: Part,
    pub(super) transport: Transport,
    pub(super) report: &'a mut Report,
    pub(super) progress: &'a Progress,
}

impl Recorder<'_> {
    /// What is measured next.
    pub(super) fn say(&self, what: &str) {
        let (part, over) = (self.part.name(), self.transport.name());
        self.progress.say(&format!("{part} over {over}: {what}"));
    }

    /// What a reader of the results should know.
    pub(super) fn note(&self, text: &str) {
        self.progress.note(text);
    }

    pub(super) fn add(&mut self, measured: Measurement) {
        self.report.measurements.push(Recorded {
            part: self.part,
            transport: self.transport,
            measured,
        });
    }
}
