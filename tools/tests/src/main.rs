//! `cargo tests`: all tests of the workspace.
//!
//! `cargo test --workspace` runs test programs one after another, although most of them wait. This
//! program builds the same tests and runs several programs at a time, the longest first. It runs the
//! examples in the documentation beside them.

mod build;
mod durations;
mod run;

use std::collections::VecDeque;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use std::{env, thread};

use anyhow::{Result, ensure};

use build::Program;
use durations::Durations;
use run::Outcome;

const USAGE: &str = "usage: cargo tests [NAME..] [-- ARGUMENT..]

Builds all tests of the workspace. Runs all, or the test programs whose name contains a NAME.
The programs get the ARGUMENTs: `cargo tests farref:laws -- streams` runs the laws of streams.";

/// How many test programs run at once beyond the number of processors: most of them wait.
const EXTRA_PROGRAMS: usize = 2;

fn main() -> Result<ExitCode> {
    let mut arguments = env::args().skip(1);
    let names: Vec<String> = arguments.by_ref().take_while(|name| name != "--").collect();
    let arguments: Vec<String> = arguments.collect();
    if names.iter().any(|name| name.starts_with('-')) {
        eprintln!("{USAGE}");
        return Ok(ExitCode::from(2));
    }
    let began = Instant::now();
    let build = build::build(&arguments)?;
    let durations = Durations::read(&build.target_folder);
    let mut programs = build.programs;
    programs.retain(|program| {
        names.is_empty()
            || names
                .iter()
                .any(|name| program.name.contains(name.as_str()))
    });
    ensure!(
        !programs.is_empty(),
        "no test program has {names:?} in its name; names are, for example: farref:laws, documentation"
    );
    programs.sort_by_key(|program| durations.rank(&program.name));
    println!(
        "built in {:.0?}, running {} programs",
        began.elapsed(),
        programs.len()
    );

    let outcomes = run_all(programs)?;
    durations.write(&outcomes);
    let failed: Vec<&Outcome> = outcomes.iter().filter(|outcome| !outcome.ok).collect();
    for outcome in &failed {
        println!("\n=== {} failed:\n{}", outcome.name, outcome.output);
    }
    for outcome in &failed {
        println!("FAILED; to repeat it alone: cargo tests {}", outcome.name);
    }
    let count = |number: fn(&Outcome) -> u64| outcomes.iter().map(number).sum::<u64>();
    let broken = failed.iter().filter(|outcome| outcome.failed == 0).count() as u64;
    println!("\nin {:.0?}:", began.elapsed());
    println!(
        "{} passed, {} failed",
        count(|outcome| outcome.passed),
        count(|outcome| outcome.failed) + broken
    );
    Ok(match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Runs the programs, and prints a line about each when it has ended.
fn run_all(programs: Vec<Program>) -> Result<Vec<Outcome>> {
    let at_once = thread::available_parallelism()?.get() + EXTRA_PROGRAMS;
    let queue = Mutex::new(VecDeque::from(programs));
    let outcomes = Mutex::new(Vec::new());
    let next = || {
        queue
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .pop_front()
    };
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                while let Some(program) = next() {
                    let outcome = run::run(program);
                    let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                    // A closed standard output does not end the tests.
                    let _ = writeln!(std::io::stdout(), "{outcome}");
                    outcomes.push(outcome);
                }
            });
        }
    });
    Ok(outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner))
}
