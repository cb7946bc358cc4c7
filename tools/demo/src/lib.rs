//! The demo: a classifier, trained over several processes on this machine.
//!
//! | part | job |
//! | --- | --- |
//! | `arguments` | the command line |
//! | `plan` | what is trained, by how many, for how long |
//! | `processes` | starting workers, killing one, waiting for all |
//! | `spiral`, `model` | the data and the model |
//! | `trainer` | what trainers and parameter owners can be called for |
//! | `training` | the training itself, with trainers that may die |
//! | `alone` | the same in one process, to compare with |
//! | `ledger` | what became of every reference |
//! | `picture`, `page` | what was learned, in the terminal and in a browser |

#![forbid(unsafe_code)]

mod alone;
mod arguments;
mod ledger;
mod model;
mod page;
mod picture;
mod plan;
mod processes;
mod spiral;
mod trainer;
mod training;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Parser as _;
use farref_progress::check_writable;

use arguments::{Arguments, Command, CommandLine};
use ledger::Ledger;
use plan::Plan;
use training::Outcome;

/// Does what the command line of this process says.
pub fn main() -> ExitCode {
    let Command::Demo(arguments) = CommandLine::parse().command;
    run(arguments).unwrap_or_else(|error| {
        eprintln!("farref: {error:#}");
        ExitCode::FAILURE
    })
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    if arguments.worker {
        return runtime.block_on(processes::be_a_worker(arguments.transport));
    }
    ensure!(
        !arguments.kill_one || arguments.trainers > 1,
        "--kill-one needs a trainer that is left: say --trainers 2 or more"
    );
    if let Some(file) = &arguments.html {
        check_writable(file, "--html")?;
    }
    let began = Instant::now();
    let verdict = runtime.block_on(show(&arguments))?;
    println!("\ndemo: {verdict} ({:.1} s)", began.elapsed().as_secs_f64());
    Ok(match verdict {
        Verdict::Good => ExitCode::SUCCESS,
        Verdict::Bad(_) => ExitCode::FAILURE,
    })
}

async fn show(arguments: &Arguments) -> anyhow::Result<Verdict> {
    let plan = Plan::new(arguments);
    let group = processes::Group::start(&plan).await?;
    println!(
        "{} processes on this machine: {}",
        plan.names().len(),
        plan.names().join(", ")
    );
    println!("to look on: farref top {}\n", group.place());
    let outcome = training::train(&plan, &group).await?;
    println!("\nthe same in one process ..");
    let alone = alone::train(&plan).await?;

    println!("\n{}", picture::draw(&plan, &outcome.regions));
    let verdict = compare(&outcome, &alone.losses);
    println!(
        "loss over {} processes      {:.12}\nloss in one process        {:.12}",
        plan.names().len(),
        last(&outcome.losses),
        last(&alone.losses),
    );
    println!(
        "accuracy                   {:.1} %\n\n{}",
        outcome.accuracy * 100.0,
        outcome.ledger
    );
    if let Some(file) = &arguments.html {
        let page = page::write(&plan, &outcome, &alone.losses);
        std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
        println!("\nwritten: {}", file.display());
    }
    group.end(Duration::from_secs(20)).await?;
    Ok(verdict)
}

fn last(losses: &[f64]) -> f64 {
    losses.last().copied().unwrap_or(f64::NAN)
}

/// Whether the demo has shown what it promises.
enum Verdict {
    Good,
    Bad(String),
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Good => f.write_str("success: the losses agree, nothing is left behind"),
            Self::Bad(why) => write!(f, "FAILED: {why}"),
        }
    }
}

fn compare(outcome: &Outcome, alone: &[f64]) -> Verdict {
    let (here, there) = (last(&outcome.losses), last(alone));
    let Ledger {
        leaked, contexts, ..
    } = outcome.ledger;
    // Sums are made in another order, so the last digits may differ.
    let agree = (here - there).abs() <= 1e-6 * there.abs().max(1.0);
    if !agree {
        return Verdict::Bad(format!("the losses differ: {here} and {there}"));
    }
    if leaked > 0 || contexts > 0 {
        return Verdict::Bad(format!(
            "{leaked} references and {contexts} contexts are left behind"
        ));
    }
    Verdict::Good
}
