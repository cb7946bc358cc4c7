//! `farref-sim`: simulate many seeds, or replay one, without the rest of farref.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// Simulates groups of farref workers on the real protocol code and checks every guarantee.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(flatten)]
    arguments: farref_sim::command::Arguments,
}

fn main() -> anyhow::Result<ExitCode> {
    farref_sim::command::run(&Command::parse().arguments)
}
