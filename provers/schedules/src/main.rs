//! `farref-schedules`: try many interleavings of each scenario, or one again.

#![forbid(unsafe_code)]

use clap::Parser;

/// Tries interleavings of the parts of farref's runtime that threads share.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(flatten)]
    arguments: farref_schedules::command::Arguments,
}

fn main() -> anyhow::Result<()> {
    farref_schedules::command::run(&Command::parse().arguments)
}
