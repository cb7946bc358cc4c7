//! R4, R7: references that are handed on.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use farref::{Error, Peer, RRef, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually_async};
use serde::{Deserialize, Serialize};

use super::{live, nothing_is_left};
use crate::functions::{Probe, ProbeRRef as _, hold, probes, release, use_held};
use crate::group::{self, Group};
use crate::{Options, Tests, amount};

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

/// Makes a value on one worker and hands the only reference to another; before that, if told so, it
/// waits until there is a value.
#[farref::remote]
async fn make_and_hand_on(
    on: String,
    to: String,
    key: String,
    value: u64,
    waits: bool,
) -> anyhow::Result<()> {
    let me = Worker::current().context("no worker")?;
    let probe = Probe::new_on(&me.peer(&on)?, value).remote();
    if waits {
        probe.confirmed().await?;
    }
    Ok(hold::on(&me.peer(&to)?, key, probe).await?)
}

/// What has become of a reference that a worker may have been told to keep.
#[derive(PartialEq, Debug, Serialize, Deserialize)]
enum Seen {
    Nothing,
    Value(u64),
    /// It came, but the request to make its value did not get to the owner.
    NeverMade,
}

#[farref::remote]
async fn look(key: String) -> farref::Result<Seen> {
    match use_held(key).await {
        Ok(u64::MAX) => Ok(Seen::Nothing),
        Ok(value) => Ok(Seen::Value(value)),
        Err(Error::CreatorLost { creator }) if &*creator == "middle" => Ok(Seen::NeverMade),
        Err(error) => Err(error),
    }
}

/// R4
fn a_reference_survives_the_worker_that_handed_it_on() -> anyhow::Result<()> {
    let names = ["owner", "middle", "receiver"];
    group::run(Options::default(), &names, async |group| {
        let mut survived = 0;
        let rounds = amount(8, 24);
        for round in 0..rounds {
            survived += u32::from(hand_on_and_die(group, round).await?);
            group.restart("middle").await?;
            group.me.wait_for_peer("middle", TEST_TIMEOUT).await?;
        }
        println!("R4: {survived} of {rounds} references were received and survived");
        Ok(())
    })
}

/// Says whether the receiver got the reference.
async fn hand_on_and_die(group: &mut Group, round: u64) -> anyhow::Result<bool> {
    let (owner, receiver) = (group.peer("owner")?, group.peer("receiver")?);
    let middle = group.peer("middle")?;
    let key = format!("round {round}");
    // It dies right after the receiver got the reference, or at any moment before.
    let received = round.is_multiple_of(4);
    let waits = round % 4 != 1;
    let [on, to] = ["owner", "receiver"].map(str::to_owned);
    let mut handing = make_and_hand_on::on(&middle, on, to, key.clone(), round, waits).start();
    if received {
        (&mut handing).await?;
    } else {
        // Tokio's clock is too coarse for this. The call makes its way on other threads.
        std::thread::sleep(Duration::from_micros(fastrand::u64(..2_000)));
    }
    group.kill("middle")?;
    let seen = look::on(&receiver, key.clone()).await?;
    ensure!(
        !received || seen == Seen::Value(round),
        "received and lost: {seen:?}"
    );
    all_know_of_the_death(group, &middle).await?;

    let mut seen = Seen::Nothing;
    eventually_async("the receiver has it or the owner frees it", async || {
        seen = look::on(&receiver, key.clone()).await?;
        Ok(seen != Seen::Nothing || probes::on(&owner).await? == 0)
    })
    .await?;
    match seen {
        Seen::Nothing => ensure!(!received, "received and lost"),
        Seen::NeverMade => ensure!(!waits, "made and lost"),
        Seen::Value(value) => {
            ensure!(value == round);
            live(&owner, 1).await?;
        }
    }
    let got = release::on(&receiver, key).await?;
    nothing_is_left(&owner).await?;
    nothing_is_left(&receiver).await?;
    Ok(got)
}

/// No member counts this worker as one.
async fn all_know_of_the_death(group: &Group, dead: &Peer) -> anyhow::Result<()> {
    let others = group.me.peers();
    for peer in others.iter().filter(|peer| peer.name() != dead.name()) {
        eventually_async("a death is known", async || {
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
        ensure!(use_at_once::on(&b, probe).await? == 3);
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
        nothing_is_left(&a).await
    })
}
