//! farref under load, between processes on this machine: that nothing fails, that memory stays flat, and what the load costs
//! beside an unloaded run in the same run.
//!
//! ```sh
//! cargo run --release -p farref-load                 # all parts, a quarter of an hour
//! cargo run --release -p farref-load -- --quick      # a minute
//! cargo run --release -p farref-load -- --only references --references 1000000
//! ```
//!
//! | part | what |
//! | --- | --- |
//! | `crowd` | 64 processes that call each other, all to all, and leave values with each other, for 10 minutes |
//! | `in_flight` | 100,000 calls under way to one worker, again and again |
//! | `references` | 10 million values made on another worker, and dropped again |
//! | `slow_reader` | a worker that has asked for large answers and reads nothing, while others call the same worker |
//!
//! What it does is told on standard error as it goes on. On standard output there is one object of JSON. The program fails if
//! a call fails, if something is left behind, or if memory grows with the number of what was done; how long anything takes is
//! only told.

mod crowd;
mod functions;
mod in_flight;
mod references;
mod slow_reader;
mod team;

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

/// How much is done.
#[derive(Clone, Debug)]
struct Plan {
    only: Option<String>,
    processes: u32,
    crowd: Duration,
    calls: usize,
    rounds: usize,
    references: u64,
    slow_answers: usize,
    slow: Duration,
}

impl Plan {
    const FULL: Self = Self {
        only: None,
        processes: 64,
        crowd: Duration::from_secs(600),
        calls: 100_000,
        rounds: 20,
        references: 10_000_000,
        slow_answers: 64,
        slow: Duration::from_secs(20),
    };

    const QUICK: Self = Self {
        only: None,
        processes: 8,
        crowd: Duration::from_secs(5),
        calls: 100_000,
        rounds: 3,
        references: 200_000,
        slow_answers: 32,
        slow: Duration::from_secs(4),
    };

    fn from_arguments() -> anyhow::Result<Self> {
        let mut arguments = std::env::args().skip(1).peekable();
        let mut plan = match arguments.next_if_eq("--quick") {
            Some(_) => Self::QUICK,
            None => Self::FULL,
        };
        while let Some(option) = arguments.next() {
            let value = arguments.next();
            let value = value.with_context(|| format!("{option} needs a value"))?;
            let seconds = || anyhow::Ok(Duration::from_secs(value.parse()?));
            match &*option {
                "--only" => plan.only = Some(value),
                "--processes" => plan.processes = value.parse()?,
                "--crowd-seconds" => plan.crowd = seconds()?,
                "--calls" => plan.calls = value.parse()?,
                "--rounds" => plan.rounds = value.parse()?,
                "--references" => plan.references = value.parse()?,
                "--slow-answers" => plan.slow_answers = value.parse()?,
                "--slow-seconds" => plan.slow = seconds()?,
                _ => bail!(
                    "{option}: --quick (first), or --only, --processes, --crowd-seconds, --calls, --rounds, \
                     --references, --slow-answers, --slow-seconds with a value"
                ),
            }
        }
        Ok(plan)
    }
}

fn main() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    if team::is_member() {
        return runtime.block_on(team::serve());
    }
    let plan = Plan::from_arguments()?;
    runtime.block_on(async {
        let parts = ["crowd", "in_flight", "references", "slow_reader"];
        if let Some(only) = plan.only.as_deref()
            && !parts.contains(&only)
        {
            bail!("{only}: one of {}", parts.join(", "));
        }
        let mut report = Map::new();
        for part in parts {
            if plan.only.as_deref().is_some_and(|only| only != part) {
                continue;
            }
            let began = Instant::now();
            let measured = match part {
                "crowd" => crowd::run(&plan).await,
                "in_flight" => in_flight::run(&plan).await,
                "references" => references::run(&plan).await,
                _ => slow_reader::run(&plan).await,
            };
            let mut measured = measured.with_context(|| part.to_owned())?;
            if let Value::Object(measured) = &mut measured {
                let seconds = began.elapsed().as_secs_f64();
                measured.insert("seconds".to_owned(), json!(round(seconds)));
            }
            eprintln!("{part}: {measured}");
            report.insert(part.to_owned(), measured);
        }
        println!("{:#}", Value::Object(report));
        Ok(())
    })
}

/// Three digits are enough.
fn round(number: f64) -> f64 {
    (number * 1000.0).round() / 1000.0
}

/// The median and the value that one in a hundred is above, in microseconds.
fn spread(times: &mut [Duration]) -> Value {
    times.sort_unstable();
    let at = |share: f64| {
        let index = (times.len() as f64 * share) as usize;
        times.get(index.min(times.len().saturating_sub(1)))
    };
    let micros = |time: Option<&Duration>| time.map_or(0.0, |time| round(time.as_secs_f64() * 1e6));
    json!({ "calls": times.len(), "median_us": micros(at(0.5)), "p99_us": micros(at(0.99)) })
}

/// How much more one figure of two spreads is.
fn ratio(loaded: &Value, unloaded: &Value, figure: &str) -> f64 {
    let of = |spread: &Value| spread[figure].as_f64().unwrap_or(f64::NAN);
    round(of(loaded) / of(unloaded))
}
