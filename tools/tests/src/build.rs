//! Builds the test programs, and lists what there is to run.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

/// Something to run.
#[derive(Debug)]
pub(crate) struct Program {
    /// Its package and its target, as in `farref:laws`.
    pub(crate) name: String,
    pub(crate) command: Command,
}

/// The test programs, built.
pub(crate) struct Build {
    pub(crate) programs: Vec<Program>,
    pub(crate) target_folder: PathBuf,
}

/// A command of the cargo that runs this program.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // `cargo run` sets these variables for this program. If the child cargo inherited them, it would
    // rebuild crates that depend on them.
    for (name, _) in env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG_") || name_text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// Builds all tests of the workspace. The programs get the arguments.
pub(crate) fn build(arguments: &[String]) -> Result<Build> {
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run"]);
    command.arg("--message-format=json-render-diagnostics");
    let messages = output(&mut command, "the tests do not build")?;
    let mut programs = Vec::new();
    for line in String::from_utf8(messages)?.lines() {
        let message: Value = serde_json::from_str(line).context("cargo's message")?;
        programs.extend(program(&message)?);
    }
    // One command for all packages: for a subset, cargo would rebuild dependencies with other
    // features.
    let mut examples = cargo();
    examples.args(["test", "--workspace", "--doc", "--"]);
    programs.push(Program {
        name: "documentation".to_owned(),
        command: examples,
    });
    for program in &mut programs {
        program.command.args(arguments);
    }
    let target_folder = text(&metadata()?, "/target_directory")?.into();
    Ok(Build {
        programs,
        target_folder,
    })
}

/// The test program that a message is about, if it is about one.
fn program(message: &Value) -> Result<Option<Program>> {
    let is_test = message.pointer("/profile/test") == Some(&Value::Bool(true));
    let Some(executable) = message["executable"].as_str().filter(|_| is_test) else {
        return Ok(None);
    };
    let folder = Path::new(text(message, "/manifest_path")?)
        .parent()
        .context("a manifest in no folder")?;
    let target = match text(message, "/target/kind/0")? {
        "lib" | "proc-macro" => "lib",
        _ => text(message, "/target/name")?,
    };
    let package = package(text(message, "/package_id")?)?;
    let mut command = Command::new(executable);
    // As cargo does.
    command
        .current_dir(folder)
        .env("CARGO_MANIFEST_DIR", folder);
    Ok(Some(Program {
        name: format!("{package}:{target}"),
        command,
    }))
}

/// The name in an id such as `path+file:///folder/name#0.1.0` or `path+file:///folder#name@0.1.0`.
fn package(id: &str) -> Result<&str> {
    let (path, version) = id
        .rsplit_once('#')
        .context("a package id without version")?;
    match version.split_once('@') {
        Some((name, _)) => Ok(name),
        None => path.rsplit('/').next().context("a package id without name"),
    }
}

fn metadata() -> Result<Value> {
    let mut command = cargo();
    command.args(["metadata", "--format-version", "1", "--no-deps"]);
    let metadata = output(&mut command, "`cargo metadata` failed")?;
    Ok(serde_json::from_slice(&metadata)?)
}

/// The standard output of cargo. If cargo fails, the error is `failure`; cargo prints the reason.
fn output(cargo: &mut Command, failure: &'static str) -> Result<Vec<u8>> {
    let output = cargo.stderr(Stdio::inherit()).output();
    let output = output.context("starting cargo")?;
    ensure!(output.status.success(), failure);
    Ok(output.stdout)
}

fn text<'a>(value: &'a Value, pointer: &str) -> Result<&'a str> {
    let text = value.pointer(pointer).and_then(Value::as_str);
    text.with_context(|| format!("cargo's message has no {pointer}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_found_in_both_forms_of_ids() -> Result<()> {
        assert_eq!(package("path+file:///a/farref#0.1.0")?, "farref");
        assert_eq!(
            package("path+file:///a/tests#farref-tests@0.1.0")?,
            "farref-tests"
        );
        Ok(())
    }

    #[test]
    fn only_test_programs_are_run() -> Result<()> {
        let library = r#"{"profile": {"test": false}, "executable": null}"#;
        assert!(program(&serde_json::from_str(library)?)?.is_none());
        let test = r#"{"profile": {"test": true}, "executable": "/t/laws-1", "manifest_path": "/a/farref/Cargo.toml",
            "package_id": "path+file:///a/farref#0.1.0", "target": {"name": "laws", "kind": ["test"]}}"#;
        let found = program(&serde_json::from_str(test)?)?.context("a program")?;
        assert_eq!(found.name, "farref:laws");
        assert_eq!(
            found.command.get_current_dir(),
            Some(Path::new("/a/farref"))
        );
        Ok(())
    }
}
