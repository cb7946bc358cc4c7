//! The command line of `farref bench`.

use std::time::Duration;

use clap::ValueEnum;

use super::role::Role;

/// Measures calls and references between two processes, beside a bare socket
///
/// Starts a second process on this machine and measures empty calls, many calls at once, references and
/// 64 MiB messages, and in the same run what the bare socket below does. The ratios are what to look at:
/// the times depend on the machine and on what else it does.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  farref bench                                  everything, half a minute
  farref bench --transport unix --seconds 10    one transport, longer and steadier
  farref bench --json > before.json             for a script")]
pub(crate) struct Arguments {
    /// Over which sockets
    #[arg(long, value_enum, default_value_t = Transports::Both)]
    pub(super) transport: Transports,

    /// How long each measurement takes
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = seconds)]
    pub(super) seconds: Duration,

    /// Only see that every measurement works; the numbers mean little
    #[arg(long, conflicts_with = "seconds")]
    pub(super) quick: bool,

    /// Print the results as JSON
    #[arg(long)]
    pub(super) json: bool,

    /// Be the other end
    #[arg(long, hide = true, value_name = "ROLE")]
    pub(super) peer: Option<Role>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(super) enum Transports {
    Tcp,
    Unix,
    Both,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a number of seconds from 0.01 to 3600".to_owned();
    let number = text.parse::<f64>().map_err(|_| wrong())?;
    match (0.01..=3600.0).contains(&number) {
        true => Ok(Duration::from_secs_f64(number)),
        false => Err(wrong()),
    }
}
