//! `farref inspect`.

use std::process::ExitCode;

/// Prints what running workers hold, do and wait for
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: Arguments) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not here yet")
}
