//! The comparison: farref and each peer one after the other, again and again.
//!
//! What else the machine does changes from minute to minute, so farref is measured anew beside every peer, and
//! a ratio is of two measurements that followed each other. Which one goes first changes from round to round.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use tokio::process::Command;

use crate::pair::{Outcome, Pair};
use crate::peers::{self, PEERS, Peer};
use crate::results::Results;
use crate::summary::Summary;
use crate::table;

#[derive(clap::Args)]
pub struct Arguments {
    /// How often everything is measured
    #[arg(long, default_value = "5")]
    rounds: usize,

    /// How long each measurement takes
    #[arg(long, default_value = "1")]
    seconds: f64,

    /// Only see that everything works; the numbers mean little
    #[arg(long, conflicts_with_all = ["rounds", "seconds"])]
    quick: bool,

    /// Only this peer (may be repeated): tarpc, tonic, capnp, torch, ray, monarch
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// The Python that has the peers of Python
    #[arg(long, value_name = "PROGRAM")]
    python: Option<PathBuf>,

    /// A peer that cannot be measured (may be repeated)
    #[arg(long, value_name = "NAME=WHY", value_parser = without)]
    without: Vec<(String, String)>,

    /// Write all figures here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Replace the marked part of this file by the tables
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

fn without(text: &str) -> Result<(String, String), &'static str> {
    let (name, why) = text.split_once('=').ok_or("expected NAME=WHY")?;
    Ok((name.to_owned(), why.to_owned()))
}

/// Everything, as `--json` writes it.
#[derive(Debug, Serialize)]
struct Run<'a> {
    rounds: usize,
    seconds: f64,
    load_before: &'a str,
    load_after: &'a str,
    pairs: &'a [Pair],
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if cfg!(debug_assertions) {
        progress("this is a development build: the figures mean nothing");
    }
    let (rounds, seconds) = match arguments.quick {
        true => (1, 0.05),
        false => (arguments.rounds, arguments.seconds),
    };
    ensure!(rounds > 0, "at least one round is needed");
    ensure!(
        (0.01..=3600.0).contains(&seconds),
        "expected --seconds from 0.01 to 3600"
    );
    for name in &arguments.only {
        let known = PEERS.iter().any(|peer| peer.name == name);
        ensure!(known, "there is no peer {name}");
    }
    let chosen = |peer: &&Peer| {
        arguments.only.is_empty() || arguments.only.iter().any(|name| name == peer.name)
    };
    let chosen: Vec<&Peer> = PEERS.iter().filter(chosen).collect();

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let load_before = load();
    let mut pairs: Vec<Pair> = Vec::new();
    for round in 0..rounds {
        for peer in &chosen {
            let ran = |pair: &Pair| pair.beside.results().is_some();
            let mut earlier = pairs.iter().filter(|pair| pair.is_of(peer)).peekable();
            if earlier.peek().is_some() && !earlier.any(ran) {
                continue; // It would fail again.
            }
            progress(&format!(
                "round {} of {rounds}: {} over {}",
                round + 1,
                peer.title,
                peer.over
            ));
            let pair = compare(&runtime, arguments, peer, round, seconds);
            for outcome in [&pair.farref, &pair.beside] {
                if let Outcome::Failed(why) = outcome {
                    progress(&format!("failed: {why}"));
                }
            }
            pairs.push(pair);
        }
    }
    let load_after = load();

    if let Some(path) = &arguments.json {
        let run = Run {
            rounds,
            seconds,
            load_before: &load_before,
            load_after: &load_after,
            pairs: &pairs,
        };
        let text = serde_json::to_string_pretty(&run)? + "\n";
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let summary = Summary::new(&chosen, &pairs);
    let text = table::text(&summary, rounds, seconds, [&load_before, &load_after]);
    print!("{text}");
    for pair in &pairs {
        if let Outcome::Failed(why) = &pair.farref {
            bail!(
                "farref itself failed beside {} over {}: {why}",
                pair.peer,
                pair.over
            );
        }
    }
    if let Some(path) = &arguments.into {
        table::replace(path, &text)?;
    }
    Ok(())
}

fn compare(
    runtime: &tokio::runtime::Runtime,
    arguments: &Arguments,
    peer: &Peer,
    round: usize,
    seconds: f64,
) -> Pair {
    let one = |command: anyhow::Result<Command>| {
        let done = command.and_then(|command| runtime.block_on(measure(command, seconds)));
        match done {
            Ok(results) => Outcome::Measured(results),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        }
    };
    let farref = || one(peers::farref(peer.beside));
    let beside = || {
        let without = arguments.without.iter().find(|(name, _)| name == peer.name);
        match without {
            Some((_, why)) => Outcome::Failed(why.clone()),
            None => one(peer.command(arguments.python.as_deref())),
        }
    };
    let (farref, beside) = match round % 2 {
        0 => {
            let farref = farref();
            (farref, beside())
        }
        _ => {
            let beside = beside();
            (farref(), beside)
        }
    };
    Pair {
        round,
        peer: peer.title,
        over: peer.over,
        farref,
        beside,
    }
}

/// Runs a command that measures and prints its figures.
async fn measure(mut command: Command, seconds: f64) -> anyhow::Result<Results> {
    // Eight measurements, some of which take longer than asked for, and a cluster that starts.
    let limit = Duration::from_secs_f64(120.0 + 30.0 * seconds);
    let child = command
        .args(["--seconds", &seconds.to_string()])
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot be started")?;
    let output = tokio::time::timeout(limit, child.wait_with_output()).await;
    let output = output.with_context(|| format!("took longer than {} s", limit.as_secs()))??;
    if !output.status.success() {
        // An error and a Python exception end with what happened.
        let text = String::from_utf8_lossy(&output.stderr);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        bail!("{}: {}", output.status, last.unwrap_or("it said nothing"));
    }
    // Some systems print other things too.
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().rev().find(|line| line.starts_with('{'));
    serde_json::from_str(line.context("it printed no figures")?).context("it printed nonsense")
}

/// The load of the machine, where it tells.
fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().unwrap_or_default().to_owned()
}

/// Says on standard error what is going on.
fn progress(text: &str) {
    eprintln!("peers: {text}");
}
