//! The command line of `farref-bench`.

use std::path::PathBuf;
use std::time::Duration;

use super::part::Part;
use super::role::Role;
use super::transport::Transport;

/// Measures calls, values and references between processes, beside what sockets and memory can do
///
/// Starts further processes on this machine and measures what farref does, and in the same run what bounds it: a bare
/// socket, a copy in memory. The ratios are what to look at: the times depend on the machine and on what else it does.
#[derive(clap::Parser)]
#[command(
    name = "farref-bench",
    version,
    after_help = "Examples:
  farref-bench                                  everything, about a minute
  farref-bench calls pipelined --transport unix --seconds 5
  farref-bench values --full --html values.html larger values, with plots
  farref-bench --cuda --python python3          tensors on a GPU, beside torch.distributed.rpc
  farref-bench --json before.json               for a script; `--json -` prints it"
)]
pub(super) struct Arguments {
    /// What to measure: all of it but `cuda`, if nothing is named
    #[arg(value_enum, value_name = "PART")]
    pub(super) parts: Vec<Part>,

    /// Over what: may be repeated, and is everything if left out
    #[arg(long, value_enum)]
    pub(super) transport: Vec<Transport>,

    /// How long each measurement takes, where not its size decides
    #[arg(long, value_name = "SECONDS", default_value = "0.5", value_parser = seconds)]
    pub(super) seconds: Duration,

    /// Only see that every measurement works; the numbers mean little
    #[arg(long, conflicts_with_all = ["seconds", "full"])]
    pub(super) quick: bool,

    /// Values up to 256 MiB, 10 million live references, groups of up to 64 workers: many minutes, and up to 8 GB of memory
    #[arg(long)]
    pub(super) full: bool,

    /// How many references live at once in `live`
    #[arg(long, value_name = "COUNT", value_parser = live)]
    pub(super) live: Option<usize>,

    /// Tensors on a GPU between two processes that use it: the part `cuda`, which is measured only if it is asked for
    #[arg(long)]
    pub(super) cuda: bool,

    /// A Python that has torch, to measure its training step beside ours, and its tensors on a GPU
    #[arg(long, value_name = "PROGRAM")]
    pub(super) python: Option<PathBuf>,

    /// Write the results as JSON; with `-`, print them instead of the table
    #[arg(long, value_name = "FILE")]
    pub(super) json: Option<PathBuf>,

    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,

    /// Be the other end
    #[arg(long, hide = true, value_name = "ROLE")]
    pub(super) peer: Option<Role>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number of seconds from 0.01 to 3600".to_owned();
    let number = text.parse::<f64>().map_err(|_| wrong())?;
    match (0.01..=3600.0).contains(&number) {
        true => Ok(Duration::from_secs_f64(number)),
        false => Err(wrong()),
    }
}

fn live(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=1_000_000_000) => Ok(count),
        _ => Err("expected a number from 1 to 1000000000".to_owned()),
    }
}
