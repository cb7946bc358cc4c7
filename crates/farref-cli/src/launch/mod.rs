//! `farref launch`.

use std::process::ExitCode;

/// Starts N copies of a program as the ranks of one group, and watches over them
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: Arguments) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not here yet")
}
