//! Guarantees F1-F3: what happens when a process dies, stops or comes back.

use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure};
use farref::{Error, Peer, Result};
use farref_testkit::{Scratch, TEST_TIMEOUT, eventually_async, free_port, run_test};

use crate::Tests;
use crate::functions::{
    Probe, ProbeRRef, add, add_on, hand_on, hold, open, pid, probes, release, until_waiting,
    use_held, wait_at, wait_at_other, write_what_comes,
};
use crate::group::{Group, Options, SILENT_MS, run};
use crate::launch::Launch;
use crate::worker::EVICTED;

pub(crate) fn tests() -> Tests {
    vec![
        ("f1_a_killed_process_is_noticed_at_once", || {
            killed_is_noticed(true)
        }),
        ("f1_a_killed_process_is_noticed_at_once_over_tcp", || {
            killed_is_noticed(false)
        }),
        (
            "f1_a_process_that_is_silent_for_too_long_is_dead",
            silent_is_dead,
        ),
        (
            "f1_a_process_that_is_silent_for_a_while_loses_nothing",
            short_silence,
        ),
        ("f2_the_death_of_an_owner_fails_what_needs_it", owner_dies),
        ("f2_what_a_dead_holder_held_is_freed", holder_dies),
        (
            "f2_a_call_through_a_dead_worker_ends_on_both_sides",
            middle_dies,
        ),
        ("f2_the_death_of_the_stores_host_stops_nobody", host_dies),
        ("f3_a_worker_comes_back_under_its_name", comes_back),
        ("f3_a_new_life_ends_the_old_one", new_life_ends_old),
        ("f3_an_old_life_that_wakes_harms_nobody", old_life_wakes),
    ]
}

/// Waits at a gate of that worker, and returns when it does.
async fn waiting(peer: &Peer, gate: &str) -> anyhow::Result<farref::Pending<()>> {
    let pending = wait_at::on(peer, gate.into()).timeout(None).start();
    until_waiting::on(peer, gate.into(), 1).await?;
    Ok(pending)
}

fn ensure_lost<T: std::fmt::Debug>(
    outcome: Result<T>,
    name: &str,
    what: &str,
) -> anyhow::Result<()> {
    match outcome {
        Err(Error::PeerLost { peer, function, .. }) if &*peer == name => {
            ensure!(function.as_str().ends_with(what), "lost in {function}");
            Ok(())
        }
        other => bail!("not the loss of `{name}`: {other:?}"),
    }
}

fn ensure_owner_lost<T: std::fmt::Debug>(outcome: Result<T>, name: &str) -> anyhow::Result<()> {
    match outcome {
        Err(Error::OwnerLost { owner }) if &*owner == name => Ok(()),
        other => bail!("not the loss of owner `{name}`: {other:?}"),
    }
}

/// Whether a worker's own call failed because somebody else's value is gone.
fn ensure_told_of_loss<T: std::fmt::Debug>(outcome: Result<T>, owner: &str) -> anyhow::Result<()> {
    match outcome {
        Err(Error::Remote(error)) if error.message().contains(&format!("`{owner}`, which had")) => {
            Ok(())
        }
        other => bail!("not told of the loss of owner `{owner}`: {other:?}"),
    }
}

/// F1: nothing but the refused connection can have told, with time-outs as long as these.
fn killed_is_noticed(unix_sockets: bool) -> anyhow::Result<()> {
    let options = Options {
        unix_sockets,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let mine = waiting(&a, "mine").await?;
        let theirs = wait_at_other::on(&b, "a".into(), "theirs".into()).start();
        until_waiting::on(&a, "theirs".into(), 1).await?;
        group.kill("a")?;

        ensure_lost(mine.await, "a", "wait_at")?;
        match theirs.await {
            Err(Error::Remote(error)) => {
                ensure!(&*error.worker == "b", "{error}");
                ensure!(error.message().contains("worker `a` was lost"), "{error}");
            }
            other => bail!("b was not told: {other:?}"),
        }
        ensure!(!a.is_alive());
        ensure_lost(add::on(&a, 1, 2).await, "a", "add")?;
        ensure!(add::on(&b, 1, 2).await? == 3);
        Ok(())
    })
}

/// F1, F2: and it learns of it as soon as it wakes.
fn silent_is_dead() -> anyhow::Result<()> {
    let options = Options {
        peer_timeout_ms: SILENT_MS,
        may_be_evicted: true,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let scratch = Scratch::new()?;
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let probe = Probe::new_on(&a, 1).remote();
        ensure!(probe.value().await? == 1);
        // What `a` itself is waiting for when it is stopped.
        let outcome = scratch.file("outcome");
        write_what_comes::on(&a, "b".into(), "theirs".into(), outcome.clone()).await?;
        until_waiting::on(&b, "theirs".into(), 1).await?;
        let pending = waiting(&a, "mine").await?;

        group.stop("a")?;
        ensure_lost(pending.await, "a", "wait_at")?;
        ensure_owner_lost(probe.value().await, "a")?;
        // The call that it had made is over on the other side as well.
        until_waiting::on(&b, "theirs".into(), 0).await?;
        ensure!(add::on(&b, 1, 2).await? == 3);

        group.resume("a")?;
        let status = group.ended("a").await?;
        ensure!(status.code() == Some(EVICTED), "it ended with {status}");
        let outcome = std::fs::read_to_string(outcome)?;
        ensure!(
            outcome.contains("Evicted"),
            "its own call ended with {outcome}"
        );
        ensure!(add_on::on(&b, "driver".into(), 1, 2).await? == 3);
        Ok(())
    })
}

/// F1: stopped for longer than a connection may stand still, but not for as long as a peer may.
fn short_silence() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let before = pid::on(&a).await?;
        ensure!(add_on::on(&b, "a".into(), 1, 2).await? == 3);
        let probe = Probe::new_on(&a, 5).remote();
        ensure!(probe.value().await? == 5);
        group.stop("a")?;
        let mine: Vec<_> = (0..50).map(|n| add::on(&a, n, 1).start()).collect();
        let theirs: Vec<_> = (0..50)
            .map(|n| add_on::on(&b, "a".into(), n, 2).start())
            .collect();
        // This is what the test is about, not a means to wait for something.
        tokio::time::sleep(Duration::from_millis(2_500)).await;
        group.resume("a")?;
        for (n, call) in (0..).zip(mine) {
            ensure!(call.await? == n + 1);
        }
        for (n, call) in (0..).zip(theirs) {
            ensure!(call.await? == n + 2);
        }
        ensure!(probe.add(1).await? == 6);
        ensure!(pid::on(&a).await? == before);
        for worker in [
            group.me.snapshot(),
            a.snapshot().await?,
            b.snapshot().await?,
        ] {
            let alive = worker.peers.iter().filter(|peer| peer.status == "alive");
            ensure!(alive.count() == 3, "{worker:?}");
        }
        Ok(())
    })
}

/// F2
fn owner_dies() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let probe = Probe::new_on(&a, 7).remote();
        hold::on(&b, "k".into(), probe.clone()).await?;
        ensure!(use_held::on(&b, "k".into()).await? == 7);
        // Never fetched, and perhaps not even made.
        let unused = Probe::new_on(&a, 8).remote();
        let pending = waiting(&a, "mine").await?;
        group.kill("a")?;

        ensure_lost(pending.await, "a", "wait_at")?;
        ensure_owner_lost(probe.value().await, "a")?;
        ensure_owner_lost(unused.value().await, "a")?;
        ensure_owner_lost(probe.confirmed().await, "a")?;
        let elsewhere = use_held::on(&b, "k".into()).await;
        ensure_told_of_loss(elsewhere, "a")?;
        // It cannot be handed on either, nor anything be made of it.
        ensure_owner_lost(hold::on(&b, "lost".into(), probe.clone()).await, "a")?;
        ensure_owner_lost(probe.add(1).remote().to_here().await, "a")?;
        ensure!(release::on(&b, "k".into()).await?);
        Ok(())
    })
}

/// F2, R2
fn holder_dies() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b", "c"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        for n in 0..20 {
            let far = Probe::new_on(&a, n).remote();
            // What is counted below has to be made first.
            ensure!(far.value().await? == n);
            hold::on(&b, format!("far {n}"), far).await?;
            let near = group.me.rref_to_object(Probe::new(n))?;
            hold::on(&b, format!("near {n}"), near).await?;
        }
        let kept = Probe::new_on(&a, 99).remote();
        ensure!(kept.value().await? == 99);
        hold::on(&b, "kept".into(), kept.clone()).await?;
        ensure!(probes::on(&a).await? == 21);
        // Those of this test: other tests that run at the same time have values here, too.
        let near = || {
            let owned = group.me.references().0;
            let mine = owned.iter().filter(|reference| reference.owner == "driver");
            mine.count()
        };
        ensure!(near() == 20, "{} values are here", near());
        group.kill("b")?;
        eventually_async("freed on a", async || Ok(probes::on(&a).await? == 1)).await?;
        eventually_async("freed here", async || {
            let owned = group.me.references();
            Ok(owned.0.iter().all(|reference| reference.owner != "driver"))
        })
        .await?;
        ensure!(kept.value().await? == 99);
        Ok(())
    })
}

/// F2
fn middle_dies() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b", "c"], async |group| {
        let (a, b, c) = (group.peer("a")?, group.peer("b")?, group.peer("c")?);
        let probe = Probe::new_on(&a, 3).remote();
        hand_on::on(&b, "c".into(), "k".into(), probe).await?;
        let through = wait_at_other::on(&b, "c".into(), "gate".into())
            .timeout(None)
            .start();
        until_waiting::on(&c, "gate".into(), 1).await?;
        group.kill("b")?;
        ensure_lost(through.await, "b", "wait_at_other")?;
        // Nobody waits for its answer: it does not go on.
        until_waiting::on(&c, "gate".into(), 0).await?;
        ensure!(use_held::on(&c, "k".into()).await? == 3);
        ensure!(probes::on(&a).await? == 1);
        ensure!(release::on(&c, "k".into()).await?);
        eventually_async("freed", async || Ok(probes::on(&a).await? == 0)).await
    })
}

/// F2: rank 0 hosts the store and is the leader; the others need neither.
fn host_dies() -> anyhow::Result<()> {
    run_test(async {
        let options = Options::default();
        let rendezvous = format!("tcp://127.0.0.1:{}", free_port()?);
        let member = |name: &str, rank: u32| -> anyhow::Result<_> {
            Launch::new(&options)?
                .env("FARREF_NAME", name)
                .env("FARREF_RANK", rank)
                .env("FARREF_WORLD_SIZE", 4)
                .env("FARREF_RENDEZVOUS", &rendezvous)
                .start(name)
        };
        let host = member("host", 0)?;
        let others = [member("a", 1)?, member("b", 2)?];
        let builder = farref::Worker::builder("driver").rank(3).world_size(4);
        let me = options
            .apply(builder.rendezvous(&rendezvous))
            .join()
            .await?;
        let (a, b) = (me.peer("a")?, me.peer("b")?);
        let lost = waiting(&me.peer("host")?, "gate").await?;
        let probe = Probe::new_on(&a, 11).remote();
        // Whoever still reads in the store who else is there does need its host.
        ensure!(add::on(&a, 1, 2).await? == 3 && add::on(&b, 1, 2).await? == 3);
        host.kill()?;

        ensure_lost(lost.await, "host", "wait_at")?;
        // `a` and `b` have not met yet: they need no store for it.
        ensure!(add_on::on(&a, "b".into(), 1, 2).await? == 3);
        hold::on(&b, "k".into(), probe.clone()).await?;
        ensure!(use_held::on(&b, "k".into()).await? == 11);
        ensure!(release::on(&b, "k".into()).await?);
        drop(probe);
        me.shutdown().await?;
        for other in others {
            other.ended_well().await?;
        }
        Ok(())
    })
}

/// F3
fn comes_back() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let (old_handle, b) = (group.peer("a")?, group.peer("b")?);
        let mut lives = vec![pid::on(&old_handle).await?];
        for _ in 0..4 {
            let probe = Probe::new_on(&old_handle, 1).remote();
            ensure!(probe.value().await? == 1);
            let pending = waiting(&old_handle, "gate").await?;
            group.kill("a")?;
            ensure_lost(pending.await, "a", "wait_at")?;
            group.restart("a").await?;
            let new_handle = group.me.wait_for_peer("a", TEST_TIMEOUT).await?;

            let life = pid::on(&new_handle).await?;
            ensure!(!lives.contains(&life), "an old life answered");
            lives.push(life);
            ensure!(
                pid::on(&old_handle).await? == life,
                "a handle stands for the name"
            );
            ensure!(new_handle.rank() == old_handle.rank());
            ensure_owner_lost(probe.value().await, "a")?;
            ensure!(probes::on(&old_handle).await? == 0);
            reach_each_other(group, &b).await?;
        }
        Ok(())
    })
}

/// `a` and `b` have both met the present life of the other.
async fn reach_each_other(group: &Group, b: &Peer) -> anyhow::Result<()> {
    // What `b` knows of `a` is its own business; it may learn of the new life a moment later.
    eventually_async("b reaches a", async || {
        match add_on::on(b, "a".into(), 1, 2).await {
            Ok(sum) => Ok(sum == 3),
            Err(Error::Remote(error)) if error.message().contains("was lost") => Ok(false),
            Err(error) => Err(error.into()),
        }
    })
    .await?;
    ensure!(add_on::on(&group.peer("a")?, "b".into(), 1, 2).await? == 3);
    Ok(())
}

/// F3: the new life is there before anybody has noticed that the old one is not.
fn new_life_ends_old() -> anyhow::Result<()> {
    let options = Options {
        may_be_evicted: true,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let before = pid::on(&a).await?;
        let probe = Probe::new_on(&a, 1).remote();
        ensure!(probe.value().await? == 1);
        hold::on(&b, "k".into(), probe.clone()).await?;
        let pending = waiting(&a, "gate").await?;
        group.stop("a")?;
        let next = Launch::again(group, "a", a.rank())?.start("a")?;

        ensure_lost(pending.await, "a", "wait_at")?;
        ensure_owner_lost(probe.value().await, "a")?;
        let new = group.me.wait_for_peer("a", TEST_TIMEOUT).await?;
        ensure!(pid::on(&new).await? != before);
        reach_each_other(group, &b).await?;
        ensure_told_of_loss(use_held::on(&b, "k".into()).await, "a")?;
        ensure!(release::on(&b, "k".into()).await?);

        group.resume("a")?;
        let status = group.ended("a").await?;
        ensure!(status.code() == Some(EVICTED), "it ended with {status}");
        drop(probe);
        group.me.shutdown().await?;
        next.ended_well().await
    })
}

/// F3: frames that an old life has in its queues, and calls it still makes, reach nobody.
fn old_life_wakes() -> anyhow::Result<()> {
    let options = Options {
        peer_timeout_ms: SILENT_MS,
        may_be_evicted: true,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let scratch = Scratch::new()?;
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let before = pid::on(&a).await?;
        let outcome = scratch.file("outcome");
        write_what_comes::on(&a, "b".into(), "gate".into(), outcome.clone()).await?;
        until_waiting::on(&b, "gate".into(), 1).await?;
        let pending = waiting(&a, "gate").await?;
        group.stop("a")?;
        ensure_lost(pending.await, "a", "wait_at")?;
        // Answers that nobody takes wait in the sockets of the one that is stopped.
        let next = Launch::again(group, "a", a.rank())?.start("a")?;
        let new = group.me.wait_for_peer("a", TEST_TIMEOUT).await?;
        let life = pid::on(&new).await?;
        ensure!(life != before);
        let probe = Probe::new_on(&new, 4).remote();
        hold::on(&b, "k".into(), probe.clone()).await?;
        open::on(&b, "gate".into()).await?;
        let busy = waiting(&new, "busy").await?;

        group.resume("a")?;
        let status = group.ended("a").await?;
        ensure!(status.code() == Some(EVICTED), "it ended with {status}");
        ensure!(Path::new(&outcome).exists(), "its call hangs");
        let outcome = std::fs::read_to_string(outcome)?;
        ensure!(
            outcome.contains("Evicted"),
            "its own call ended with {outcome}"
        );

        ensure!(pid::on(&new).await? == life && pid::on(&a).await? == life);
        ensure!(use_held::on(&b, "k".into()).await? == 4);
        open::on(&new, "busy".into()).await?;
        busy.await?;
        ensure!(release::on(&b, "k".into()).await?);
        drop(probe);
        group.me.shutdown().await?;
        next.ended_well().await
    })
}
