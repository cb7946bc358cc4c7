//! The command line of `farref-chaos`.

use std::path::PathBuf;
use std::time::Duration;

use super::settings::Settings;

/// Lets a group of processes work while they are killed, stopped and cut off, and checks what they promise
///
/// Workers call each other, hand references on and train, by the seed. Meanwhile some of them are killed and started again, stopped, told to
/// leave, and their connections are cut, delayed, throttled and half closed. Every worker writes down what it does; in the end all
/// of it is checked: every call ran at most once and was answered rightly, or with an error that what happened allows; nothing was
/// used after it was freed; everything is freed. The exit code is 1 if a rule was broken, or
/// the run could not be made; of a run that was ended early, it is about what happened until then.
#[derive(clap::Parser)]
#[command(
    name = "farref-chaos",
    version,
    after_help = "Examples:
  farref-chaos                                  eight workers, a minute, a fault every second
  farref-chaos --workers 16 --tls --seconds 600 --faults-per-second 2
  farref-chaos --python 2                       two Python workers among them
  farref-chaos --seed 4711 --html chaos.html    what a seed did, with a page that shows it"
)]
pub(super) struct Arguments {
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

    /// The command that does the same again, for a shell, with all that it depends on: also what has a default, which may change.
    pub(super) fn again(&self, seed: u64) -> String {
        let mut command = format!(
            "cargo run --release -p farref-chaos -- --seed {seed} --workers {}",
            self.workers
        );
        if self.python > 0 {
            let program = quoted(&self.python_program.to_string_lossy());
            command += &format!(" --python {} --python-program {program}", self.python);
        }
        if self.tls {
            command += " --tls";
        }
        command
            + &format!(
                " --seconds {} --faults-per-second {} --operations-per-second {} --peer-timeout {}",
                self.seconds, self.faults_per_second, self.operations_per_second, self.peer_timeout
            )
    }
}

fn rate(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(rate) if (0.0..=100.0).contains(&rate) => Ok(rate),
        _ => Err("expected a number from 0 to 100".to_owned()),
    }
}

/// As a word of a shell's.
fn quoted(text: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-+".contains(letter);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[test]
    fn the_command_that_does_the_same_again_names_every_option() {
        let line = "--seed 5 --workers 6 --python 2 --python-program /a/python3 --tls --seconds 30 \
                    --faults-per-second 0.5 --operations-per-second 70 --peer-timeout 4";
        let words = std::iter::once("farref-chaos").chain(line.split_whitespace());
        let arguments = Arguments::parse_from(words);
        assert_eq!(
            arguments.again(5),
            format!("cargo run --release -p farref-chaos -- {line}")
        );
        assert_eq!(quoted("my python's"), r"'my python'\''s'");
    }
}
