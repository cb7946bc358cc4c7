//! `farref-chaos`, as it is run by hand, only shorter.

use std::fs::{File, read_to_string};
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use farref_testkit::{Ended, Process, Scratch, eventually_blocking};
use serde_json::Value;

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farref-chaos"));
    // Variables of a launcher around the tests must not reach the workers.
    command.env("RANK", "7").env("TORCHELASTIC_RUN_ID", "other");
    command.args(arguments);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn chaos(arguments: &[&str]) -> Result<Ended> {
    Process::start("farref-chaos", &mut command(arguments))?.ended_blocking()
}

/// The JSON that a successful run printed.
fn report(ended: &Ended) -> Result<Value> {
    let Ended {
        status,
        stdout,
        stderr,
    } = ended;
    ensure!(status.success(), "{status}\n{stdout}\n{stderr}");
    serde_json::from_str(stdout).with_context(|| stdout.clone())
}

fn count(report: &Value, path: &str) -> Result<u64> {
    let found = report.pointer(path).and_then(Value::as_u64);
    found.with_context(|| format!("no number at {path}"))
}

#[test]
fn a_group_under_faults_keeps_what_it_promises() -> Result<()> {
    let scratch = Scratch::new()?;
    let page = scratch.file("chaos.html");
    let ended = chaos(&[
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
        "8",
        "--json",
        "-",
        "--html",
        &page,
    ])?;
    let report = report(&ended)?;
    ensure!(report["violations"] == Value::Array(Vec::new()), "{report}");
    assert_eq!(count(&report, "/seed")?, 7);
    assert_eq!(report["ok"], true);
    assert_eq!(report["version"], env!("CARGO_PKG_VERSION"));
    // Something has happened.
    ensure!(count(&report, "/calls/brought_values")? > 50, "{report}");
    ensure!(count(&report, "/values/made")? > 10, "{report}");
    let timeline = report["timeline"].as_array().context("a timeline")?;
    ensure!(timeline.len() > 5, "{report}");
    let html = read_to_string(&page)?;
    ensure!(html.starts_with("<!doctype html>") && html.trim_end().ends_with("</html>"));
    Ok(())
}

#[test]
fn a_group_without_faults_has_no_error_that_nobody_asked_for() -> Result<()> {
    let scratch = Scratch::new()?;
    let ended = chaos(&[
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
        &scratch.file(""),
        "--json",
        "-",
    ])?;
    let report = report(&ended)?;
    let errors = report["calls"]["failed"].as_object().context("errors")?;
    // Calls that are to be late are.
    ensure!(errors.keys().all(|kind| kind == "timeout"), "{report}");
    assert_eq!(report["lives"].as_array().context("lives")?.len(), 4);
    // Each of four workers has a history and a file for its log, and the driver has a history.
    assert_eq!(scratch.files()?.len(), 9);
    Ok(())
}

/// Starts a long run, with its histories in `scratch`, and interrupts it once its workers work.
fn interrupted(scratch: &Scratch) -> Result<Process> {
    let mut command = command(&["--seed", "9", "--workers", "4", "--seconds", "600"]);
    command.args(["--operations-per-second", "60", "--peer-timeout", "4"]);
    command.args(["--json", "-", "--histories", &scratch.file("histories")]);
    command.stderr(File::create(scratch.file("stderr"))?);
    let process = Process::start("farref-chaos", &mut command)?;
    eventually_blocking("the first worker works", || {
        let history = read_to_string(scratch.file("histories/life-1.jsonl"));
        Ok(history.is_ok_and(|history| history.contains("begun")))
    })?;
    process.interrupt()?;
    Ok(process)
}

#[test]
fn interrupted_run_is_checked_and_reports_the_interrupt() -> Result<()> {
    let scratch = Scratch::new()?;
    let report = report(&interrupted(&scratch)?.ended_blocking()?)?;
    assert_eq!(report["ended_early"], "interrupted");
    let load = report["load_seconds"].as_f64().context("a length")?;
    ensure!(load < 600.0, "the length of the load that was made");
    ensure!(report["violations"] == Value::Array(Vec::new()), "{report}");
    ensure!(count(&report, "/calls/made")? > 0, "{report}");
    Ok(())
}

#[test]
fn run_interrupted_twice_ends_at_once_and_keeps_its_histories() -> Result<()> {
    let scratch = Scratch::new()?;
    let mut process = interrupted(&scratch)?;
    let stderr = || Ok(read_to_string(scratch.file("stderr"))?);
    // The system merges a second signal with one that is still pending.
    eventually_blocking("the run answers the first interrupt", || {
        stderr().map(|text| text.contains("the same again ends at once"))
    })?;
    process.interrupt()?;
    let ended = process.ended_blocking()?;
    let stderr = stderr()?;
    ensure!(!ended.status.success(), "{stderr}");
    std::fs::metadata(scratch.file("histories/driver.jsonl")).context("a history")?;
    ensure!(stderr.contains("asked to end a second time"), "{stderr}");
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
        let Ended { status, stderr, .. } = chaos(arguments)?;
        ensure!(!status.success(), "{arguments:?}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
        ensure!(stderr.starts_with("farref-chaos: "), "{stderr}");
        ensure!(stderr.contains(advice), "{stderr}");
    }
    for arguments in [
        &["--workers", "3"][..],
        &["--faults-per-second", "-1"],
        &["--nonsense"],
    ] {
        assert_eq!(chaos(arguments)?.status.code(), Some(2), "{arguments:?}");
    }
    Ok(())
}
