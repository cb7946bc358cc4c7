//! The same with PyTorch, if there is a Python that has it: as PyTorch is by default, which on one host is through shared
//! memory. [`output`] runs a program of ours with that Python.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::Command;
use tokio::time::timeout;

use super::super::plan::Plan;
use super::super::samples::Times;

const STEP: &str = include_str!("torch_step.py");
/// Two processes that import torch take long.
const PATIENCE: Duration = Duration::from_secs(120);

/// A training step with `torch.distributed.autograd`.
pub(super) async fn steps(
    python: &Path,
    (width, rows): (usize, usize),
    plan: &Plan,
) -> anyhow::Result<Times> {
    let (warm_up, steps) = if plan.smoke { (2, 5) } else { (50, 300) };
    let numbers = [width, rows, warm_up, steps].map(|number: usize| number.to_string());
    let times = output(python, STEP, &numbers)
        .await?
        .lines()
        .map(|line| Ok(Duration::from_nanos(line.parse()?)))
        .collect::<anyhow::Result<Vec<_>>>()?;
    ensure!(!times.is_empty(), "it measured nothing");
    Ok(Times::of(times))
}

/// What a program prints.
pub(super) async fn output(
    python: &Path,
    program: &str,
    arguments: &[impl AsRef<OsStr>],
) -> anyhow::Result<String> {
    // multiprocessing starts the script again, so it has to be a file.
    let (process, random) = (std::process::id(), fastrand::u32(..));
    let script = std::env::temp_dir().join(format!("farref-bench-{process}-{random:08x}.py"));
    std::fs::write(&script, program)?;
    let output = Command::new(python)
        .arg(&script)
        .args(arguments)
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .output();
    let output = timeout(PATIENCE, output).await;
    let _ = std::fs::remove_file(&script);
    let output = output
        .context("it takes too long")?
        .with_context(|| format!("`{}` cannot be run", python.display()))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "{}",
        errors.lines().last().unwrap_or("it failed")
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
