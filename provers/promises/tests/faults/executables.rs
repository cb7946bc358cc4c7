//! Building the tests of `farref` with faults that can be switched on.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

/// What cargo says of something that it has built; it says other things too.
#[derive(Deserialize)]
struct Built {
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// The programs that have the tests, by their names.
pub(crate) fn build() -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args([
            "test",
            "--no-run",
            "--locked",
            "--message-format",
            "json-render-diagnostics",
        ])
        .args([
            "-p",
            "farref",
            "--features",
            "mutations",
            "--test",
            "laws",
            "--test",
            "processes",
        ])
        .current_dir(workspace)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cannot build the tests of farref: {}",
        output.status
    );
    let lines = String::from_utf8(output.stdout)?;
    let built = lines.lines().filter_map(|line| {
        let built: Built = serde_json::from_str(line).ok()?;
        Some((built.target.name, built.executable?))
    });
    Ok(built.collect())
}
