//! `farref chaos`, as it is run by hand, only shorter.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

fn farref(arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
    // What a launcher around the tests says is not for the workers.
    command.env("RANK", "7").env("TORCHELASTIC_RUN_ID", "other");
    Ok(command.arg("chaos").args(arguments).output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// What a run printed as JSON. It has to have ended well.
fn report(output: &Output) -> Result<Value> {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{}\n{out}\n{err}", output.status);
    serde_json::from_str(&out).with_context(|| out.clone())
}

fn count(report: &Value, path: &str) -> Result<u64> {
    let found = report.pointer(path).and_then(Value::as_u64);
    found.with_context(|| format!("no number at {path}"))
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("farref-{name}-{}", std::process::id()))
}

#[test]
fn a_group_under_faults_keeps_what_it_promises() -> Result<()> {
    let page = scratch("chaos.html");
    let output = farref(&[
        "--seed",
        "7",
        "--workers",
        "5",
        "--seconds",
        "15",
        "--faults-per-second",
        "1.5",
        "--operations-per-second",
        "120",
        "--peer-timeout",
        "4",
        "--json",
        "-",
        "--html",
        page.to_str().context("a path of text")?,
    ])?;
    let html = std::fs::read_to_string(&page);
    let _ = std::fs::remove_file(&page);
    let report = report(&output)?;
    ensure!(report["violations"] == Value::Array(Vec::new()), "{report}");
    assert_eq!(count(&report, "/seed")?, 7);
    assert_eq!(report["ok"], true);
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    // Something has happened.
    ensure!(count(&report, "/calls/brought_values")? > 100, "{report}");
    ensure!(count(&report, "/values/made")? > 10, "{report}");
    let timeline = report["timeline"].as_array().context("a timeline")?;
    ensure!(timeline.len() > 5, "{report}");
    let html = html?;
    ensure!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
    Ok(())
}

#[test]
fn a_group_without_faults_has_no_error_that_nobody_asked_for() -> Result<()> {
    let folder = scratch("histories");
    let output = farref(&[
        "--seed",
        "8",
        "--workers",
        "4",
        "--seconds",
        "4",
        "--faults-per-second",
        "0",
        "--operations-per-second",
        "100",
        "--tls",
        "--histories",
        folder.to_str().context("a path of text")?,
        "--json",
        "-",
    ])?;
    let histories = std::fs::read_dir(&folder).map(Iterator::count);
    let _ = std::fs::remove_dir_all(&folder);
    let report = report(&output)?;
    let errors = report["calls"]["failed"].as_object().context("errors")?;
    // Calls that are to be late are.
    ensure!(errors.keys().all(|kind| kind == "timeout"), "{report}");
    assert_eq!(report["lives"].as_array().context("lives")?.len(), 4);
    // Each of four workers has a history and a file for what it complains of, and the driver has a history.
    assert_eq!(histories?, 9);
    Ok(())
}

/// The exit code of a run and its results, which was interrupted so many times once its workers worked; and what became of its histories.
fn interrupted(times: u32) -> Result<(Output, bool)> {
    let folder = scratch(&format!("interrupted-{times}"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_farref"));
    command.args(["chaos", "--seed", "9", "--workers", "4", "--seconds", "600"]);
    command.args(["--operations-per-second", "60", "--peer-timeout", "4"]);
    command.args(["--json", "-", "--histories"]).arg(&folder);
    let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn()?;
    let works = || {
        let history = std::fs::read_to_string(folder.join("life-1.jsonl"));
        history.is_ok_and(|history| history.contains("begun"))
    };
    while !works() {
        std::thread::sleep(Duration::from_millis(50));
    }
    let pid = Pid::from_raw(child.id().try_into()?).context("a process")?;
    for _ in 0..times {
        kill_process(pid, Signal::INT)?;
        std::thread::sleep(Duration::from_millis(500));
    }
    let output = child.wait_with_output()?;
    let is_there = folder.join("driver.jsonl").exists();
    let _ = std::fs::remove_dir_all(&folder);
    Ok((output, is_there))
}

#[test]
fn a_run_that_is_interrupted_is_checked_and_says_so() -> Result<()> {
    let (output, _) = interrupted(1)?;
    let report = report(&output)?;
    assert_eq!(report["ended_early"], "interrupted");
    let load = report["load_seconds"].as_f64().context("a length")?;
    ensure!(load < 600.0, "the load that was made, not that asked for");
    ensure!(report["violations"] == Value::Array(Vec::new()), "{report}");
    ensure!(count(&report, "/calls/made")? > 0, "{report}");
    Ok(())
}

#[test]
fn a_run_that_is_interrupted_twice_ends_at_once_and_leaves_its_histories() -> Result<()> {
    let (output, is_there) = interrupted(2)?;
    let err = text(&output.stderr);
    ensure!(!output.status.success() && is_there, "{err}");
    ensure!(err.contains("asked to end a second time"), "{err}");
    Ok(())
}

#[test]
fn what_cannot_be_done_is_one_line_that_says_what_to_do() -> Result<()> {
    for (arguments, advice) in [
        (&["--python", "8"][..], "--workers 9"),
        (
            &["--python", "1", "--python-program", "/nope/python"],
            "with /nope/python",
        ),
        (
            &["--python", "1", "--python-program", "false"],
            "pip install ./python",
        ),
        (&["--html", "/no/such/directory/page.html"], "another file"),
        (&["--html", "a", "--json", "a"], "another one"),
    ] {
        let output = farref(arguments)?;
        let err = text(&output.stderr);
        ensure!(!output.status.success(), "{arguments:?}");
        assert_eq!(err.trim_end().lines().count(), 1, "{err}");
        ensure!(err.starts_with("farref: ") && err.contains(advice), "{err}");
    }
    for arguments in [
        &["--workers", "3"][..],
        &["--faults-per-second", "-1"],
        &["--nonsense"],
    ] {
        assert_eq!(farref(arguments)?.status.code(), Some(2), "{arguments:?}");
    }
    Ok(())
}
