//! Guarantees N1-N5: publishers that are killed, stopped, cut off and replaced.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use farref::{Error, Peer, RRef};
use farref_testkit::{TEST_TIMEOUT, eventually_async};
use tokio::task::JoinHandle;

use crate::Tests;
use crate::functions::{Probe, ProbeRRef, probes, publish, unpublish};
use crate::group::{Group, Options, SILENT_MS, proxied, run};
use crate::launch::Launch;
use crate::worker::EVICTED;

pub(crate) fn tests() -> Tests {
    vec![
        (
            "n3_lookups_that_wait_for_a_killed_publisher_fail_and_those_of_the_group_go_on",
            killed_while_waiting,
        ),
        (
            "n3_what_was_published_is_gone_with_a_killed_publisher",
            killed_before,
        ),
        (
            "n3_what_a_stopped_publisher_has_is_found_in_its_next_life",
            stopped,
        ),
        ("n1_n2_names_survive_a_connection_that_is_cut", cut),
        (
            "n5_names_of_all_processes_go_at_the_end_without_a_leak",
            left_at_the_end,
        ),
    ]
}

/// Longer than any test.
const LIMIT: Duration = TEST_TIMEOUT;

fn waiting(peer: &Peer, name: &str) -> JoinHandle<farref::Result<RRef<Probe>>> {
    let lookup = peer.lookup::<Probe>(name).timeout(LIMIT);
    tokio::spawn(lookup.into_future())
}

fn waiting_in_group(group: &Group, name: &str) -> JoinHandle<farref::Result<RRef<Probe>>> {
    let lookup = group.me.lookup::<Probe>(name).timeout(LIMIT);
    tokio::spawn(lookup.into_future())
}

/// Returns when so many calls of the driver wait on that worker.
async fn until_served(group: &Group, name: &str, calls: usize) -> anyhow::Result<()> {
    let peer = group.peer(name)?;
    eventually_async("the lookups wait there", async || {
        let snapshot = peer.snapshot().await?;
        let driver = snapshot.peers.iter().find(|peer| peer.name == "driver");
        // The snapshot itself is one.
        Ok(driver.context("the driver")?.calls_served == calls + 1)
    })
    .await
}

fn ensure_lost<T: std::fmt::Debug>(outcome: farref::Result<T>, name: &str) -> anyhow::Result<()> {
    let lost = matches!(&outcome, Err(Error::PeerLost { peer, .. }) if &**peer == name);
    ensure!(lost, "{outcome:?}");
    Ok(())
}

/// N3, N4
fn killed_while_waiting() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let lost: Vec<_> = (0..5).map(|_| waiting(&a, "n")).collect();
        let in_group = waiting_in_group(group, "n");
        until_served(group, "a", 6).await?;
        until_served(group, "b", 1).await?;
        group.kill("a")?;
        for lost in lost {
            ensure_lost(lost.await?, "a")?;
        }
        ensure!(!in_group.is_finished());
        group.restart("a").await?;
        group.me.wait_for_peer("a", TEST_TIMEOUT).await?;
        // In whichever life, and whoever it is.
        publish::on(&a, "n".into(), 2).await?;
        let found = in_group.await??;
        ensure!(found.value().await? == 2 && found.owner()?.name() == "a");
        drop(found);
        ensure!(unpublish::on(&a, "n".into()).await?);
        eventually_async("freed", async || Ok(probes::on(&a).await? == 0)).await?;
        ensure!(probes::on(&b).await? == 0);
        Ok(())
    })
}

/// N3: between the publishing and the lookup.
fn killed_before() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        publish::on(&a, "n".into(), 1).await?;
        publish::on(&b, "n".into(), 2).await?;
        let [of_a, in_group] = [a.lookup::<Probe>("n"), group.me.lookup::<Probe>("n")];
        group.kill("a")?;
        ensure_lost(of_a.await, "a")?;
        let found = in_group.await?;
        ensure!(found.value().await? == 2, "the next one's");
        drop(found);
        group.restart("a").await?;
        let a = group.me.wait_for_peer("a", TEST_TIMEOUT).await?;
        ensure!(a.lookup::<Probe>("n").now().await?.is_none());
        Ok(())
    })
}

/// N3: it is taken for dead; its next life is another publisher.
fn stopped() -> anyhow::Result<()> {
    let options = Options {
        peer_timeout_ms: SILENT_MS,
        may_be_evicted: true,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let a = group.peer("a")?;
        publish::on(&a, "n".into(), 1).await?;
        let (first, version) = a.lookup::<Probe>("n").versioned().await?;
        ensure!(first.value().await? == 1);
        group.stop("a")?;
        // Held up until it is known, and no longer.
        ensure_lost(a.lookup::<Probe>("n").await, "a")?;
        let newer = group.me.lookup::<Probe>("n").newer_than(version);
        let newer = tokio::spawn(newer.timeout(LIMIT).into_future());
        let next = Launch::again(group, "a", a.rank())?.start("a")?;
        group.me.wait_for_peer("a", TEST_TIMEOUT).await?;
        publish::on(&a, "n".into(), 2).await?;
        let second = newer.await??;
        ensure!(second.value().await? == 2);
        ensure!(matches!(first.value().await, Err(Error::OwnerLost { .. })));
        group.resume("a")?;
        let status = group.ended("a").await?;
        ensure!(status.code() == Some(EVICTED), "it ended with {status}");
        drop((first, second));
        group.me.shutdown().await?;
        next.ended_well().await
    })
}

/// N1, N2: what is said is said once, over however many connections.
fn cut() -> anyhow::Result<()> {
    let (proxy, options) = proxied(&["driver", "a"])?;
    run(options, &["a"], async |group| {
        let a = group.peer("a")?;
        let mut version = None;
        for round in 1..=10 {
            let mut lookup = a.lookup::<Probe>("n").timeout(LIMIT);
            if let Some(version) = version {
                lookup = lookup.newer_than(version);
            }
            let waiting = tokio::spawn(lookup.versioned());
            until_served(group, "a", 1).await?;
            proxy.cut_once();
            publish::on(&a, "n".into(), round).await?;
            proxy.cut_once();
            let (found, newer) = waiting.await??;
            ensure!(found.value().await? == round);
            version = Some(newer);
        }
        eventually_async("freed", async || Ok(probes::on(&a).await? == 1)).await?;
        ensure!(unpublish::on(&a, "n".into()).await?);
        eventually_async("freed", async || Ok(probes::on(&a).await? == 0)).await
    })
}

/// N5: the processes fail on leaks.
fn left_at_the_end() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        for name in ["a", "b"] {
            publish::on(&group.peer(name)?, "mine".into(), 1).await?;
        }
        let of_a = group.peer("a")?.lookup::<Probe>("mine").await?;
        group.me.publish("theirs", &of_a)?;
        drop(of_a);
        group
            .me
            .publish("mine", &group.me.rref_to_object(Probe::new(3))?)?;
        Ok(())
    })
}
