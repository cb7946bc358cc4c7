//! The test programs of `farref`, whose feature `mutations` is on in all tests of the main workspace.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use serde::Deserialize;

/// A line of cargo's output that names an executable; other lines have no such field.
#[derive(Deserialize)]
struct Built {
    manifest_path: PathBuf,
    target: Target,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

/// Builds the programs, unless `cargo test` has, and returns their paths by their names.
///
/// With `--workspace`, cargo chooses the features that `cargo test --workspace` chooses. With `-p farref`, it would
/// build the programs and what they depend on once more. Other packages have tests of these names,
/// too, hence the comparison of manifests.
pub(crate) fn build() -> anyhow::Result<BTreeMap<String, PathBuf>> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let workspace = workspace.canonicalize().context("no main workspace")?;
    let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["test", "--no-run", "--locked", "--workspace"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(["--test", "laws", "--test", "processes"])
        .current_dir(&workspace)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("cannot start cargo")?;
    ensure!(
        output.status.success(),
        "cannot build the tests of farref: {}",
        output.status
    );
    let manifest = workspace.join("crates/farref/Cargo.toml");
    let lines = String::from_utf8(output.stdout)?;
    let built = lines.lines().filter_map(|line| {
        let built: Built = serde_json::from_str(line).ok()?;
        let is_farrefs = built.manifest_path == manifest;
        Some((built.target.name, built.executable?)).filter(|_| is_farrefs)
    });
    Ok(built.collect())
}
