//! A worker that has asked for large answers and reads nothing: others of the same worker do not wait for it.

use std::time::{Duration, Instant};

use anyhow::ensure;
use farref::Worker;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::functions::{add, blob};
use crate::team::{Team, peak, resident};
use crate::{Plan, ratio, spread};

/// What each answer has that nobody reads, and each that is read.
const ANSWER: usize = 16 << 20;
/// What a worker may keep of answers to one peer, by default, and as much again for what is under way.
const MOST_GROWTH: f64 = 640.0;
/// By how much it grows at the least with what nobody reads.
const LEAST_GROWTH: f64 = 48.0;

/// How long it may take until something waits to be read.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks for so many large answers, which all come when it goes on.
#[farref::remote(timeout = "3600s")]
async fn ask_for_much(of: String, answers: usize) -> anyhow::Result<usize> {
    let me = Worker::current().ok_or_else(|| anyhow::anyhow!("no worker"))?;
    let of = me.peer(&of)?;
    let asked: Vec<_> = (0..answers)
        .map(|_| blob::on(&of, ANSWER).start())
        .collect();
    let mut read = 0;
    for answer in asked {
        read += answer.await?.len();
    }
    Ok(read)
}

pub(crate) async fn run(plan: &Plan) -> anyhow::Result<Value> {
    let team = Team::start(&["owner".to_owned(), "slow".to_owned()]).await?;
    let (owner, slow) = (team.peer("owner")?, team.peer("slow")?);
    let pid = team.pid("owner")?;
    let Some(stopped) = Pid::from_raw(team.pid("slow")?.try_into()?) else {
        anyhow::bail!("no process id");
    };
    let before = resident(pid)?;
    let [mut small, mut large] = measure(&owner, plan.slow / 2).await?;
    let unloaded = [spread(&mut small), spread(&mut large)];

    let asking = ask_for_much::on(&slow, "owner".to_owned(), plan.slow_answers).start();
    let idle = resident(pid)?;
    let asked = Instant::now();
    while resident(pid)? < idle + LEAST_GROWTH {
        ensure!(asked.elapsed() < PATIENCE, "no answers wait to be read");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    kill_process(stopped, Signal::STOP)?;
    eprintln!(
        "slow_reader: stopped, with {} answers of {} MiB on their way",
        plan.slow_answers,
        ANSWER >> 20
    );
    let measured = measure(&owner, plan.slow).await;
    let while_stopped = resident(pid);
    kill_process(stopped, Signal::CONT)?;
    let while_stopped = while_stopped?;
    ensure!(
        while_stopped > idle + LEAST_GROWTH,
        "few answers have waited to be read"
    );
    let [mut small, mut large] = measured?;
    let loaded = [spread(&mut small), spread(&mut large)];
    let read = asking.await?;
    ensure!(read == plan.slow_answers * ANSWER, "{read} bytes have come");
    let peak = peak(pid)?;
    let growth = peak - before;
    ensure!(growth < MOST_GROWTH, "the owner has grown by {growth} MiB");
    let ratios = |figure| {
        let both = [0, 1].map(|size| ratio(&loaded[size], &unloaded[size], figure));
        json!({ "small": both[0], "large_answers": both[1] })
    };
    let report = json!({
        "answers_that_wait": plan.slow_answers,
        "bytes_that_wait": plan.slow_answers * ANSWER,
        "small_unloaded": unloaded[0],
        "small_beside_slow_reader": loaded[0],
        "large_answers_unloaded": unloaded[1],
        "large_answers_beside_slow_reader": loaded[1],
        "ratio_median": ratios("median_us"),
        "ratio_p99": ratios("p99_us"),
        "owner": { "before_mib": before, "while_stopped_mib": while_stopped, "peak_mib": peak },
    });
    team.end().await?;
    Ok(report)
}

/// How long calls take, of small answers and of large ones.
async fn measure(owner: &farref::Peer, duration: Duration) -> anyhow::Result<[Vec<Duration>; 2]> {
    let began = Instant::now();
    let [mut small, mut large] = [Vec::new(), Vec::new()];
    while began.elapsed() < duration {
        for number in 0..20 {
            let asked = Instant::now();
            ensure!(add::on(owner, number, 1).await? == number + 1);
            small.push(asked.elapsed());
        }
        let asked = Instant::now();
        ensure!(blob::on(owner, ANSWER).await?.len() == ANSWER);
        large.push(asked.elapsed());
    }
    Ok([small, large])
}
