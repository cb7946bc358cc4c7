//! Processes that call each other, all to all.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};

use crate::functions::{add, call_around, things};
use crate::team::Team;
use crate::{Plan, ratio, round, spread};

/// By how many megabytes a process may grow from a tenth of the time on to the end.
const MOST_GROWTH: f64 = 32.0;

pub(crate) async fn run(plan: &Plan) -> anyhow::Result<Value> {
    let names: Vec<String> = (1..plan.processes).map(|n| format!("worker-{n}")).collect();
    let began = Instant::now();
    let team = Team::start(&names).await?;
    eprintln!(
        "crowd: {} processes after {:.1?}",
        plan.processes,
        began.elapsed()
    );
    let peer = team.peer("worker-1")?;
    let mut alone = Vec::new();
    for number in 0..1000 {
        let began = Instant::now();
        ensure!(add::on(&peer, number, 1).await? == number + 1);
        alone.push(began.elapsed());
    }
    let unloaded = spread(&mut alone);

    let began = Instant::now();
    let working: Vec<_> = team
        .me
        .peers()
        .iter()
        .filter(|peer| !peer.is_me())
        .map(|peer| call_around::on(peer, plan.crowd).start())
        .collect();
    let mut among = Vec::new();
    let mut early: Option<Vec<f64>> = None;
    let mut told = Instant::now();
    while began.elapsed() < plan.crowd {
        let asked = Instant::now();
        ensure!(add::on(&peer, 1, 1).await? == 2);
        among.push(asked.elapsed());
        if began.elapsed() > plan.crowd / 10 {
            early.get_or_insert(team.resident()?);
        }
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            let most = team.resident()?.into_iter().fold(0.0, f64::max);
            eprintln!(
                "crowd: {:.0?} of {:.0?}, {most:.0} MiB at the most",
                began.elapsed(),
                plan.crowd
            );
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let late = team.resident()?;
    let mut calls = 0;
    for work in working {
        calls += work.await?;
    }
    let seconds = began.elapsed().as_secs_f64();
    let early = early.unwrap_or_else(|| late.clone());
    let growth = early.iter().zip(&late).map(|(early, late)| late - early);
    let growth = growth.fold(f64::MIN, f64::max);
    ensure!(growth < MOST_GROWTH, "a process has grown by {growth} MiB");
    for peer in team.me.peers() {
        ensure!(
            peer.is_me() || settles(&peer).await?,
            "values are left on {}",
            peer.name()
        );
    }
    let loaded = spread(&mut among);
    let peak = team.peak()?.into_iter().fold(0.0, f64::max);
    let ratios = json!({
        "median": ratio(&loaded, &unloaded, "median_us"),
        "p99": ratio(&loaded, &unloaded, "p99_us"),
    });
    let report = json!({
        "processes": plan.processes,
        "calls": calls,
        "calls_per_second": round(calls as f64 / seconds),
        "peak_mib": peak,
        "growth_mib": round(growth),
        "one_call_unloaded": unloaded,
        "one_call_loaded": loaded,
        "ratio": ratios,
    });
    team.end().await?;
    Ok(report)
}

/// Waits until all values of a worker are gone.
async fn settles(peer: &farref::Peer) -> anyhow::Result<bool> {
    for _ in 0..1000 {
        if things::on(peer).await? == 0 {
            return Ok(true);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(false)
}
