//! Cables that are pulled and put back: in time, or too late.

use std::time::Duration;

use anyhow::{bail, ensure};
use farref::Error;
use farref_testkit::{Scratch, eventually_async, run_test};

use super::Test;
use super::network::Network;
use super::team::{Plan, certified};
use crate::functions::{
    Probe, ProbeRRef, add, add_on, hold, open, pid, probes, release, until_waiting, use_held,
    wait_at, write_what_comes,
};
use crate::group::{NEVER_MS, Options, SILENT_MS};
use crate::worker::EVICTED;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        (
            "a_cable_that_is_put_back_in_time_loses_nothing",
            3,
            |network| silence(network, Network::pull, Network::plug),
        ),
        (
            "a_firewall_that_drops_for_a_while_loses_nothing",
            3,
            |network| {
                network.know_each_other()?;
                silence(network, Network::shut_off, Network::let_through)
            },
        ),
        (
            "a_host_whose_cable_is_put_back_too_late_is_told_and_comes_back",
            3,
            put_back_too_late,
        ),
    ]
}

/// For longer than a connection may stand still, and not for as long as a peer may.
const A_WHILE: Duration = Duration::from_millis(2_500);

/// Something between the hosts is done, and undone.
type Change = fn(&Network, u8) -> anyhow::Result<()>;

/// D2, F1: host 2 is cut off for a while.
fn silence(network: &Network, cut: Change, mend: Change) -> anyhow::Result<()> {
    run_test(async {
        let plan = Plan::new(network, certified())
            .worker("b", 2)
            .worker("c", 3);
        let team = plan.start().await?;
        let (b, c) = (team.peer("b")?, team.peer("c")?);
        team.calls_all_to_all().await?;
        let before = pid::on(&b).await?;
        let probe = Probe::new_on(&b, 0).remote();
        let waiting = wait_at::on(&b, "gate".into()).start();
        until_waiting::on(&b, "gate".into(), 1).await?;
        // Some are on their way when it is cut off, some are made after that.
        let mut counting: Vec<_> = (0..50).map(|_| probe.add(1).start()).collect();
        cut(network, 2)?;
        counting.extend((0..50).map(|_| probe.add(1).start()));
        let theirs: Vec<_> = (0..50)
            .map(|n| add_on::on(&c, "b".into(), n, 2).start())
            .collect();
        tokio::select! {
            _ = add::on(&b, 1, 2) => bail!("it is not cut off"),
            // This is what the test is about, not a means to wait for something.
            () = tokio::time::sleep(A_WHILE) => {}
        }
        ensure!(add_on::on(&c, "driver".into(), 1, 2).await? == 3);
        mend(network, 2)?;

        // Each was carried out once, in the order in which they were made.
        for (n, call) in (1..).zip(counting) {
            ensure!(call.await? == n);
        }
        for (n, call) in (0..).zip(theirs) {
            ensure!(call.await? == n + 2);
        }
        open::on(&b, "gate".into()).await?;
        waiting.await?;
        ensure!(probe.value().await? == 100 && pid::on(&b).await? == before);
        drop(probe);
        team.calls_all_to_all().await?;
        team.are_connected("tcp://10.77.0.").await?;
        team.finish().await
    })
}

/// F1, F2, F3: the others have given host 2 up. Its worker is more patient than they are, so that it is still there to be told.
fn put_back_too_late(network: &Network) -> anyhow::Result<()> {
    run_test(async {
        let scratch = Scratch::new()?;
        let with_timeout = |peer_timeout_ms| Options {
            peer_timeout_ms,
            may_be_evicted: true,
            ..certified()
        };
        let plan = Plan::new(network, with_timeout(SILENT_MS))
            .worker_with("b", 2, with_timeout(NEVER_MS))
            .worker("c", 3);
        let mut team = plan.start().await?;
        let (b, c) = (team.peer("b")?, team.peer("c")?);
        let before = pid::on(&b).await?;
        // `b` holds a value of `c`, and `c` one of `b`; each waits for the other.
        let of_b = Probe::new_on(&b, 1).remote();
        let of_c = Probe::new_on(&c, 2).remote();
        ensure!(of_b.value().await? == 1 && of_c.value().await? == 2);
        hold::on(&c, "of b".into(), of_b.clone()).await?;
        hold::on(&b, "of c".into(), of_c.clone()).await?;
        drop(of_c);
        ensure!(use_held::on(&b, "of c".into()).await? == 2);
        let outcome = scratch.file("outcome");
        write_what_comes::on(&b, "c".into(), "theirs".into(), outcome.clone()).await?;
        until_waiting::on(&c, "theirs".into(), 1).await?;
        let mine = wait_at::on(&b, "mine".into()).timeout(None).start();
        until_waiting::on(&b, "mine".into(), 1).await?;

        network.pull(2)?;
        let mine = mine.await;
        ensure!(matches!(mine, Err(Error::PeerLost { .. })), "{mine:?}");
        let used = of_b.value().await;
        let is_lost = matches!(
            used,
            Err(Error::OwnerLost { .. } | Error::CreatorLost { .. })
        );
        ensure!(is_lost, "{used:?}");
        drop(of_b);
        until_waiting::on(&c, "theirs".into(), 0).await?;
        eventually_async("what b held is freed", async || {
            Ok(probes::on(&c).await? == 0)
        })
        .await?;
        ensure!(release::on(&c, "of b".into()).await?);
        team.reaches("c", "driver").await?;

        network.plug(2)?;
        let code = team.ended("b").await?;
        ensure!(code == Some(EVICTED), "it ended with {code:?}");
        let outcome = std::fs::read_to_string(outcome)?;
        ensure!(outcome.contains("Evicted"), "its call ended with {outcome}");

        let b = team.restart("b").await?;
        ensure!(pid::on(&b).await? != before);
        ensure!(probes::on(&b).await? == 0);
        team.reaches("c", "b").await?;
        team.calls_all_to_all().await?;
        team.finish().await
    })
}
