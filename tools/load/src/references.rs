//! Values made on another worker, and dropped again.

use std::time::{Duration, Instant};

use anyhow::ensure;
use farref::RRef;
use serde_json::{Value, json};

use crate::functions::{Thing, ThingRRef as _, things};
use crate::team::{Team, of_both, peak, resident};
use crate::{Plan, round};

/// So many are held at a time.
const HELD: usize = 10_000;
/// By how many megabytes either end may grow from a tenth on to the end.
const MOST_GROWTH: f64 = 32.0;

pub(crate) async fn run(plan: &Plan) -> anyhow::Result<Value> {
    let team = Team::start(&["owner".to_owned()]).await?;
    let owner = team.peer("owner")?;
    let pids = [std::process::id(), team.pid("owner")?];
    let before = of_both(pids, resident)?;

    // Beside it: one at a time.
    let few = 2_000.min(plan.references);
    let began = Instant::now();
    for number in 0..few {
        let thing = Thing::new_on(&owner, number).remote();
        ensure!(thing.number().await? == number);
    }
    let unloaded = few as f64 / began.elapsed().as_secs_f64();

    let began = Instant::now();
    let (mut made, mut told) = (0, Instant::now());
    let mut early: Option<[f64; 2]> = None;
    while made < plan.references {
        let some = (HELD as u64).min(plan.references - made);
        let held: Vec<RRef<Thing>> = (made..made + some)
            .map(|number| Thing::new_on(&owner, number).remote())
            .collect();
        // The last of them is made after all others.
        if let Some(last) = held.last() {
            ensure!(last.number().await? == made + some - 1);
        }
        made += some;
        drop(held);
        if made >= plan.references / 10 {
            early.get_or_insert(of_both(pids, resident)?);
        }
        if told.elapsed() > Duration::from_secs(5) {
            told = Instant::now();
            let [caller, owner] = of_both(pids, resident)?;
            eprintln!(
                "references: {made} of {}, {caller:.0} and {owner:.0} MiB",
                plan.references
            );
        }
    }
    while things::on(&owner).await? > 0 {
        ensure!(
            began.elapsed() < Duration::from_secs(3600),
            "values are never dropped"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let loaded = made as f64 / began.elapsed().as_secs_f64();
    let late = of_both(pids, resident)?;
    let early = early.unwrap_or(late);
    let growth = [late[0] - early[0], late[1] - early[1]];
    ensure!(
        growth.iter().all(|growth| *growth < MOST_GROWTH),
        "memory grows with the number of references: {early:?}, {late:?} MiB"
    );
    let [holder_peak, owner_peak] = of_both(pids, peak)?;
    let report = json!({
        "references": made,
        "held_at_a_time": HELD,
        "references_per_second": round(loaded),
        "references_per_second_one_at_a_time": round(unloaded),
        "ratio": round(loaded / unloaded),
        "holder": { "before_mib": before[0], "peak_mib": holder_peak, "growth_mib": round(growth[0]) },
        "owner": { "before_mib": before[1], "peak_mib": owner_peak, "growth_mib": round(growth[1]) },
    });
    team.end().await?;
    Ok(report)
}
