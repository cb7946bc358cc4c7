//! `farref-model`: walk every state of a configuration too large for a test.

#![forbid(unsafe_code)]

use std::fmt::Debug;
use std::hash::Hash;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use farref_model::{Cluster, Link, Split, Unfit};
use serde::Serialize;
use stateright::report::WriteReporter;
use stateright::{Checker, Expectation, Model};

/// Walks every reachable state of farref's protocol and checks its guarantees in each.
#[derive(Parser)]
#[command(
    version,
    after_help = "Examples:
  farref-model cluster --references 2 --shares 2 --crashes 1
  farref-model cluster --shares 2 --crashes 1 --restarts 1
  farref-model cluster --references 2 --shares 2 --reordering --duplicates 1
  farref-model cluster --fetches 2 --cancels 1 --crashes 1
  farref-model cluster --leaves 1 --crashes 1
  farref-model cluster --workers 2 --looks 6
  farref-model link --frames 3 --losses 1 --duplicates 1 --cuts 1 --overtakings 1
  farref-model split --workers 4 --leaves 1
  farref-model unfit --workers 4 --elder 3"
)]
struct Arguments {
    #[command(subcommand)]
    model: Which,

    /// How many threads to use [default: one per core]
    #[arg(long, global = true)]
    threads: Option<NonZeroUsize>,

    /// Print the summary as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Which {
    /// Nodes that create, share and drop references
    Cluster(ClusterArguments),
    /// Two sessions over a bad connection
    Link(LinkArguments),
    /// Nodes that need a majority, in a network that falls apart
    Split(SplitArguments),
    /// A newcomer that a member refuses
    Unfit(UnfitArguments),
}

#[derive(Args)]
struct ClusterArguments {
    /// How many workers
    #[arg(long, default_value_t = 3)]
    workers: u32,
    /// How many values are created (1 or 2)
    #[arg(long, default_value_t = 1)]
    references: u32,
    /// How often a reference is handed on
    #[arg(long, default_value_t = 1)]
    shares: u32,
    /// How often a value is fetched
    #[arg(long, default_value_t = 0)]
    fetches: u32,
    /// How many fetches are cancelled
    #[arg(long, default_value_t = 0)]
    cancels: u32,
    /// How many workers leave
    #[arg(long, default_value_t = 0, conflicts_with = "reordering")]
    leaves: u32,
    /// How often workers that are done look whether all are: with it, the group shuts down
    #[arg(long, default_value_t = 0, conflicts_with = "reordering")]
    looks: u32,
    /// How many workers crash
    #[arg(long, default_value_t = 0)]
    crashes: u32,
    /// How many of them come back
    #[arg(long, default_value_t = 0)]
    restarts: u32,
    /// How many control messages arrive twice
    #[arg(long, default_value_t = 0, requires = "reordering")]
    duplicates: u32,
    /// Let messages overtake each other (without crashes: those need what sessions guarantee)
    #[arg(long, conflicts_with_all = ["crashes", "restarts"])]
    reordering: bool,
}

#[derive(Args)]
struct LinkArguments {
    /// How many frames each end sends
    #[arg(long, default_value_t = 2)]
    frames: u8,
    /// How many frames are lost without the connection breaking
    #[arg(long, default_value_t = 0)]
    losses: u32,
    /// How many frames arrive twice
    #[arg(long, default_value_t = 0)]
    duplicates: u32,
    /// How often the connection breaks
    #[arg(long, default_value_t = 1)]
    cuts: u32,
    /// How often a frame overtakes those before it
    #[arg(long, default_value_t = 0)]
    overtakings: u32,
}

#[derive(Args)]
struct SplitArguments {
    /// How many workers
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=6))]
    workers: u32,
    /// How often the network is cut in two
    #[arg(long, default_value_t = 1)]
    splits: u32,
    /// How often a single link fails
    #[arg(long, default_value_t = 0)]
    cuts: u32,
    /// How many workers crash
    #[arg(long, default_value_t = 0)]
    crashes: u32,
    /// How many workers leave
    #[arg(long, default_value_t = 0)]
    leaves: u32,
}

#[derive(Args)]
struct UnfitArguments {
    /// How many workers there are before the newcomer
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=6))]
    workers: u32,
    /// The newcomer is another life of worker 0
    #[arg(long)]
    again: bool,
    /// The worker that refuses it
    #[arg(long, default_value_t = 0)]
    elder: u32,
    /// The worker that lets it in
    #[arg(long, default_value_t = 1)]
    sponsor: u32,
}

/// What the command prints at the end.
#[derive(Serialize)]
struct Summary {
    unique_states: usize,
    states: usize,
    depth: usize,
    violations: Vec<String>,
    seconds: f64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let summary = match &arguments.model {
        Which::Cluster(chosen) => {
            let mut model = Cluster::default();
            model.workers = chosen.workers;
            model.references = chosen.references;
            model.shares = chosen.shares;
            model.fetches = chosen.fetches;
            model.cancels = chosen.cancels;
            model.leaves = chosen.leaves;
            model.looks = chosen.looks;
            model.crashes = chosen.crashes;
            model.restarts = chosen.restarts;
            model.duplicates = chosen.duplicates;
            model.reordering = chosen.reordering;
            walk(model, &arguments)
        }
        Which::Link(chosen) => {
            let mut model = Link::default();
            model.frames = chosen.frames;
            model.losses = chosen.losses;
            model.duplicates = chosen.duplicates;
            model.cuts = chosen.cuts;
            model.overtakings = chosen.overtakings;
            walk(model, &arguments)
        }
        Which::Split(chosen) => {
            let mut model = Split::default();
            model.workers = chosen.workers;
            model.splits = chosen.splits;
            model.cuts = chosen.cuts;
            model.crashes = chosen.crashes;
            model.leaves = chosen.leaves;
            walk(model, &arguments)
        }
        Which::Unfit(chosen) => {
            let mut model = Unfit::default();
            model.workers = chosen.workers;
            model.again = chosen.again;
            model.elder = chosen.elder;
            model.sponsor = chosen.sponsor;
            walk(model, &arguments)
        }
    };
    if arguments.json {
        match serde_json::to_string_pretty(&summary) {
            Ok(json) => println!("{json}"),
            Err(error) => eprintln!("cannot print the summary: {error}"),
        }
    } else {
        let Summary {
            unique_states,
            states,
            depth,
            seconds,
            ..
        } = &summary;
        println!(
            "{unique_states} unique states ({states} in all, depth {depth}) in {seconds:.1} s"
        );
    }
    for violation in &summary.violations {
        eprintln!("violated: {violation}");
    }
    if summary.violations.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Depth first: a breadth-first frontier of millions of whole clusters would not fit into memory.
fn walk<M>(model: M, arguments: &Arguments) -> Summary
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + Debug + Hash + PartialEq + Send + Sync,
    M::Action: Clone + Debug + PartialEq + Send + Sync,
{
    let started = Instant::now();
    let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let threads = arguments.threads.map_or_else(cores, NonZeroUsize::get);
    let checker = model
        .checker()
        .threads(threads)
        .spawn_dfs()
        .join_and_report(&mut WriteReporter::new(&mut std::io::stderr()));
    let found = checker.discoveries();
    let mut violations = Vec::new();
    for property in checker.model().properties() {
        let example = found.contains_key(property.name);
        if example != (property.expectation == Expectation::Sometimes) {
            violations.push(property.name.to_owned());
        }
    }
    Summary {
        unique_states: checker.unique_state_count(),
        states: checker.state_count(),
        depth: checker.max_depth(),
        violations,
        seconds: started.elapsed().as_secs_f64(),
    }
}
