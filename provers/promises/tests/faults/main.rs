//! Each fault in [`NOTICED`] is noticed by its test: that passes as `farref` is, and with the fault it fails and says why.
//!
//! The tests are those of `farref`, built with its feature `mutations` in the target directory of the main workspace. Each runs in a process of its
//! own, which `FARREF_MUTATION` tells the fault; so do the workers that it starts.

mod executables;
mod process;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use farref_promises::{NOTICED, Noticed};
use libtest_mimic::{Arguments, Failed, Trial};

use process::Ended;

fn main() -> anyhow::Result<()> {
    let mut arguments = Arguments::from_args();
    // What they test is about time-outs: more at once would measure the machine.
    arguments.test_threads.get_or_insert(2);
    let executables = match arguments.list {
        true => Arc::default(),
        false => Arc::new(executables::build()?),
    };
    let mut trials = vec![
        Trial::test("all_faults_are_noticed_by_one_of_the_provers", || {
            all_are_noticed();
            Ok(())
        }),
        Trial::test(
            "the_table_of_promises_names_each_fault_and_its_test",
            || in_the_table().map_err(|error| Failed::from(format!("{error:#}"))),
        ),
    ];
    trials.extend(NOTICED.iter().map(|noticed| {
        let executables = Arc::clone(&executables);
        let name = format!("{:?}_is_noticed", noticed.fault);
        Trial::test(name, move || {
            notice(noticed, &executables).map_err(|error| Failed::from(format!("{error:#}")))
        })
    }));
    libtest_mimic::run(&arguments, trials).exit()
}

fn notice(noticed: &Noticed, executables: &BTreeMap<String, PathBuf>) -> anyhow::Result<()> {
    let Noticed {
        fault, test, says, ..
    } = noticed;
    let tests = noticed.tests.name();
    let executable = executables.get(tests);
    let executable = executable.with_context(|| format!("farref has no tests called {tests}"))?;
    let run = |fault: Option<&str>| process::run(executable, test, fault);
    let sound = run(None)?;
    ensure!(
        sound.ended == Ended::Passed,
        "{test} does not pass without a fault: {sound}"
    );
    ensure!(
        !sound.said.contains(says),
        "{test} says `{says}` without a fault, too: {sound}"
    );
    let broken = run(Some(&format!("{fault:?}")))?;
    ensure!(
        broken.ended == Ended::Failed && broken.said.contains(says),
        "with {fault:?}, {test} should fail and say `{says}`: {broken}"
    );
    Ok(())
}

/// Theirs are other types, made of the same file.
fn all_are_noticed() {
    let seeds = farref_runtime_sim::NOTICED.map(|(fault, _)| format!("{fault:?}"));
    let schedules = farref_schedules::NOTICED.map(|(fault, _)| format!("{fault:?}"));
    let tests = NOTICED.iter().map(|noticed| format!("{:?}", noticed.fault));
    let mut noticed: Vec<_> = seeds.into_iter().chain(schedules).chain(tests).collect();
    let all = farref_schedules::Mutation::ALL.iter();
    let mut all: Vec<_> = all.map(|fault| format!("{fault:?}")).collect();
    noticed.sort();
    all.sort();
    assert_eq!(noticed, all);
}

/// In the row of the promise.
fn in_the_table() -> anyhow::Result<()> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reliability.md");
    let page = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    for noticed in NOTICED {
        let (fault, promise) = (noticed.fault, noticed.promise);
        let row = page.lines().find(|line| {
            line.starts_with(&format!("| {promise} |")) && line.contains(&format!("`{fault:?}`"))
        });
        let row = row.with_context(|| format!("{fault:?} is not in the row of {promise}"))?;
        let name = noticed.test.rsplit("::").next().unwrap_or_default();
        ensure!(
            row.contains(&format!(": {name}`")),
            "the row of {promise} does not name {name}"
        );
    }
    Ok(())
}
