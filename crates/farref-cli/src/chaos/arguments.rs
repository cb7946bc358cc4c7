//! The command line of `farref chaos`.

use std::path::PathBuf;
use std::time::Duration;

use super::settings::Settings;

/// Lets a group of processes work while they are killed, stopped and cut off, and checks what they promise
///
/// Workers call each other, hand references on and train, by the seed. Meanwhile some of them are killed and started again, stopped, told to
/// leave, and their connections are cut, delayed, throttled and half closed. Every worker writes down what it does; in the end all
/// of it is checked: every call ran at most once and was answered rightly, or with an error that what happened allows; nothing was
/// used after it was freed; everything is freed. The exit code is 1 if anything is wrong.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  farref chaos                                  eight workers, a minute, a fault every second
  farref chaos --workers 16 --tls --seconds 600 --faults-per-second 2
  farref chaos --python 2                       two Python workers among them
  farref chaos --seed 4711 --html chaos.html    what a seed did, with a page that shows it")]
pub(crate) struct Arguments {
    /// How many workers there are, 4 to 64
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(4..=64))]
    pub(super) workers: u32,

    /// How many of them are Python programs, which need the package `farref`; fewer than all
    #[arg(long, value_name = "WORKERS", default_value_t = 0)]
    pub(super) python: u32,

    /// The Python that runs them
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    pub(super) python_program: PathBuf,

    /// Encrypt all connections
    #[arg(long)]
    pub(super) tls: bool,

    /// How long they work, before all comes to rest. A day at most: all histories are in memory when they are checked
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(super) seconds: u64,

    /// How many faults there are to be in a second, on average, 0 to 100
    #[arg(long, value_name = "RATE", default_value = "1", value_parser = rate)]
    pub(super) faults_per_second: f64,

    /// How many things all workers together do in a second
    #[arg(long, value_name = "RATE", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(super) operations_per_second: u32,

    /// Where the choices start: which faults come when, and what every worker does. A random one if it is left out, which is told
    #[arg(long)]
    pub(super) seed: Option<u64>,

    /// How long a worker may be silent before the others take it for dead, 2 to 60
    #[arg(long, value_name = "SECONDS", default_value_t = 6, value_parser = clap::value_parser!(u64).range(2..=60))]
    pub(super) peer_timeout: u64,

    /// Keep the histories there. Without it they are in a folder for temporary files, and are removed if nothing is wrong
    #[arg(long, value_name = "FOLDER")]
    pub(super) histories: Option<PathBuf>,

    /// Write the results as JSON; with `-`, print them instead of the summary
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Write a page with a timeline of the faults and of what they caused
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,

    /// Be one of the workers
    #[arg(long, hide = true, value_name = "SETTINGS")]
    pub(super) settings: Option<Settings>,
}

impl Arguments {
    pub(super) fn peer_timeout(&self) -> Duration {
        Duration::from_secs(self.peer_timeout)
    }

    pub(super) fn length(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=100.0).contains(&rate) => Ok(rate),
        _ => Err("expected a number from 0 to 100".to_owned()),
    }
}
