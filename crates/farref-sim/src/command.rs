//! The command `farref-sim`, which is also `farref simulate`: simulate many seeds, or replay one.

use std::io::{IsTerminal, Write};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::{Config, Failure, Stats, Traffic, run as run_seed, run_traced, traffic};
use anyhow::{Context, ensure};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;

/// Simulates groups of farref workers on the real protocol code and checks every guarantee.
///
/// Each seed is one run: random programs, a random network, random crashes. A run that breaks a
/// guarantee prints the command that replays it.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  farref simulate --seeds 10000 --workers 3..8
  farref simulate --seeds 10000 --workers 3..8 --relay-pressure
  farref simulate --workers 3..8 --replay 4711
  farref simulate --seeds 1 --workers 1000 --steps 4 --json
  farref simulate --traffic 10 100 1000")]
pub struct Arguments {
    /// How many seeds to run
    #[arg(long, default_value_t = 1000)]
    seeds: u64,

    /// The first seed
    #[arg(long, default_value_t = 0)]
    first: u64,

    /// How many workers a run has: a number, or a range that each seed draws from
    #[arg(long, default_value = "3..8")]
    workers: Workers,

    /// How many things each worker's program does on its own
    #[arg(long)]
    steps: Option<u32>,

    /// Inject no faults
    #[arg(long)]
    calm: bool,

    /// Let workers die most of the time right after handing on what they were handed, while the receiver
    /// can hardly reach the owner
    #[arg(long, conflicts_with = "calm")]
    relay_pressure: bool,

    /// Let all workers need a majority of their group, and split the network in every run
    #[arg(long)]
    require_majority: bool,

    /// Run this one seed again and print its trace of messages and events
    #[arg(long, value_name = "SEED")]
    replay: Option<u64>,

    /// How many of the last lines of a trace to print
    #[arg(long, default_value_t = 200)]
    tail: usize,

    /// How many threads to use [default: one per core]
    #[arg(long)]
    threads: Option<NonZeroUsize>,

    /// Only count the control messages that one crash, leave or join costs, in groups of these sizes
    #[arg(long, value_name = "WORKERS", num_args = 1.., conflicts_with_all = ["replay", "seeds", "workers"])]
    #[arg(value_parser = clap::value_parser!(u32).range(4..=5_000))]
    traffic: Vec<u32>,

    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
}

/// An inclusive range of worker counts, written `5` or `3..8`.
#[derive(Clone, Copy, Debug)]
struct Workers {
    min: u32,
    max: u32,
}

impl FromStr for Workers {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| {
            let parsed = text.trim_start_matches('=').parse::<u32>();
            parsed.with_context(|| format!("{text:?} is no number; write 5 or 3..8"))
        };
        let (min, max) = match text.split_once("..") {
            Some((min, max)) => (number(min)?, number(max)?),
            None => (number(text)?, number(text)?),
        };
        ensure!(
            min >= 1 && min <= max,
            "a run needs at least one worker, and 3..8 not 8..3"
        );
        ensure!(max <= 20_000, "at most 20000 workers fit into memory");
        Ok(Self { min, max })
    }
}

/// What the command prints at the end.
#[derive(Serialize)]
struct Summary {
    #[serde(flatten)]
    stats: Stats,
    violations: u64,
    seconds: f64,
}

/// Does what the command line says. The exit code says whether every guarantee held.
pub fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    if !arguments.traffic.is_empty() {
        return count_traffic(arguments);
    }
    let standard = Config::default();
    let config = Config {
        min_workers: arguments.workers.min,
        max_workers: arguments.workers.max,
        faults: !arguments.calm,
        relay_pressure: arguments.relay_pressure,
        require_majority: arguments.require_majority,
        steps: arguments.steps.unwrap_or(standard.steps),
        ..standard
    };
    if let Some(seed) = arguments.replay {
        return replay(&config, seed, arguments);
    }

    let started = Instant::now();
    let (stats, failure) = run_many(&config, arguments);
    let summary = Summary {
        stats,
        violations: u64::from(failure.is_some()),
        seconds: started.elapsed().as_secs_f64(),
    };
    print_summary(&summary, arguments.json)?;
    if let Some(failure) = failure {
        print_trace(&run_traced(&config, failure.seed).1, arguments.tail);
        let command = replay_command(arguments, failure.seed);
        eprintln!("\n{failure}\nreplay it with: {command}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn count_traffic(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let count = |&workers: &u32| {
        let counted = traffic(workers);
        counted.with_context(|| format!("a group of {workers} did not come to rest"))
    };
    let rows: Vec<Traffic> = arguments
        .traffic
        .iter()
        .map(count)
        .collect::<Result<_, _>>()?;
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows)?);
        return Ok(ExitCode::SUCCESS);
    }
    println!("control messages: per worker (most of one, of the leader)");
    let titles = ["workers", "crash", "crash of the leader", "leave", "join"];
    let [workers, changes @ ..] = titles;
    println!(
        "{workers:>8}{}",
        changes.map(|title| format!("{title:>26}")).concat()
    );
    for row in rows {
        let costs = [row.crash, row.crash_of_leader, row.leave, row.join].map(|cost| {
            let average = cost.messages as f64 / f64::from(row.workers);
            let cell = format!("{average:.2} ({}, {})", cost.most, cost.leader);
            format!("{cell:>26}")
        });
        println!("{:>8}{}", row.workers, costs.concat());
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs the seeds on all threads; stops at the first failure.
fn run_many(config: &Config, arguments: &Arguments) -> (Stats, Option<Box<Failure>>) {
    let progress = progress_bar(arguments.seeds);
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let total = Mutex::new((Stats::default(), None::<Box<Failure>>));
    let threads = arguments.threads.map_or_else(
        || std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        NonZeroUsize::get,
    );
    let work = || {
        let mut stats = Stats::default();
        while !stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= arguments.seeds {
                break;
            }
            match run_seed(config, arguments.first.wrapping_add(index)) {
                Ok(one) => stats += one,
                Err(failure) => {
                    stop.store(true, Ordering::Relaxed);
                    if let Ok(mut total) = total.lock() {
                        let (_, first) = &mut *total;
                        if first.as_ref().is_none_or(|first| failure.seed < first.seed) {
                            *first = Some(failure);
                        }
                    }
                }
            }
            progress.inc(1);
        }
        if let Ok(mut total) = total.lock() {
            total.0 += stats;
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    progress.finish_and_clear();
    total
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn progress_bar(seeds: u64) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let style = "{wide_bar} {pos}/{len} seeds, {per_sec}, {eta} left";
    let style =
        ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(seeds), target).with_style(style)
}

fn replay(config: &Config, seed: u64, arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let (result, trace) = run_traced(config, seed);
    print_trace(&trace, arguments.tail);
    match result {
        Ok(stats) => {
            let summary = Summary {
                stats,
                violations: 0,
                seconds: 0.0,
            };
            print_summary(&summary, arguments.json)?;
            eprintln!("seed {seed}: every guarantee held");
            Ok(ExitCode::SUCCESS)
        }
        Err(failure) => {
            eprintln!("\n{failure}");
            Ok(ExitCode::FAILURE)
        }
    }
}

fn replay_command(arguments: &Arguments, seed: u64) -> String {
    let Workers { min, max } = arguments.workers;
    let mut command =
        format!("cargo run --release -p farref-sim -- --workers {min}..{max} --replay {seed}");
    if let Some(steps) = arguments.steps {
        command += &format!(" --steps {steps}");
    }
    if arguments.calm {
        command += " --calm";
    }
    if arguments.relay_pressure {
        command += " --relay-pressure";
    }
    if arguments.require_majority {
        command += " --require-majority";
    }
    command
}

fn print_trace(trace: &[String], tail: usize) {
    let mut stderr = std::io::stderr().lock();
    let skipped = trace.len().saturating_sub(tail);
    if skipped > 0 {
        let _ = writeln!(
            stderr,
            "({skipped} lines before; --tail {} shows all)",
            trace.len()
        );
    }
    for line in &trace[skipped..] {
        let _ = writeln!(stderr, "{line}");
    }
}

fn print_summary(summary: &Summary, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(summary)?);
        return Ok(());
    }
    let Stats {
        seeds,
        steps,
        messages,
        controls,
        calls,
        references,
        shares,
        freed,
        contexts,
        faults,
        simulated_micros,
        ..
    } = summary.stats;
    println!(
        "{seeds} seeds in {:.1} s, {} violations",
        summary.seconds, summary.violations
    );
    println!("  {steps} steps, {messages} messages ({controls} control), {calls} calls");
    println!(
        "  {references} references, {shares} handed on, {freed} values freed, {contexts} contexts"
    );
    println!("  {:.1} simulated hours", simulated_micros as f64 / 3.6e9);
    println!("  faults:");
    if let serde_json::Value::Object(kinds) = serde_json::to_value(faults)? {
        for (kind, count) in kinds {
            println!("    {:<18} {count:>10}", kind.replace('_', " "));
        }
    }
    Ok(())
}
