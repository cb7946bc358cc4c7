//! R4, R7: references that are handed on.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use farref::{Peer, RRef, Worker};

use super::{live, nothing_is_left};
use crate::functions::{Probe, ProbeRRef as _, hold, probes, release, use_held};
use crate::group::{self, Group};
use crate::{Options, Tests};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "a_reference_survives_the_worker_that_handed_it_on",
            a_reference_survives_the_worker_that_handed_it_on,
        ),
        (
            "a_received_reference_is_usable_at_once",
            a_received_reference_is_usable_at_once,
        ),
    ]
}

/// Makes a value on one worker and hands the only reference to another.
#[farref::remote]
async fn make_and_hand_on(on: String, to: String, key: String, value: u64) -> anyhow::Result<()> {
    let me = Worker::current().context("no worker")?;
    let probe = Probe::new_on(&me.peer(&on)?, value).remote();
    Ok(hold::on(&me.peer(&to)?, key, probe).await?)
}

/// R4
fn a_reference_survives_the_worker_that_handed_it_on() -> anyhow::Result<()> {
    group::run(Options::default(), &["owner", "middle", "receiver"], async |group| {
        let (owner, receiver) = (group.peer("owner")?, group.peer("receiver")?);
        let mut survived = 0;
        for round in 0..20 {
            let key = format!("round {round}");
            let middle = group.peer("middle")?;
            let (on, to) = ("owner".to_owned(), "receiver".to_owned());
            let mut handing = make_and_hand_on::on(&middle, on, to, key.clone(), round).start();
            // Right after the receiver has it, or at any moment before.
            let received = round % 4 == 0;
            if received {
                (&mut handing).await?;
            } else {
                tokio::time::sleep(Duration::from_micros(fastrand::u64(..3_000))).await;
            }
            group.kill("middle")?;
            let used = use_held::on(&receiver, key.clone()).await?;
            ensure!(!received || used == round, "received and lost: {used}");
            all_know_of_the_death(group, &middle).await?;

            let mut held = false;
            group
                .eventually("the receiver has it or the owner frees it", async || {
                    let used = use_held::on(&receiver, key.clone()).await?;
                    held = used == round;
                    ensure!(held || used == u64::MAX, "{used}");
                    Ok(held || probes::on(&owner).await? == 0)
                })
                .await?;
            ensure!(held || !received, "received and lost");
            if held {
                survived += 1;
                live(&owner, 1).await?;
                ensure!(release::on(&receiver, key).await?);
            }
            nothing_is_left(group, &owner).await?;
            group.restart("middle").await?;
            group
                .me
                .wait_for_peer("middle", Duration::from_secs(60))
                .await?;
        }
        println!("R4: {survived} of 20 references survived");
        Ok(())
    })
}

/// No member counts this worker as one.
async fn all_know_of_the_death(group: &Group, dead: &Peer) -> anyhow::Result<()> {
    let others = group.me.peers();
    for peer in others.iter().filter(|peer| peer.name() != dead.name()) {
        group
            .eventually("a death is known", async || {
                let snapshot = peer.snapshot().await?;
                let known = snapshot.peers.iter().find(|peer| peer.name == dead.name());
                Ok(known.is_none_or(|known| known.status == "dead"))
            })
            .await?;
    }
    Ok(())
}

/// Says whether the owner has confirmed a reference that has just come.
#[farref::remote]
async fn is_confirmed(probe: RRef<Probe>) -> bool {
    tokio::select! {
        biased;
        confirmed = probe.confirmed() => confirmed.is_ok(),
        () = std::future::ready(()) => false,
    }
}

/// Uses a reference that has just come.
#[farref::remote]
async fn use_at_once(probe: RRef<Probe>) -> farref::Result<u64> {
    probe.value().await
}

/// R7
fn a_received_reference_is_usable_at_once() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let probe = Probe::new_on(&a, 3).remote();
        probe.confirmed().await?;
        ensure!(use_at_once::on(&b, probe.clone()).await? == 3);
        // A new value, of which `b` has never heard, and an owner that says nothing: a function that
        // gets a reference runs all the same, and can keep it and let it go.
        let probe = Probe::new_on(&a, 4).remote();
        probe.confirmed().await?;
        group.stop("a")?;
        ensure!(!is_confirmed::on(&b, probe.clone()).await?);
        hold::on(&b, "kept".to_owned(), probe.clone()).await?;
        let used = use_at_once::on(&b, probe.clone()).start();
        group.resume("a")?;
        ensure!(used.await? == 4);
        drop(probe);
        ensure!(use_held::on(&b, "kept".to_owned()).await? == 4);
        ensure!(release::on(&b, "kept".to_owned()).await?);
        nothing_is_left(group, &a).await
    })
}
