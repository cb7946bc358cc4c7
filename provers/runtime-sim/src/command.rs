//! The command `farref-runtime-sim`: simulate many seeds, or replay one.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::Context;

use crate::many::run_many;
use crate::{Config, Faults, run_traced};

/// Simulates whole groups of farref workers, sockets and clock apart, and checks what callers see.
///
/// Each seed is one run. A run that breaks a rule prints the command that replays it, and the others go on.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  farref-runtime-sim --seeds 100000
  farref-runtime-sim --first 100000 --seeds 100000 --jobs 2
  farref-runtime-sim --seeds 10000 --faults partitions
  RUST_LOG=farref=debug farref-runtime-sim --replay 4711")]
pub struct Arguments {
    /// How many seeds to run
    #[arg(long, default_value_t = 1000)]
    seeds: u64,

    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// What goes wrong in all runs [default: each seed says]
    #[arg(long, value_enum)]
    faults: Option<Faults>,

    /// Run this one seed again and print all that happened
    #[arg(long, value_name = "SEED")]
    replay: Option<u64>,

    /// How many runs at a time [default: one per core]
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
}

/// Does what the command line says. The exit code says whether every rule held.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let config = Config {
        faults: arguments.faults,
        ..Config::default()
    };
    if let Some(seed) = arguments.replay {
        tracing_subscriber::fmt()
            .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
            .with_writer(std::io::stderr)
            .without_time()
            .init();
        let (result, trace) = run_traced(seed, &config);
        trace.iter().for_each(|line| println!("{line}"));
        return Ok(match result {
            Ok(report) => {
                println!("seed {seed}: {report:?}");
                ExitCode::SUCCESS
            }
            Err(violation) => {
                println!("seed {seed}: {violation}");
                ExitCode::FAILURE
            }
        });
    }
    let jobs = arguments
        .jobs
        .or_else(|| std::thread::available_parallelism().ok());
    let jobs = jobs.map_or(1, NonZeroUsize::get);
    let end = arguments.first.checked_add(arguments.seeds);
    let end = end.context("there are no seeds that large")?;
    Ok(match run_many(arguments.first..end, jobs, &config)? {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
