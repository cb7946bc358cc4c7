//! `farref launch`: torchrun's job in one binary, for any program.
//!
//! The command line ([`arguments`]) becomes a [`Plan`]; the launcher of node 0 hosts the store where the ranks
//! meet ([`meeting`]); the [`supervisor`] starts the ranks, watches them and decides what follows. Nothing
//! here knows what the program does, but for `--torch` ([`torch`]).

mod arguments;
mod environment;
mod failure;
mod life;
mod meeting;
mod orphans;
mod output;
mod plan;
mod program;
mod signals;
mod supervisor;
mod tether;
mod torch;

pub(crate) use arguments::Arguments;

use std::process::ExitCode;

use anyhow::Context as _;

use meeting::Meeting;
use orphans::Orphans;
use output::Output;
use plan::Plan;
use program::Program;
use signals::Signals;
use supervisor::{Policy, Supervisor};

/// What is said about the threads that the ranks were given.
fn said_of_threads(ranks: u32) -> Option<String> {
    let limited = farref_group::threads_to_limit(ranks);
    (!limited.is_empty()).then(|| {
        format!(
            "{} are 1 for each of {ranks} ranks, so that they do not crowd each other out; set one of \
             them to choose otherwise",
            limited.join(" and ")
        )
    })
}

pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    if let Some(parent) = arguments.tethered_to {
        return tether::become_program(parent, &arguments.program);
    }
    let plan = Plan::new(&arguments)?;
    let program = match arguments.torch {
        true => Program::find(&torch::on_farref(&arguments.program)?)?,
        false => Program::find(&arguments.program)?,
    };
    plan.allow_enough_files()?;
    let policy = Policy {
        restarts: arguments.restarts,
        restart: arguments.restart,
        grace: arguments.grace,
    };
    // One thread, the main one: a tethered child dies with the thread that started it.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start")?;
    runtime.block_on(async {
        // Before the first child, so that no signal ends the launcher and leaves a child behind.
        let mut signals = Signals::listen().context("cannot listen for signals")?;
        let orphans = Orphans::adopt().context("cannot adopt orphans")?;
        let meeting = tokio::select! {
            meeting = Meeting::begin(&plan) => meeting?,
            signal = signals.next() => {
                anyhow::bail!("stopped by {} before any rank was started", signals::name(signal));
            }
        };
        let output = Output::start(arguments.color);
        if let Some(text) = said_of_threads(plan.ranks) {
            output.say(&text);
        }
        if let Some(text) = meeting.said_of_token() {
            output.say(&text);
        }
        let supervisor =
            Supervisor::new(&plan, &program, &policy, &meeting, output, signals, orphans);
        let code = supervisor.run().await;
        meeting.end().await;
        Ok(ExitCode::from(code))
    })
}
