//! What the core has to say goes to Python's `logging`, where programs expect it: to the logger `farref`.
//!
//! With `FARREF_LOG` it goes to stderr instead, as it does in Rust programs, and as much of it as that says.
//!
//! # Invariants
//!
//! - **LO-1** Whoever says something does not wait for Python: it is handed to a thread of its own, which runs the handlers of
//!   the program. If that cannot keep up, the rest is not said.
//! - **LO-2** What was said before the program ends is logged before it ends.

use std::fmt::Write as _;
use std::io::IsTerminal as _;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::EnvFilter;

use crate::interpreter;
use crate::thread_state;

/// LO-1
const WAITING: usize = 1024;

/// How long the end of the program waits for what is still to be logged.
const PATIENCE: Duration = Duration::from_secs(2);

static LINES: OnceLock<Option<Lines>> = OnceLock::new();

struct Lines {
    sender: Mutex<Option<SyncSender<Line>>>,
    /// Says nothing, and ends when all is logged.
    logged: Mutex<Receiver<()>>,
}

/// What is said, as `logging` has it.
struct Line {
    level: u8,
    text: String,
}

/// Called by the import.
pub(crate) fn begin() {
    let wanted = std::env::var("FARREF_LOG").unwrap_or_default();
    // A program that has its own subscriber keeps it.
    if wanted.is_empty() {
        let _ = tracing::subscriber::set_global_default(Logging);
        return;
    }
    let filter = EnvFilter::try_new(&wanted).unwrap_or_else(|error| {
        eprintln!(
            "FARREF_LOG={wanted:?} cannot be read ({error}), and is taken for \"info\": give a level (error, warn, info, debug, \
             trace), or levels for modules as in \"warn,farref::native=debug\""
        );
        EnvFilter::new("info")
    });
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
}

/// Called when the program ends, without the interpreter. LO-2
pub(crate) fn close() {
    let Some(Some(lines)) = LINES.get() else {
        return;
    };
    let sender = lines.sender.lock();
    drop(sender.unwrap_or_else(PoisonError::into_inner).take());
    let logged = lines.logged.lock();
    let _ = logged
        .unwrap_or_else(PoisonError::into_inner)
        .recv_timeout(PATIENCE);
}

/// Hands on what the core says, from information upwards.
struct Logging;

impl Subscriber for Logging {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
            && *metadata.level() <= Level::INFO
            && metadata.target().starts_with("farref")
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::INFO)
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let level = match *event.metadata().level() {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        send(Line {
            level,
            text: text.whole(),
        });
    }

    // There are no spans: they are not enabled.
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// An event as a text: who says it, what, and the rest.
#[derive(Default)]
struct Text {
    worker: String,
    message: String,
    rest: String,
}

impl Text {
    fn whole(self) -> String {
        let mut whole = match self.worker.is_empty() {
            true => self.message,
            false => format!("worker {:?}: {}", self.worker, self.message),
        };
        if !self.rest.is_empty() {
            let _ = write!(whole, " ({})", self.rest);
        }
        whole
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Writing to a text cannot fail.
        let _ = match field.name() {
            "worker" => write!(self.worker, "{value:?}"),
            "message" => write!(self.message, "{value:?}"),
            name => {
                let comma = if self.rest.is_empty() { "" } else { ", " };
                write!(self.rest, "{comma}{name}={value:?}")
            }
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}

fn send(line: Line) {
    if interpreter::is_over() {
        return;
    }
    let Some(lines) = LINES.get_or_init(start) else {
        return;
    };
    let sender = lines.sender.lock();
    if let Some(sender) = &*sender.unwrap_or_else(PoisonError::into_inner) {
        // LO-1
        let _ = sender.try_send(line);
    }
}

fn start() -> Option<Lines> {
    let (sender, lines) = mpsc::sync_channel(WAITING);
    let (logging, logged) = mpsc::channel();
    let thread = std::thread::Builder::new().name("farref-logging".to_owned());
    let started = thread.spawn(move || {
        // Dropped when all is logged.
        let _logging: mpsc::Sender<()> = logging;
        work(&lines);
    });
    started.ok().map(|_| Lines {
        sender: Mutex::new(Some(sender)),
        logged: Mutex::new(logged),
    })
}

fn work(lines: &Receiver<Line>) {
    while let Ok(line) = lines.recv() {
        thread_state::attach(|py| {
            if let Err(error) = log(py, &line) {
                error.write_unraisable(py, None);
            }
        });
    }
}

fn log(py: Python<'_>, line: &Line) -> PyResult<()> {
    let logger = py
        .import("logging")?
        .call_method1("getLogger", ("farref",))?;
    // As an argument: a text with a percent sign in it is no format.
    logger
        .call_method1("log", (line.level, "%s", &line.text))
        .map(drop)
}
