//! `farref bench`.

use std::process::ExitCode;

/// Measures calls and references between two processes, beside a bare socket
#[derive(clap::Args)]
pub(crate) struct Arguments {}

pub(crate) fn run(_: Arguments) -> anyhow::Result<ExitCode> {
    anyhow::bail!("not here yet")
}
