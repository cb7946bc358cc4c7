//! D5: answers that are under way are bounded, whoever does not read them, and hold up nobody else.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context as _, ensure};
use farref::{RRef, Worker};
use farref_testkit::eventually_async;
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::functions::{add, add_plainly, pid};
use crate::group;
use crate::{Options, Tests, amount};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "large_answers_of_async_functions_are_bounded",
            large_answers_of_async_functions_are_bounded,
        ),
        (
            "large_answers_of_plain_functions_are_bounded",
            large_answers_of_plain_functions_are_bounded,
        ),
        (
            "large_answers_of_methods_are_bounded",
            large_answers_of_methods_are_bounded,
        ),
        (
            "copies_of_a_value_that_is_fetched_are_bounded",
            copies_of_a_value_that_is_fetched_are_bounded,
        ),
        (
            "a_caller_that_does_not_read_its_answers_holds_up_nobody_else",
            a_caller_that_does_not_read_its_answers_holds_up_nobody_else,
        ),
        (
            "functions_with_large_answers_may_wait_for_each_other",
            functions_with_large_answers_may_wait_for_each_other,
        ),
    ]
}

const MIB: u64 = 1 << 20;
const ANSWER: u64 = 4 * MIB;
const BUDGET: u64 = 40 * MIB;
/// What a worker of these tests has anyway, and what its threads are at.
const BESIDE: u64 = 150 * MIB;

/// Answers that take twice as much memory as the callee may ever have, or four times.
fn calls() -> u64 {
    amount(100, 200)
}

fn narrow() -> Options {
    Options {
        max_answer_bytes: BUDGET,
        blocking_threads: 4,
        ..Options::default()
    }
}

/// Answers that were made for those who fill memory.
static MADE: AtomicU64 = AtomicU64::new(0);

#[farref::remote]
async fn made() -> u64 {
    MADE.load(Ordering::SeqCst)
}

fn text() -> String {
    MADE.fetch_add(1, Ordering::SeqCst);
    "x".repeat(ANSWER as usize)
}

#[farref::remote]
async fn large() -> String {
    text()
}

#[farref::remote]
fn large_plainly() -> String {
    text()
}

struct Library(#[expect(dead_code, reason = "there has to be something")] u64);

#[farref::remote]
impl Library {
    pub(crate) async fn new(number: u64) -> Self {
        Self(number)
    }

    pub(crate) async fn read(&self) -> String {
        text()
    }
}

/// The most memory that a process of this machine has had.
fn peak_memory(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.context("no such line")?.parse::<u64>()? << 10)
}

/// Calls at once and lets go of each answer as it comes.
async fn all(
    calls: Vec<impl Future<Output = farref::Result<String>> + Send + 'static>,
) -> anyhow::Result<()> {
    let mut set: JoinSet<_> = calls.into_iter().collect();
    while let Some(answer) = set.join_next().await {
        ensure!(answer??.len() as u64 == ANSWER);
    }
    Ok(())
}

fn bounded(pid: u32, what: &str) -> anyhow::Result<()> {
    let peak = peak_memory(pid)?;
    println!("D5: {what}: {} MiB at most", peak / MIB);
    let sum = calls() * ANSWER / MIB;
    ensure!(
        peak < BUDGET + BESIDE,
        "{what}: {} MiB for answers of {sum} MiB",
        peak / MIB
    );
    Ok(())
}

/// D5
fn large_answers_of_async_functions_are_bounded() -> anyhow::Result<()> {
    group::run(narrow(), &["a"], async |group| {
        let a = group.peer("a")?;
        let pid = pid::on(&a).await?;
        all((0..calls()).map(|_| large::on(&a).start()).collect()).await?;
        bounded(pid, "async functions")
    })
}

/// D5
fn large_answers_of_plain_functions_are_bounded() -> anyhow::Result<()> {
    group::run(narrow(), &["a"], async |group| {
        let a = group.peer("a")?;
        let pid = pid::on(&a).await?;
        all((0..calls())
            .map(|_| large_plainly::on(&a).start())
            .collect())
        .await?;
        bounded(pid, "plain functions")
    })
}

/// D5
fn large_answers_of_methods_are_bounded() -> anyhow::Result<()> {
    group::run(narrow(), &["a"], async |group| {
        let a = group.peer("a")?;
        let pid = pid::on(&a).await?;
        let library = Library::new_on(&a, 1).remote();
        all((0..calls()).map(|_| library.read().start()).collect()).await?;
        bounded(pid, "methods")
    })
}

/// D5
fn copies_of_a_value_that_is_fetched_are_bounded() -> anyhow::Result<()> {
    group::run(narrow(), &["a"], async |group| {
        let a = group.peer("a")?;
        let pid = pid::on(&a).await?;
        let value: RRef<String> = large::on(&a).remote();
        all((0..calls()).map(|_| value.to_here().start()).collect()).await?;
        bounded(pid, "fetches")
    })
}

/// Makes a worker fill the memory of another, if it can.
#[farref::remote]
async fn flood(whom: String) -> anyhow::Result<()> {
    let whom = Worker::current().context("no worker")?.peer(&whom)?;
    all((0..calls())
        .map(|_| large::on(&whom).timeout(None).start())
        .collect())
    .await
}

/// D5
fn a_caller_that_does_not_read_its_answers_holds_up_nobody_else() -> anyhow::Result<()> {
    group::run(narrow(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let pid = pid::on(&a).await?;
        let flood = flood::on(&b, "a".to_owned()).timeout(None).start();
        eventually_async("the first are made", async || Ok(made::on(&a).await? > 0)).await?;
        group.stop("b")?;
        // Others are served, by the same functions too; that gives the flood its time as well.
        for n in 0..20 {
            ensure!(add::on(&a, n, 1).await? == n + 1);
            ensure!(add_plainly::on(&a, n, 1).await? == n + 1);
            ensure!(large::on(&a).await?.len() as u64 == ANSWER);
            ensure!(large_plainly::on(&a).await?.len() as u64 == ANSWER);
        }
        bounded(pid, "beside a stopped caller")?;
        group.resume("b")?;
        flood.await?;
        bounded(pid, "after it went on")
    })
}

/// How many have called [`together`], in all rounds.
static ARRIVED: LazyLock<watch::Sender<u64>> = LazyLock::new(watch::Sender::default);

/// Returns when so many have called it.
#[farref::remote]
async fn together(calls: u64) -> String {
    ARRIVED.send_modify(|arrived| *arrived += 1);
    let _ = ARRIVED
        .subscribe()
        .wait_for(|&arrived| arrived >= calls)
        .await;
    text()
}

/// D5: a bound that makes a program hang would be none that one can live with.
fn functions_with_large_answers_may_wait_for_each_other() -> anyhow::Result<()> {
    group::run(narrow(), &["a"], async |group| {
        let a = group.peer("a")?;
        // More of them than the budget has room for, and the callee knows by now how large they are.
        let mut expected = 0;
        for calls in [1, 2, 15] {
            expected += calls;
            let pending = (0..calls).map(|_| together::on(&a, expected).start());
            all(pending.collect()).await?;
        }
        Ok(())
    })
}
