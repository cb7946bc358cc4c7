//! R1-R3: a value lives while it is referred to, and no longer, whatever happens to connections and
//! holders.

use anyhow::{Context as _, ensure};
use farref::Error;
use farref_testkit::eventually_async;

use super::{live, nothing_is_left};
use crate::functions::{Probe, ProbeRRef as _, hold, probes, release, use_held};
use crate::group::{self, proxied};
use crate::{Options, Tests, amount};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "a_value_lives_while_a_reference_to_it_is_in_flight",
            a_value_lives_while_a_reference_to_it_is_in_flight,
        ),
        (
            "a_value_lives_while_anyone_holds_it_and_goes_with_the_last",
            a_value_lives_while_anyone_holds_it_and_goes_with_the_last,
        ),
        (
            "what_a_killed_worker_held_is_freed",
            what_a_killed_worker_held_is_freed,
        ),
        (
            "cut_connections_neither_lose_nor_bring_back_references",
            cut_connections_neither_lose_nor_bring_back_references,
        ),
    ]
}

/// R1
fn a_value_lives_while_a_reference_to_it_is_in_flight() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let key = || "late".to_owned();
        let probe = Probe::new_on(&a, 7).remote();
        ensure!(probe.value().await? == 7);
        // `b` reads nothing for a while: the call has the reference, and nobody else.
        group.stop("b")?;
        let handing = hold::on(&b, key(), probe).start();
        for _ in 0..200 {
            live(&a, 1).await?;
        }
        group.resume("b")?;
        handing.await?;
        ensure!(use_held::on(&b, key()).await? == 7);
        live(&a, 1).await?;
        ensure!(release::on(&b, key()).await?);
        nothing_is_left(&a).await
    })
}

/// R1, R2
fn a_value_lives_while_anyone_holds_it_and_goes_with_the_last() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b", "c"], async |group| {
        let (a, b, c) = (group.peer("a")?, group.peer("b")?, group.peer("c")?);
        let all = [&a, &b, &c];
        for round in 0..amount(12, 60_u64) {
            let key = format!("round {round}");
            let probe = Probe::new_on(&a, round).remote();
            for peer in all {
                hold::on(peer, key.clone(), probe.clone()).await?;
            }
            // Only a use tells that the constructor has run.
            ensure!(probe.value().await? == round);
            drop(probe);
            // Each of the three is the last one in turn, the owner among them.
            for step in 0..3 {
                let next = |n: usize| all[(round as usize + step + n) % 3];
                let last = all[(round as usize + 2) % 3];
                live(&a, 1).await?;
                ensure!(use_held::on(last, key.clone()).await? == round);
                ensure!(release::on(next(0), key.clone()).await?);
            }
            nothing_is_left(&a).await?;
        }
        Ok(())
    })
}

/// R2
fn what_a_killed_worker_held_is_freed() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let shared = Probe::new_on(&a, 1).remote();
        hold::on(&b, "shared".to_owned(), shared.clone()).await?;
        for n in 0..50 {
            let probe = Probe::new_on(&a, n).remote();
            ensure!(probe.value().await? == n);
            hold::on(&b, format!("alone {n}"), probe).await?;
        }
        // A value of its own, to which the others refer.
        let lost = Probe::new_on(&b, 2).remote();
        hold::on(&a, "lost".to_owned(), lost.clone()).await?;
        live(&a, 51).await?;
        group.kill("b")?;
        eventually_async("only the shared one is left", async || {
            Ok(probes::on(&a).await? == 1)
        })
        .await?;
        ensure!(shared.value().await? == 1);
        let error = lost.value().await.err().context("its owner is dead")?;
        ensure!(
            matches!(&error, Error::OwnerLost { owner } if &**owner == "b"),
            "{error:?}"
        );
        ensure!(release::on(&a, "lost".to_owned()).await?);
        drop((shared, lost));
        nothing_is_left(&a).await
    })
}

/// R3
fn cut_connections_neither_lose_nor_bring_back_references() -> anyhow::Result<()> {
    let (proxy, options) = proxied(&["driver", "a", "b"])?;
    group::run(options, &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        proxy.cut_repeatedly();
        let mut round = 0_u64;
        while round < amount(30, 100) || proxy.cuts() <= 50 {
            round += 1;
            let mut steps = Vec::new();
            for n in 0..10 {
                let probe = Probe::new_on(&a, n).remote();
                let (b, key) = (b.clone(), format!("{round} {n}"));
                steps.push(tokio::spawn(async move {
                    // Half of them lose the holder first, the others the maker.
                    let kept = (n % 2 == 0).then(|| probe.clone());
                    hold::on(&b, key.clone(), probe).await?;
                    ensure!(use_held::on(&b, key.clone()).await? == n);
                    ensure!(release::on(&b, key).await?);
                    if let Some(kept) = kept {
                        ensure!(kept.value().await? == n);
                    }
                    Ok(())
                }));
            }
            if round.is_multiple_of(10) {
                proxy.cut_once();
            }
            for step in steps {
                step.await??;
            }
        }
        proxy.pass();
        println!("R3: {} cuts", proxy.cuts());
        // Twice: whatever is late has come by the second time.
        for worker in [&a, &b, &a, &b] {
            nothing_is_left(worker).await?;
        }
        eventually_async("nothing is left here", async || {
            Ok(group.me.snapshot().references.is_empty())
        })
        .await
    })
}
