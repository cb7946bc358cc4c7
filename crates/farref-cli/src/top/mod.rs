//! `farref top`.

use std::process::ExitCode;

/// Shows what running workers hold, do and wait for, live
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: Arguments) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not here yet")
}
