//! `farref demo`.

use std::process::ExitCode;

/// Trains a classifier over several processes on this machine and shows what became of every reference
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: Arguments) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not here yet")
}
