//! The `farref` command, as a library: [`main`] is all of it.
//!
//! The demo is another program, `farref-demo`, because it trains with candle, which is most of what
//! there would be to compile: a user who installs the command wants to start programs and to look
//! into them. [`tools`] has what the command shares with the programs in `tools/`, besides `farref-group`.
//!
//! Each subcommand is a module with its `Arguments` and a `run`, which returns the exit code or an
//! error. An error is printed as one line that says what to do; the code is then 2 for a wrong command
//! line (clap's), 1 for everything else.

#![deny(unsafe_code)]

mod certs;
mod dashboard;
mod group_tls;
mod inspect;
mod launch;
pub mod tools;
mod top;
mod view;

/// Entry points for the fuzzers in `fuzz/`.
#[cfg(any(test, feature = "fuzzing"))]
#[doc(hidden)]
pub mod __fuzz {
    pub use crate::dashboard::fuzzing::dashboard_requests;
}

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Far references: start, watch, measure and check programs that span processes.
#[derive(Parser)]
#[command(
    name = "farref",
    version,
    after_help = "Examples:
  farref launch -n 4 -- ./train --epochs 3      start four ranks of any program
  farref inspect 127.0.0.1:29500                what the workers of a group hold, once
  farref top 127.0.0.1:29500                    the same, live
  farref dashboard 127.0.0.1:29500              and as a page in a browser
  farref certs init authority                   certificates, for a group that spans machines"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Launch(launch::Arguments),
    Inspect(inspect::Arguments),
    Top(top::Arguments),
    Dashboard(dashboard::Arguments),
    Certs(certs::Arguments),
    Simulate(farref_sim::command::Arguments),
}

/// Does what the command line of this process says.
///
/// ```no_run
/// # use std::process::ExitCode;
/// fn main() -> ExitCode {
///     farref_cli::main()
/// }
/// ```
pub fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Launch(arguments) => launch::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Top(arguments) => top::run(arguments),
        Command::Dashboard(arguments) => dashboard::run(arguments),
        Command::Certs(arguments) => certs::run(&arguments),
        Command::Simulate(arguments) => farref_sim::command::run(&arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("farref: {error:#}");
        ExitCode::FAILURE
    })
}
