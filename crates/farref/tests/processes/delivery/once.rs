//! D1: a function runs at most once per call, and an outcome that cannot be known is `PeerLost`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Range;

use anyhow::{bail, ensure};
use farref::{Error, Peer};
use farref_testkit::Scratch;
use tokio::task::JoinSet;

use crate::functions::wait_at;
use crate::group::{self, Group, SILENT_MS, proxied};
use crate::{Options, Tests, amount};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "a_function_runs_at_most_once_though_its_worker_is_killed",
            a_function_runs_at_most_once_though_its_worker_is_killed,
        ),
        (
            "a_function_runs_at_most_once_over_cut_connections",
            a_function_runs_at_most_once_over_cut_connections,
        ),
    ]
}

/// Writes its number down before it does anything else: what ran is known though the process be
/// killed. Then answers, or waits for ever.
#[farref::remote]
async fn tick(path: String, number: u64, answers: bool) -> anyhow::Result<u64> {
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)?;
    file.write_all(&number.to_le_bytes())?;
    if !answers {
        wait_at("the end of time".to_owned()).await;
    }
    Ok(number)
}

/// How often each number was written down.
fn ticks(path: &str) -> anyhow::Result<BTreeMap<u64, u32>> {
    let mut ticks = BTreeMap::new();
    for number in std::fs::read(path)?.as_chunks::<8>().0 {
        *ticks.entry(u64::from_le_bytes(*number)).or_default() += 1;
    }
    Ok(ticks)
}

type Calls = JoinSet<(u64, farref::Result<u64>)>;

/// Starts calls with these numbers. Every tenth of them is never answered, unless all are to be.
fn start(peer: &Peer, path: &str, numbers: Range<u64>, all: bool) -> Calls {
    let mut calls = Calls::new();
    for number in numbers {
        let answers = all || number % 10 != 0;
        let pending = tick::on(peer, path.to_owned(), number, answers)
            .timeout(None)
            .start();
        calls.spawn(async move { (number, pending.await) });
    }
    calls
}

/// Kills `a` after so many of the calls have been answered, and checks how each one ended.
async fn kill_after(
    group: &mut Group,
    mut calls: Calls,
    answers: usize,
    path: &str,
) -> anyhow::Result<()> {
    let mut answered = Vec::new();
    let mut lost = 0;
    while let Some(done) = calls.join_next().await {
        match done? {
            (number, Ok(answer)) => {
                ensure!(answer == number);
                answered.push(number);
                if answered.len() == answers {
                    group.kill("a")?;
                }
            }
            (_, Err(Error::PeerLost { peer, function, .. })) => {
                ensure!(&*peer == "a", "lost `{peer}`");
                ensure!(function.as_str().ends_with("tick"), "lost {function}");
                lost += 1;
            }
            (number, Err(error)) => bail!("{number}: {error:?}"),
        }
    }
    let ticks = ticks(path)?;
    ensure!(
        ticks.values().all(|&times| times == 1),
        "ran twice: {ticks:?}"
    );
    for number in &answered {
        ensure!(
            ticks.contains_key(number),
            "{number} was answered and never ran"
        );
    }
    ensure!(
        answered.len() >= answers && lost > 0,
        "{} and {lost}",
        answered.len()
    );
    Ok(())
}

/// D1
fn a_function_runs_at_most_once_though_its_worker_is_killed() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let path = scratch.file("ticks");
    group::run(Options::default(), &["a"], async |group| {
        let calls = start(&group.peer("a")?, &path, 0..4_000, false);
        kill_after(group, calls, 1_000, &path).await
    })
}

/// D1
fn a_function_runs_at_most_once_over_cut_connections() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let path = scratch.file("ticks");
    let (proxy, options) = proxied(&["driver", "a"])?;
    let options = Options {
        // The proxy listens for a dead worker too, so that only its silence tells.
        peer_timeout_ms: SILENT_MS,
        ..options
    };
    group::run(options, &["a"], async |group| {
        let a = group.peer("a")?;
        proxy.cut_repeatedly();
        let mut made = 0;
        while made < amount(500, 3_000) || proxy.cuts() < 50 {
            // In small lots: large ones travel in few frames.
            let mut calls = start(&a, &path, made..made + 20, true);
            made += 20;
            while let Some(done) = calls.join_next().await {
                let (number, answer) = done?;
                ensure!(answer? == number);
            }
        }
        let ran = ticks(&path)?;
        ensure!(ran.keys().copied().eq(0..made), "some never ran");
        ensure!(
            ran.values().all(|&times| times == 1),
            "some ran twice: {ran:?}"
        );

        let calls = start(&a, &path, made..made + amount(1_000, 3_000), false);
        kill_after(group, calls, amount(200, 500), &path).await
    })
}
