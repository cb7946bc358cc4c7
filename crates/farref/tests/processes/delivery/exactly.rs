//! D2: over any number of broken and re-made connections everything arrives exactly once and in order.

use anyhow::{Context as _, ensure};
use farref::{Blob, Peer, RRef, Worker};
use farref_testkit::eventually_async;
use tokio::task::JoinSet;

use crate::counts::{count, counted};
use crate::functions::{Probe, ProbeRRef as _, probes};
use crate::group::{self, Group, proxied};
use crate::{Tests, amount};

pub(crate) fn tests() -> Tests {
    vec![(
        "every_call_is_answered_exactly_once_over_broken_connections",
        every_call_is_answered_exactly_once_over_broken_connections,
    )]
}

/// How many connections are broken.
fn broken_connections() -> u64 {
    amount(250, 1_000)
}

/// Keeps what it is told, in the order in which it was told.
struct Log {
    entries: Vec<u64>,
}

#[farref::remote]
impl Log {
    pub(crate) fn new() -> Self {
        Self { entries: vec![] }
    }

    pub(crate) async fn push(&mut self, entry: u64) -> u64 {
        // Whoever comes next must wait for this one.
        tokio::task::yield_now().await;
        self.entries.push(entry);
        entry
    }

    pub(crate) async fn entries(&self) -> Vec<u64> {
        self.entries.clone()
    }
}

/// Says how often it ran for this number.
#[farref::remote]
async fn visit(number: u64) -> u64 {
    count("visits");
    count(&format!("visit {number}"))
}

/// Sends back what it got.
#[farref::remote]
async fn echo(blob: Blob, probe: RRef<Probe>) -> (Blob, RRef<Probe>) {
    (blob, probe)
}

/// Calls its caller back.
#[farref::remote]
async fn visit_caller(number: u64) -> anyhow::Result<u64> {
    let caller = Worker::caller().context("nobody called")?;
    Ok(visit::on(&caller, number).await?)
}

/// D2
fn every_call_is_answered_exactly_once_over_broken_connections() -> anyhow::Result<()> {
    let (proxy, options) = proxied(&["driver", "a"])?;
    group::run(options, &["a"], async |group| {
        let a = group.peer("a")?;
        let log = Log::new_on(&a).remote();
        proxy.cut_repeatedly();
        let began = std::time::Instant::now();
        let mut round = 0;
        while connections(group)? <= broken_connections() {
            tokio::try_join!(
                small_calls(&a, &log, round),
                large_calls(&a, round),
                calls_back(&a, round),
                creations(&a, round),
            )?;
            round += 1;
        }
        proxy.pass();
        println!(
            "D2: {} connections stood, {} were cut, {round} rounds in {:?}",
            connections(group)?,
            proxy.cuts(),
            began.elapsed(),
        );
        let entries = log.entries().await?;
        ensure!(
            entries == (0..50 * round).collect::<Vec<_>>(),
            "out of order"
        );
        ensure!(counted::on(&a, "visits".to_owned()).await? == 50 * round);
        let here = counted::on(&group.me.me(), "visits".to_owned()).await?;
        ensure!(here == 5 * round, "{here} calls back in {round} rounds");
        drop(log);
        eventually_async("nothing is left", async || Ok(probes::on(&a).await? == 0)).await
    })
}

fn connections(group: &Group) -> anyhow::Result<u64> {
    let snapshot = group.me.snapshot();
    let peer = snapshot.peers.iter().find(|peer| peer.name == "a");
    Ok(peer.context("no link")?.connections)
}

/// Many at once; each runs once, those on one value in the order in which they were made.
async fn small_calls(a: &Peer, log: &RRef<Log>, round: u64) -> anyhow::Result<()> {
    let numbers = 50 * round..50 * (round + 1);
    let pushed: Vec<_> = numbers.clone().map(|n| log.push(n).start()).collect();
    let visited: Vec<_> = numbers.clone().map(|n| visit::on(a, n).start()).collect();
    for ((n, pushed), visited) in numbers.zip(pushed).zip(visited) {
        ensure!(pushed.await? == n);
        ensure!(visited.await? == 1, "{n} was visited twice");
    }
    Ok(())
}

/// There and back, with references that only the message holds for a while.
async fn large_calls(a: &Peer, round: u64) -> anyhow::Result<()> {
    let mut calls = JoinSet::new();
    for size in [100_000, 70_000 + fastrand::usize(..200_000)] {
        let blob = Blob::from(vec![round as u8; size]);
        let probe = Probe::new_on(a, round).remote();
        let echoed = echo::on(a, blob.clone(), probe).start();
        calls.spawn(async move {
            let (back, probe) = echoed.await?;
            ensure!(back == blob, "{size} bytes came back changed");
            Ok(probe.value().await?)
        });
    }
    while let Some(value) = calls.join_next().await {
        ensure!(value?? == round);
    }
    Ok(())
}

async fn calls_back(a: &Peer, round: u64) -> anyhow::Result<()> {
    let numbers = 5 * round..5 * (round + 1);
    let calls: Vec<_> = numbers.map(|n| visit_caller::on(a, n).start()).collect();
    for call in calls {
        ensure!(call.await? == 1, "called back twice");
    }
    Ok(())
}

/// Values that are used once, or never.
async fn creations(a: &Peer, round: u64) -> anyhow::Result<()> {
    let probes: Vec<_> = (0..10).map(|n| Probe::new_on(a, n).remote()).collect();
    for (n, probe) in (0..).zip(&probes) {
        if (n + round).is_multiple_of(2) {
            ensure!(probe.add(1).await? == n + 1);
        }
    }
    Ok(())
}
