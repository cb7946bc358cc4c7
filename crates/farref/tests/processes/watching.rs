//! Guarantees W1-W5: members that are killed, stopped, leave and come back, as others are told of them.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use farref::agent::NodeId;
use farref::{Departure, MemberEvent, Members};
use farref_testkit::{Scratch, TEST_TIMEOUT};

use crate::Tests;
use crate::functions::{Probe, add, leave_soon, watch_until_end};
use crate::group::{Options, SILENT_MS, run};
use crate::launch::Launch;
use crate::worker::EVICTED;

pub(crate) fn tests() -> Tests {
    vec![
        (
            "w1_w2_a_killed_worker_and_its_next_life_are_told",
            killed_and_back,
        ),
        (
            "w2_w4_a_stopped_worker_is_told_dead_and_learns_it_itself",
            stopped,
        ),
        ("w2_who_joins_and_leaves_again_is_told", joins_and_leaves),
        (
            "w5_the_owner_of_a_reference_is_gone_when_it_is_killed",
            owner_killed,
        ),
    ]
}

async fn next(members: &mut Members) -> anyhow::Result<MemberEvent> {
    let event = tokio::time::timeout(TEST_TIMEOUT / 2, members.next()).await;
    event.context("nothing is told")?.context("the end")
}

/// Reads those who are there, and how many they are.
async fn begin(members: &mut Members) -> anyhow::Result<usize> {
    for present in 0.. {
        match next(members).await? {
            MemberEvent::Joined(_) => {}
            MemberEvent::Complete => return Ok(present),
            other => bail!("{other:?}"),
        }
    }
    bail!("too many")
}

async fn joined(members: &mut Members, name: &str) -> anyhow::Result<NodeId> {
    match next(members).await? {
        MemberEvent::Joined(member) if member.name() == name => Ok(member.node()),
        other => bail!("{other:?}"),
    }
}

async fn died(members: &mut Members, name: &str) -> anyhow::Result<NodeId> {
    match next(members).await? {
        MemberEvent::Died(member) if member.name() == name => Ok(member.node()),
        other => bail!("{other:?}"),
    }
}

/// W1, W2: at first nobody has a connection to the one that is killed but who watches (`Agent::watch`).
fn killed_and_back() -> anyhow::Result<()> {
    let scratch = Scratch::new()?;
    let serve = scratch.file("serve");
    let options = Options {
        serves_after: Some(serve.clone()),
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let mut members = group.me.watch_members();
        ensure!(begin(&mut members).await? == 3);
        let a = group.peer("a")?;
        for _ in 0..3 {
            let gone = a.gone();
            group.kill("a")?;
            let first = died(&mut members, "a").await?;
            ensure!(gone.await? == Departure::Died);
            std::fs::write(&serve, "")?;
            group.restart("a").await?;
            let second = joined(&mut members, "a").await?;
            ensure!(first.worker == second.worker && first < second);
            ensure!(add::on(&a, 1, 2).await? == 3, "who is told can be called");
        }
        Ok(())
    })
}

/// W2, W4
fn stopped() -> anyhow::Result<()> {
    let options = Options {
        peer_timeout_ms: SILENT_MS,
        may_be_evicted: true,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let scratch = Scratch::new()?;
        let told = scratch.file("told");
        let mut members = group.me.watch_members();
        ensure!(begin(&mut members).await? == 3);
        let a = group.peer("a")?;
        watch_until_end::on(&a, told.clone()).await?;
        let gone = a.gone();
        group.stop("a")?;
        died(&mut members, "a").await?;
        ensure!(gone.await? == Departure::Died);
        group.resume("a")?;
        let status = group.ended("a").await?;
        ensure!(status.code() == Some(EVICTED), "it ended with {status}");
        ensure!(Path::new(&told).exists(), "it has not been told");
        let told = std::fs::read_to_string(told)?;
        ensure!(told == "Some(Ended(Evicted))", "it was told {told}");
        Ok(())
    })
}

/// W2
fn joins_and_leaves() -> anyhow::Result<()> {
    run(Options::default(), &["a"], async |group| {
        let mut members = group.me.watch_members();
        ensure!(begin(&mut members).await? == 2);
        let mut last = None;
        for _ in 0..3 {
            let guest = Launch::addition(group, "guest")?.start("guest")?;
            let life = joined(&mut members, "guest").await?;
            let peer = group.peer("guest")?;
            let gone = peer.gone();
            leave_soon::on(&peer).await?;
            match next(&mut members).await? {
                MemberEvent::Left(member) => ensure!(member.node() == life),
                other => bail!("{other:?}"),
            }
            ensure!(gone.await? == Departure::Left);
            guest.ended_well().await?;
            ensure!(last.replace(life) < Some(life), "each is a life of its own");
        }
        Ok(())
    })
}

/// W5
fn owner_killed() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let [of_a, of_b] = [group.peer("a")?, group.peer("b")?].map(|on| Probe::new_on(&on, 1));
        let [of_a, of_b] = [of_a.remote(), of_b.remote()];
        let a_gone = of_a.owner_gone();
        let b_gone = tokio::spawn(of_b.owner_gone());
        group.kill("a")?;
        ensure!(a_gone.await? == Departure::Died);
        ensure!(!b_gone.is_finished());
        group.kill("b")?;
        ensure!(b_gone.await?? == Departure::Died);
        Ok(())
    })
}
