//! Very many calls under way to one worker.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde_json::{Value, json};

use crate::functions::{set_gate, wait_at_gate, waiting};
use crate::team::{MOST_CALLS, Team, of_both, peak, resident};
use crate::{Plan, round};

/// By how many megabytes either end may grow in the second half of the rounds. The allocator needs some until it has
/// found room for all calls that are open at once, wherever their threads make them; what is kept of calls that are over would be more.
const MOST_GROWTH: f64 = 64.0;

pub(crate) async fn run(plan: &Plan) -> anyhow::Result<Value> {
    // What opens the gate must not wait behind those who wait for it.
    ensure!(
        plan.calls < MOST_CALLS as usize,
        "at most {MOST_CALLS} calls"
    );
    let team = Team::start(&["worker".to_owned()]).await?;
    let peer = team.peer("worker")?;
    let pids = [std::process::id(), team.pid("worker")?];
    let before = of_both(pids, resident)?;

    // Beside it: as many calls, few of them at a time.
    set_gate::on(&peer, true).await?;
    let began = Instant::now();
    let (mut answered, few) = (0, 64);
    while answered < plan.calls as u64 {
        let some = few.min(plan.calls as u64 - answered);
        let calls: Vec<_> = (0..some)
            .map(|n| wait_at_gate::on(&peer, n).start())
            .collect();
        for (number, call) in (0..).zip(calls) {
            ensure!(call.await? == number);
            answered += 1;
        }
    }
    let unloaded = plan.calls as f64 / began.elapsed().as_secs_f64();

    let mut after_rounds: Vec<[f64; 2]> = Vec::new();
    let mut rates = Vec::new();
    for round in 0..plan.rounds {
        set_gate::on(&peer, false).await?;
        let began = Instant::now();
        let calls: Vec<_> = (0..plan.calls as u64)
            .map(|number| wait_at_gate::on(&peer, number).start())
            .collect();
        let started = began.elapsed();
        while waiting::on(&peer).await? < plan.calls as u64 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let under_way = of_both(pids, resident)?;
        set_gate::on(&peer, true).await?;
        for (number, call) in (0..).zip(calls) {
            ensure!(call.await? == number);
        }
        rates.push(plan.calls as f64 / began.elapsed().as_secs_f64());
        after_rounds.push(of_both(pids, resident)?);
        eprintln!(
            "in_flight: round {} of {}: {} calls started in {started:.2?}, caller {:.0} MiB, worker {:.0} MiB",
            round + 1,
            plan.rounds,
            plan.calls,
            under_way[0],
            under_way[1]
        );
    }
    let half = after_rounds.get(plan.rounds / 2).copied().unwrap_or(before);
    let last = after_rounds.last().copied().unwrap_or(before);
    let growth = [last[0] - half[0], last[1] - half[1]];
    ensure!(
        growth.iter().all(|growth| *growth < MOST_GROWTH),
        "memory grows with the rounds: {after_rounds:?}"
    );
    let loaded = rates.iter().sum::<f64>() / rates.len().max(1) as f64;
    let [caller, worker] = of_both(pids, peak)?;
    let report = json!({
        "calls_in_flight": plan.calls,
        "rounds": plan.rounds,
        "calls_per_second": round(loaded),
        "calls_per_second_64_in_flight": round(unloaded),
        "ratio": round(unloaded / loaded),
        "caller": { "before_mib": before[0], "peak_mib": caller, "growth_mib": round(growth[0]) },
        "worker": { "before_mib": before[1], "peak_mib": worker, "growth_mib": round(growth[1]) },
    });
    team.end().await?;
    Ok(report)
}
