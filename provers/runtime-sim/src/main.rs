//! `farref-runtime-sim`: simulate many seeds of the whole runtime, or replay one.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;

/// Simulates whole groups of farref workers and checks what callers see.
#[derive(Parser)]
#[command(version)]
struct Command {
    #[command(flatten)]
    arguments: farref_runtime_sim::command::Arguments,
}

fn main() -> anyhow::Result<ExitCode> {
    farref_runtime_sim::command::run(&Command::parse().arguments)
}
