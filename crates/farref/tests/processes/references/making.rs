//! R6: `remote()` is acknowledged when the owner has registered it; the constructor takes its time.

use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use farref::Error;

use super::{live, nothing_is_left};
use crate::functions::{Probe, open, until_waiting, wait_at};
use crate::group;
use crate::{Options, Tests};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "a_slow_constructor_is_no_timeout",
            a_slow_constructor_is_no_timeout,
        ),
        (
            "a_constructor_that_fails_fails_every_use",
            a_constructor_that_fails_fails_every_use,
        ),
        (
            "a_value_that_nobody_waits_for_is_freed_when_it_is_made",
            a_value_that_nobody_waits_for_is_freed_when_it_is_made,
        ),
    ]
}

/// A value that takes its time. A call of its constructor has little.
struct Slow(Probe);

#[farref::remote]
impl Slow {
    #[remote(timeout = "500ms")]
    pub(crate) async fn made_at(gate: String, value: u64) -> Self {
        wait_at(gate).await;
        Self(Probe::new(value))
    }

    pub(crate) async fn failing(gate: String) -> anyhow::Result<Self> {
        wait_at(gate).await;
        bail!("no paper")
    }

    pub(crate) async fn panicking(gate: String) -> Self {
        wait_at(gate).await;
        panic!("no ink")
    }

    pub(crate) async fn value(&self) -> u64 {
        self.0.value
    }
}

/// R6
fn a_slow_constructor_is_no_timeout() -> anyhow::Result<()> {
    group::run(Options::default(), &["a"], async |group| {
        let a = group.peer("a")?;
        let gate = || "slow".to_owned();
        let slow = Slow::made_at_on(&a, gate(), 5).remote();
        slow.confirmed().await?;
        until_waiting::on(&a, gate(), 1).await?;
        // A use waits for the value, as long as it is willing to, and past the time that a call would have.
        let impatient = slow.value().timeout(Duration::from_secs(1)).await;
        ensure!(
            matches!(impatient, Err(Error::Timeout { .. })),
            "{impatient:?}"
        );
        let patient = slow.value().start();
        live(&a, 0).await?;
        open::on(&a, gate()).await?;
        ensure!(patient.await? == 5);
        live(&a, 1).await?;
        drop(slow);
        nothing_is_left(&a).await
    })
}

/// R6
fn a_constructor_that_fails_fails_every_use() -> anyhow::Result<()> {
    group::run(Options::default(), &["a"], async |group| {
        let a = group.peer("a")?;
        let gate = || "fails".to_owned();
        let failing = [
            (Slow::failing_on(&a, gate()).remote(), false, "no paper"),
            (Slow::panicking_on(&a, gate()).remote(), true, "no ink"),
        ];
        let mut waiting = Vec::new();
        for (value, ..) in &failing {
            value.confirmed().await?;
            waiting.push(value.value().start());
        }
        until_waiting::on(&a, gate(), 2).await?;
        open::on(&a, gate()).await?;
        for (waiting, (value, panics, message)) in waiting.into_iter().zip(&failing) {
            for outcome in [waiting.await, value.value().await] {
                let error = outcome.err().context("there is no value")?;
                let Error::Remote(remote) = &error else {
                    bail!("{error:?}");
                };
                ensure!(
                    &*remote.worker == "a" && remote.panicked == *panics,
                    "{error:?}"
                );
                ensure!(remote.message().contains(message), "{error}");
            }
        }
        drop(failing);
        nothing_is_left(&a).await
    })
}

/// R2, R6
fn a_value_that_nobody_waits_for_is_freed_when_it_is_made() -> anyhow::Result<()> {
    group::run(Options::default(), &["a"], async |group| {
        let a = group.peer("a")?;
        let gate = || "unwanted".to_owned();
        for _ in 0..50 {
            drop(Slow::made_at_on(&a, gate(), 5).remote());
        }
        until_waiting::on(&a, gate(), 50).await?;
        open::on(&a, gate()).await?;
        until_waiting::on(&a, gate(), 0).await?;
        nothing_is_left(&a).await
    })
}
