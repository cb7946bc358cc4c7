//! Tests in a process of their own: this same program, asked for one test.

use std::process::Command;

use anyhow::ensure;

/// Set in a process that runs one test.
const ALONE: &str = "FARREF_TEST_ALONE";

/// Whether this process runs one test.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs the test of this name in a process of its own.
pub(crate) fn alone(name: &str, test: impl FnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    match is_alone() {
        true => test(),
        false => run_with(Command::new(std::env::current_exe()?), name),
    }
}

/// Runs the test of this name with a command that becomes this program.
pub(crate) fn run_with(mut command: Command, name: &str) -> anyhow::Result<()> {
    let output = command.args(["--exact", name]).env(ALONE, "1").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let complaints = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{text}\n{complaints}");
    ensure!(text.contains("1 passed"), "the test did not run: {text}");
    Ok(())
}
