//! The `farref` command.
//!
//! Each subcommand is a module with its `Arguments` and a `run`, which returns the exit code or an
//! error. An error is printed as one line that says what to do; the code is then 2 for a wrong command
//! line (clap's), 1 for everything else.

#![deny(unsafe_code)]

#[allow(unsafe_code)]
mod allocations;
mod bench;
mod demo;
mod files;
mod inspect;
mod launch;
mod progress;
mod top;
mod view;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Far references: start, watch, measure and check programs that span processes.
#[derive(Parser)]
#[command(
    name = "farref",
    version,
    after_help = "Examples:
  farref demo                                   train over several processes, in half a minute
  farref launch -n 4 -- ./train --epochs 3      start four ranks of any program
  farref inspect 127.0.0.1:29500                what the workers of a group hold, once
  farref top 127.0.0.1:29500                    the same, live"
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Demo(demo::Arguments),
    Launch(launch::Arguments),
    Inspect(inspect::Arguments),
    Top(top::Arguments),
    Simulate(farref_sim::command::Arguments),
    Bench(bench::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Demo(arguments) => demo::run(arguments),
        Command::Launch(arguments) => launch::run(arguments),
        Command::Inspect(arguments) => inspect::run(arguments),
        Command::Top(arguments) => top::run(arguments),
        Command::Simulate(arguments) => farref_sim::command::run(&arguments),
        Command::Bench(arguments) => bench::run(arguments),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("farref: {error:#}");
        ExitCode::FAILURE
    })
}
