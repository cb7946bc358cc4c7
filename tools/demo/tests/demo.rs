//! The demo, as a newcomer runs it, only shorter.

use std::process::{Command, Output};

use anyhow::{Context as _, Result, ensure};

fn farref(arguments: &[&str]) -> Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_farref-demo"));
    // What a launcher around the tests says is not for the demo.
    command.env("RANK", "7").env("TORCHELASTIC_RUN_ID", "other");
    Ok(command.args(arguments).output()?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ends_well(output: &Output) -> Result<String> {
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    ensure!(output.status.success(), "{}\n{out}\n{err}", output.status);
    let last = out.lines().last().context("a last line")?;
    ensure!(last.starts_with("demo: success"), "{last}");
    Ok(out)
}

/// What the ledger says of something.
fn entry(out: &str, what: &str) -> Result<String> {
    let line = out.lines().find(|line| line.starts_with(what));
    let line = line.with_context(|| format!("no `{what}` in:\n{out}"))?;
    Ok(line[what.len()..].trim().to_owned())
}

#[test]
fn the_training_over_processes_comes_to_the_loss_of_one_process() -> Result<()> {
    for transport in ["unix", "tcp"] {
        let output = farref(&["demo", "--steps", "25", "--transport", transport])?;
        let out = ends_well(&output)?;
        let here: f64 = entry(&out, "loss over 5 processes")?.parse()?;
        let alone: f64 = entry(&out, "loss in one process")?.parse()?;
        ensure!((here - alone).abs() < 1e-9, "{here} and {alone}");
        assert_eq!(entry(&out, "references leaked")?, "0");
        assert_eq!(entry(&out, "contexts left")?, "0");
        // Every reference was to a value of its own.
        let created = entry(&out, "references created")?;
        assert_eq!(created, entry(&out, "values freed")?);
    }
    Ok(())
}

#[test]
fn a_killed_trainer_changes_nothing_but_the_ledger() -> Result<()> {
    let output = farref(&["demo", "--steps", "30", "--kill-one", "--trainers", "3"])?;
    let out = ends_well(&output)?;
    let here: f64 = entry(&out, "loss over 6 processes")?.parse()?;
    let alone: f64 = entry(&out, "loss in one process")?.parse()?;
    ensure!((here - alone).abs() < 1e-9, "{here} and {alone}");
    assert_eq!(
        entry(&out, "released for trainer2")?,
        "3 (2 Hosted, 1 Journal)"
    );
    assert_eq!(
        entry(&out, "freed because of that")?,
        "1 (its Journal on owner0)"
    );
    assert_eq!(entry(&out, "values died with trainer2")?, "1");
    assert_eq!(entry(&out, "references leaked")?, "0");
    let notes = text(&output.stderr);
    ensure!(notes.contains("trainer2 was killed in step 15"), "{notes}");
    Ok(())
}

#[test]
fn the_page_is_whole_and_needs_nothing_else() -> Result<()> {
    let file = std::env::temp_dir().join(format!("farref-demo-{}.html", std::process::id()));
    let name = file.to_str().context("a path of text")?;
    let output = farref(&["demo", "--steps", "5", "--owners", "1", "--html", name])?;
    let page = std::fs::read_to_string(&file);
    std::fs::remove_file(&file)?;
    ends_well(&output)?;
    let page = page?;
    ensure!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    ensure!(!page.contains("http") && !page.contains("NaN"), "{page}");
    Ok(())
}

#[test]
fn what_cannot_be_done_is_one_line_that_says_what_to_do() -> Result<()> {
    for (arguments, advice) in [
        (
            &["demo", "--kill-one", "--trainers", "1"][..],
            "--trainers 2",
        ),
        (
            &["demo", "--html", "/no/such/directory/page.html"],
            "another file",
        ),
    ] {
        let output = farref(arguments)?;
        let err = text(&output.stderr);
        ensure!(!output.status.success(), "{arguments:?}");
        assert_eq!(err.trim_end().lines().count(), 1, "{err}");
        ensure!(err.starts_with("farref: ") && err.contains(advice), "{err}");
    }
    for arguments in [
        &["demo", "--steps", "0"][..],
        &["demo", "--nonsense"],
        &["dance"],
    ] {
        let output = farref(arguments)?;
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        ensure!(!text(&output.stderr).contains("panicked"));
    }
    Ok(())
}
