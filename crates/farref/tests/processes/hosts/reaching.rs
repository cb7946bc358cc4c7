//! Workers on several hosts reach each other, at the addresses that they tell each other.

use std::net::Ipv4Addr;

use anyhow::ensure;
use farref_testkit::{eventually_async, run_test};

use super::Test;
use super::network::Network;
use super::team::{Plan, Team, certified, options};
use crate::functions::{Probe, ProbeRRef as _, add_on, hand_on, hold, probes, release, use_held};
use crate::group::Options;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        ("three_hosts_meet_and_share_what_they_have", 3, |network| {
            three_hosts(network, certified())
        }),
        (
            "three_hosts_without_certificates_meet_if_they_may",
            3,
            |network| three_hosts(network, options()),
        ),
        ("three_hosts_meet_by_ipv6", 3, by_ipv6),
        (
            "a_host_with_two_networks_is_reached_where_it_says",
            3,
            two_networks,
        ),
    ]
}

fn three_hosts(network: &Network, options: Options) -> anyhow::Result<()> {
    run_test(async {
        let plan = Plan::new(network, options).worker("b", 2).worker("c", 3);
        let team = plan.start().await?;
        team.calls_all_to_all().await?;
        team.are_connected("tcp://10.77.0.").await?;
        hand_around(&team).await?;
        team.finish().await
    })
}

fn by_ipv6(network: &Network) -> anyhow::Result<()> {
    run_test(async {
        let plan = Plan::new(network, certified()).meeting_at(network.long_address(1));
        let team = plan.worker("b", 2).worker("c", 3).start().await?;
        team.calls_all_to_all().await?;
        team.are_connected("tcp://[fd77::").await?;
        hand_around(&team).await?;
        team.finish().await
    })
}

/// A value of `b` goes by way of `c` to the driver's own, and is freed when nobody has it (R1, R2, R4).
async fn hand_around(team: &Team<'_>) -> anyhow::Result<()> {
    let (b, c) = (team.peer("b")?, team.peer("c")?);
    let probe = Probe::new_on(&b, 7).remote();
    // What is counted below has to be made first.
    ensure!(probe.value().await? == 7);
    hold::on(&c, "mine".into(), probe.clone()).await?;
    hand_on::on(&c, "driver".into(), "through c".into(), probe.clone()).await?;
    hand_on::on(&b, "c".into(), "through b".into(), probe.clone()).await?;
    drop(probe);
    ensure!(release::on(&c, "mine".into()).await?);
    let me = team.me.me();
    for (holder, key) in [(&c, "through b"), (&me, "through c")] {
        ensure!(probes::on(&b).await? == 1);
        ensure!(use_held::on(holder, key.into()).await? == 7);
        ensure!(release::on(holder, key.into()).await?);
    }
    eventually_async(
        "the value is freed",
        async || Ok(probes::on(&b).await? == 0),
    )
    .await
}

/// They meet in the one network and talk in the other: with the cable of the first one pulled, workers that have not
/// talked yet do.
fn two_networks(network: &Network) -> anyhow::Result<()> {
    run_test(async {
        let in_second = |host, bind: Option<Ipv4Addr>| Options {
            advertise: Some(network.second_address(host)),
            bind: bind.map(Into::into),
            ..options()
        };
        let anywhere = Some(Ipv4Addr::UNSPECIFIED);
        let plan = Plan::new(network, in_second(1, None))
            .worker_with("b", 2, in_second(2, anywhere))
            .worker_with("c", 3, in_second(3, anywhere));
        let team = plan.start().await?;
        network.pull(2)?;
        network.pull(3)?;
        ensure!(add_on::on(&team.peer("b")?, "c".into(), 1, 2).await? == 3);
        team.calls_all_to_all().await?;
        team.are_connected("tcp://10.78.0.").await?;
        network.plug(2)?;
        network.plug(3)?;
        hand_around(&team).await?;
        team.finish().await
    })
}
