//! Cables that are pulled and put back: in time, or too late.

use std::time::Duration;

use anyhow::{bail, ensure};

use crate::Test;
use crate::functions::{Probe, ProbeRRef, add, add_on, open, pid, until_waiting, wait_at};
use crate::group::Options;
use crate::launch;
use crate::network::Network;
use crate::team::{Plan, options};

pub(crate) fn tests() -> Vec<Test> {
    vec![(
        "a_cable_that_is_put_back_in_time_loses_nothing",
        3,
        put_back_in_time,
    )]
}

/// For longer than a connection may stand still, and not for as long as a peer may.
const A_WHILE: Duration = Duration::from_millis(2_500);

/// D2, F1
fn put_back_in_time(network: &Network) -> anyhow::Result<()> {
    launch::run(async || {
        let options = Options {
            peer_timeout_ms: 30_000,
            ..options()
        };
        let plan = Plan::new(network, options).worker("b", 2).worker("c", 3);
        let team = plan.start().await?;
        let (b, c) = (team.peer("b")?, team.peer("c")?);
        team.calls_all_to_all().await?;
        let before = pid::on(&b).await?;
        let probe = Probe::new_on(&b, 0).remote();
        let waiting = wait_at::on(&b, "gate".into()).start();
        until_waiting::on(&b, "gate".into(), 1).await?;
        // Some are on their way when it is pulled, some are made after that.
        let mut counting: Vec<_> = (0..50).map(|_| probe.add(1).start()).collect();
        network.pull(2)?;
        counting.extend((0..50).map(|_| probe.add(1).start()));
        let theirs: Vec<_> = (0..50)
            .map(|n| add_on::on(&c, "b".into(), n, 2).start())
            .collect();
        tokio::select! {
            _ = add::on(&b, 1, 2) => bail!("the cable is not pulled"),
            // This is what the test is about, not a means to wait for something.
            () = tokio::time::sleep(A_WHILE) => {}
        }
        ensure!(add_on::on(&c, "driver".into(), 1, 2).await? == 3);
        network.plug(2)?;

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
