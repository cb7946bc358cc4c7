//! D5: what is in flight is bounded, and control traffic is never stuck behind user traffic.

use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use farref::{Blob, RRef};
use farref_testkit::eventually_async;

use crate::counts::{InCrowd, largest_crowd};
use crate::functions::{Probe, add, hold, open, pid, probes, release, use_held, wait_at};
use crate::group::{self, SILENT_MS, proxied};
use crate::{Options, Tests, amount, patterns};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "no_more_calls_run_at_once_than_the_callee_accepts",
            no_more_calls_run_at_once_than_the_callee_accepts,
        ),
        (
            "no_more_values_are_made_at_once_than_the_owner_accepts",
            no_more_values_are_made_at_once_than_the_owner_accepts,
        ),
        (
            "calls_that_wait_for_a_value_keep_their_arguments_and_no_more",
            calls_that_wait_for_a_value_keep_their_arguments_and_no_more,
        ),
        (
            "control_traffic_passes_a_stuck_bulk_transfer",
            control_traffic_passes_a_stuck_bulk_transfer,
        ),
    ]
}

const LIMIT: u32 = 64;

fn calls() -> u64 {
    amount(2_000, 20_000)
}

fn narrow() -> Options {
    Options {
        max_calls: LIMIT,
        ..Options::default()
    }
}

/// Takes some turns of the scheduler, so that others come in between.
#[farref::remote]
async fn crowd_in(number: u64) -> u64 {
    let _inside = InCrowd::enter();
    for _ in 0..3 {
        tokio::task::yield_now().await;
    }
    number
}

/// A value whose constructor does.
struct Crowded(Probe);

#[farref::remote]
impl Crowded {
    pub(crate) async fn new(number: u64) -> Self {
        Self(Probe::new(crowd_in(number).await))
    }

    pub(crate) async fn number(&self) -> u64 {
        self.0.value
    }
}

/// D5
fn no_more_calls_run_at_once_than_the_callee_accepts() -> anyhow::Result<()> {
    group::run(narrow(), &["a"], async |group| {
        let a = group.peer("a")?;
        let calls: Vec<_> = (0..calls()).map(|n| crowd_in::on(&a, n).start()).collect();
        for (n, call) in (0..).zip(calls) {
            ensure!(call.await? == n);
        }
        let most = largest_crowd::on(&a).await?;
        ensure!(most <= LIMIT.into(), "more than it accepts: {most} at once");
        ensure!(most >= 2, "{most} at once");
        Ok(())
    })
}

/// D5
fn no_more_values_are_made_at_once_than_the_owner_accepts() -> anyhow::Result<()> {
    group::run(narrow(), &["a"], async |group| {
        let a = group.peer("a")?;
        let made: Vec<RRef<Crowded>> = (0..calls())
            .map(|n| Crowded::new_on(&a, n).remote())
            .collect();
        let numbers: Vec<_> = made.iter().map(|value| value.number().start()).collect();
        for (n, number) in (0..).zip(numbers) {
            ensure!(number.await? == n);
        }
        ensure!(probes::on(&a).await? == calls());
        let most = largest_crowd::on(&a).await?;
        ensure!(most <= LIMIT.into(), "more than it accepts: {most} at once");
        ensure!(most >= 2, "{most} at once");
        drop(made);
        eventually_async("all are freed", async || Ok(probes::on(&a).await? == 0)).await
    })
}

/// A value that takes its time.
struct Late(u64);

#[farref::remote]
impl Late {
    pub(crate) async fn new(gate: String) -> Self {
        wait_at(gate).await;
        Self(1)
    }

    pub(crate) async fn plus(&self, n: u64) -> u64 {
        self.0 + n
    }
}

#[farref::remote]
async fn length(text: String) -> usize {
    text.len()
}

/// D5: what is read together is not kept together.
fn calls_that_wait_for_a_value_keep_their_arguments_and_no_more() -> anyhow::Result<()> {
    const WAITING: u64 = 1_000;
    group::run(Options::default(), &["a"], async |group| {
        let a = group.peer("a")?;
        let late = Late::new_on(&a, "late".to_owned()).remote();
        // As large as may come in the buffer that small calls are read into.
        let filler = "x".repeat(30 << 10);
        let pid = pid::on(&a).await?;
        for _ in 0..100 {
            ensure!(length::on(&a, filler.clone()).await? == filler.len());
        }
        let before = memory(pid)?;
        let mut waiting = Vec::new();
        for n in 0..WAITING {
            waiting.push(late.plus(n).timeout(None).start());
            for _ in 0..3 {
                ensure!(length::on(&a, filler.clone()).await? == filler.len());
            }
        }
        let grown = memory(pid)?.saturating_sub(before) >> 10;
        println!("D5: {WAITING} waiting calls take {grown} KiB");
        ensure!(grown < 16 * WAITING, "{WAITING} calls keep {grown} KiB");
        open::on(&a, "late".to_owned()).await?;
        for (n, call) in (0..).zip(waiting) {
            ensure!(call.await? == 1 + n);
        }
        drop(late);
        Ok(())
    })
}

/// The memory that a process has at present.
fn memory(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no such line")?.parse::<u64>()? << 10)
}

/// Whether the blob is that of a seed, and the blob of the next one.
#[farref::remote]
fn check_and_answer(blob: Blob, seed: u64) -> (bool, Blob) {
    let answer = patterns::bytes(blob.len(), seed + 1);
    (patterns::check_bytes(&blob, seed), answer.into())
}

/// D5 (monarch #1041)
fn control_traffic_passes_a_stuck_bulk_transfer() -> anyhow::Result<()> {
    const SIZE: usize = 40 << 20;
    let (proxy, options) = proxied(&["driver", "a", "b"])?;
    let options = Options {
        // The transfer is stuck for longer than a peer may be silent.
        peer_timeout_ms: SILENT_MS,
        ..options
    };
    group::run(options, &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        add::on(&a, 1, 1).await?;
        // More than all else needs, and a part of the transfer.
        proxy.stall_after(4 << 20);
        let blob = Blob::from(patterns::bytes(SIZE, 1));
        let stuck = check_and_answer::on(&a, blob, 1).start();
        let (began, longer) = (Instant::now(), Duration::from_millis(SILENT_MS * 5 / 4));
        let mut rounds = 0;
        // This is what the test is about, not a means to wait for something.
        while began.elapsed() < longer {
            let key = format!("round {rounds}");
            let probe = Probe::new_on(&a, rounds).remote();
            probe.confirmed().await?;
            hold::on(&b, key.clone(), probe).await?;
            ensure!(use_held::on(&b, key.clone()).await? == rounds);
            ensure!(release::on(&b, key).await?);
            eventually_async(
                "the probe is freed",
                async || Ok(probes::on(&a).await? == 0),
            )
            .await?;
            rounds += 1;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        ensure!(a.is_alive() && b.is_alive());
        ensure!(
            group.me.snapshot().open_calls == 1,
            "the transfer was not stuck"
        );
        proxy.pass();
        let (is_right, answer) = stuck.await?;
        ensure!(
            is_right && answer.len() == SIZE && patterns::check_bytes(&answer, 2),
            "the transfer came out wrong"
        );
        println!("D5: {rounds} rounds beside a stuck transfer");
        Ok(())
    })
}
