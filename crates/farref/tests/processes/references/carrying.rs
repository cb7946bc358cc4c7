//! R5: if the message that carries references fails, in whatever way, none of them is left open.

use anyhow::{Context as _, bail, ensure};
use farref::{Blob, Error, RRef};
use farref_testkit::eventually_async;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{live, nothing_is_left};
use crate::counts::{has_counted, never_end_with};
use crate::functions::{Probe, ProbeRRef as _, add};
use crate::group::{self, Group};
use crate::{Options, Tests};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "arguments_that_cannot_be_written_leave_no_reference_open",
            arguments_that_cannot_be_written_leave_no_reference_open,
        ),
        (
            "arguments_that_cannot_be_read_leave_no_reference_open",
            arguments_that_cannot_be_read_leave_no_reference_open,
        ),
        (
            "results_that_cannot_be_written_or_read_leave_no_reference_open",
            results_that_cannot_be_written_or_read_leave_no_reference_open,
        ),
        (
            "messages_that_are_too_large_leave_no_reference_open",
            messages_that_are_too_large_leave_no_reference_open,
        ),
        (
            "calls_to_a_worker_that_dies_leave_no_reference_open",
            calls_to_a_worker_that_dies_leave_no_reference_open,
        ),
        (
            "calls_that_are_cancelled_leave_no_reference_open",
            calls_that_are_cancelled_leave_no_reference_open,
        ),
    ]
}

/// Cannot be written.
#[derive(Deserialize)]
struct Unwritable;

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("it is unwritable"))
    }
}

/// Cannot be read.
#[derive(Serialize)]
struct Unreadable;

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("it is unreadable"))
    }
}

#[farref::remote]
async fn take_unwritable(probe: RRef<Probe>, bad: Unwritable) -> u64 {
    drop((probe, bad));
    1
}

#[farref::remote]
async fn take_unreadable(probe: RRef<Probe>, bad: Unreadable) -> u64 {
    drop((probe, bad));
    1
}

#[farref::remote]
async fn give_unwritable(probe: RRef<Probe>) -> (RRef<Probe>, Unwritable) {
    (probe, Unwritable)
}

#[farref::remote]
async fn give_unreadable(probe: RRef<Probe>) -> (RRef<Probe>, Unreadable) {
    (probe, Unreadable)
}

#[farref::remote]
async fn take_large(probe: RRef<Probe>, blob: Blob) -> usize {
    drop(probe);
    blob.len()
}

#[farref::remote]
async fn give_large(probe: RRef<Probe>, size: usize) -> (RRef<Probe>, Blob) {
    (probe, vec![0; size].into())
}

/// Whether a call failed because its arguments or its result cannot be written, sent or read.
fn not_coded<T>(outcome: farref::Result<T>, part: &str, verb: &str) -> anyhow::Result<()> {
    let error = outcome.err().context("it worked")?;
    let Error::Codec { what, action, .. } = &error else {
        bail!("{error:?}");
    };
    ensure!(*what == part && *action == verb, "{error}");
    Ok(())
}

/// A probe on `a` that the driver holds.
async fn probe(group: &Group) -> anyhow::Result<RRef<Probe>> {
    let probe = Probe::new_on(&group.peer("a")?, 1).remote();
    ensure!(probe.value().await? == 1);
    Ok(probe)
}

/// The probe lives as long as the driver holds it, and nobody else does.
async fn only_the_driver_holds(group: &Group, probe: RRef<Probe>) -> anyhow::Result<()> {
    let a = group.peer("a")?;
    live(&a, 1).await?;
    eventually_async("only the driver holds the probe", async || {
        let snapshot = a.snapshot().await?;
        let [reference] = &snapshot.references[..] else {
            return Ok(false);
        };
        Ok(reference.holders == ["driver"])
    })
    .await?;
    drop(probe);
    nothing_is_left(&a).await
}

/// R5
fn arguments_that_cannot_be_written_leave_no_reference_open() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let b = group.peer("b")?;
        let probe = probe(group).await?;
        for _ in 0..10 {
            let outcome = take_unwritable::on(&b, probe.clone(), Unwritable).await;
            not_coded(outcome, "the arguments", "written")?;
            let there = take_unwritable::on(&b, probe.clone(), Unwritable).remote();
            not_coded(there.to_here().await, "the arguments", "written")?;
        }
        only_the_driver_holds(group, probe).await
    })
}

/// R5
fn arguments_that_cannot_be_read_leave_no_reference_open() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let b = group.peer("b")?;
        let probe = probe(group).await?;
        for _ in 0..10 {
            let outcome = take_unreadable::on(&b, probe.clone(), Unreadable).await;
            not_coded(outcome, "the arguments", "read")?;
            let there = take_unreadable::on(&b, probe.clone(), Unreadable).remote();
            not_coded(there.to_here().await, "the arguments", "read")?;
        }
        only_the_driver_holds(group, probe).await
    })
}

/// R5
fn results_that_cannot_be_written_or_read_leave_no_reference_open() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let b = group.peer("b")?;
        let probe = probe(group).await?;
        for _ in 0..10 {
            let outcome = give_unwritable::on(&b, probe.clone()).await;
            not_coded(outcome, "the result", "written")?;
            let outcome = give_unreadable::on(&b, probe.clone()).await;
            not_coded(outcome, "the result", "read")?;
            // The value is there and has the reference; only its copy fails.
            let there = give_unwritable::on(&b, probe.clone()).remote();
            not_coded(there.to_here().await, "the result", "written")?;
            let there = give_unreadable::on(&b, probe.clone()).remote();
            not_coded(there.to_here().await, "the result", "read")?;
        }
        only_the_driver_holds(group, probe).await
    })
}

/// R5
fn messages_that_are_too_large_leave_no_reference_open() -> anyhow::Result<()> {
    let options = Options {
        max_message_bytes: 1 << 20,
        ..Options::default()
    };
    group::run(options, &["a", "b"], async |group| {
        let b = group.peer("b")?;
        let probe = probe(group).await?;
        for size in [(1 << 20) - 64, 1 << 20, 2 << 20] {
            let outcome = take_large::on(&b, probe.clone(), vec![0; size].into()).await;
            not_coded(outcome, "the arguments", "sent")?;
            let there = take_large::on(&b, probe.clone(), vec![0; size].into()).remote();
            not_coded(there.to_here().await, "the arguments", "sent")?;
            let outcome = give_large::on(&b, probe.clone(), size).await;
            not_coded(outcome, "the result", "written")?;
        }
        let fits = 1 << 19;
        ensure!(take_large::on(&b, probe.clone(), vec![0; fits].into()).await? == fits);
        only_the_driver_holds(group, probe).await
    })
}

/// R5
fn calls_to_a_worker_that_dies_leave_no_reference_open() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let b = group.peer("b")?;
        let probe = probe(group).await?;
        let calls: Vec<_> = (0..100)
            .map(|_| never_end_with::on(&b, "dies".to_owned(), probe.clone()).start())
            .collect();
        let there: Vec<_> = (0..100)
            .map(|_| never_end_with::on(&b, "dies".to_owned(), probe.clone()).remote())
            .collect();
        eventually_async("all run", async || has_counted(&b, "dies began", 200).await).await?;
        // These are still on their way.
        group.stop("b")?;
        let late: Vec<_> = (0..100)
            .map(|_| never_end_with::on(&b, "dies".to_owned(), probe.clone()).start())
            .collect();
        group.kill("b")?;
        for call in calls.into_iter().chain(late) {
            let error = call.await.err().context("it never ends")?;
            ensure!(
                matches!(&error, Error::PeerLost { peer, .. } if &**peer == "b"),
                "{error:?}"
            );
        }
        for value in there {
            let error = value.to_here().await.err().context("it never ends")?;
            ensure!(
                matches!(&error, Error::OwnerLost { owner } if &**owner == "b"),
                "{error:?}"
            );
        }
        // After its death no fork is made for it either.
        let error = never_end_with::on(&b, "dies".to_owned(), probe.clone()).await;
        ensure!(matches!(error, Err(Error::PeerLost { .. })), "{error:?}");
        only_the_driver_holds(group, probe).await
    })
}

/// R5
fn calls_that_are_cancelled_leave_no_reference_open() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let b = group.peer("b")?;
        let probe = probe(group).await?;
        for round in 0..20 {
            let calls: Vec<_> = (0..50)
                .map(|_| never_end_with::on(&b, "cancelled".to_owned(), probe.clone()))
                .map(|call| call.timeout(None).start())
                .collect();
            // At any stage.
            for _ in 0..round % 4 {
                add::on(&b, 1, 1).await?;
            }
            drop(calls);
        }
        only_the_driver_holds(group, probe).await
    })
}
