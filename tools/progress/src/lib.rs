//! Progress of long work, and files for its results.

mod files;

use std::io::IsTerminal as _;
use std::sync::atomic::{AtomicU64, Ordering};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

pub use files::check_writable;

/// Shows the progress of work in steps: a bar on a terminal, a line now and then elsewhere.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    what: &'static str,
    steps: u64,
    done: AtomicU64,
    /// Whether somebody watches.
    live: bool,
}

impl Progress {
    /// Nothing is done yet of these steps. `what` stands before the bar and the lines.
    pub fn new(steps: u64, what: &'static str) -> Self {
        let live = std::io::stderr().is_terminal();
        let target = match live {
            true => ProgressDrawTarget::stderr(),
            false => ProgressDrawTarget::hidden(),
        };
        let style = "{prefix} {wide_bar} {pos}/{len}  {msg}";
        let style =
            ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
        let bar = ProgressBar::with_draw_target(Some(steps), target).with_style(style);
        bar.set_prefix(what);
        Self {
            bar,
            what,
            steps,
            done: AtomicU64::new(0),
            live,
        }
    }

    /// One step more is done, and this is how things are.
    pub fn step(&self, state: &str) {
        let before = self.done.fetch_add(1, Ordering::Relaxed);
        if self.live {
            self.bar.set_message(state.to_owned());
            self.bar.inc(1);
        } else if before * 10 / self.steps < (before + 1) * 10 / self.steps {
            eprintln!("{} {}/{}  {state}", self.what, before + 1, self.steps);
        }
    }

    /// What is being done, within a step.
    pub fn say(&self, state: &str) {
        if self.live {
            self.bar.set_message(state.to_owned());
        }
    }

    /// Something that should stay on the screen.
    pub fn note(&self, text: &str) {
        match self.live {
            true => self.bar.println(text),
            false => eprintln!("{text}"),
        }
    }

    /// The bar stays as it is.
    pub fn finish(&self) {
        self.bar.abandon();
        if self.live {
            eprintln!();
        }
    }
}
