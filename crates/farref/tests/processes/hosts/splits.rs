//! A network that splits into a side with most of the workers and one with few, and what each side does.
//!
//! `driver` and `a` are on host 1, `b` is on host 2, `c` and `d` are on host 3, which is shut off from the others.

use anyhow::{Context as _, ensure};
use farref::{Error, Worker};
use farref_testkit::{Scratch, eventually_async, run_test};

use super::Test;
use super::network::Network;
use super::team::{Plan, Team, options};
use crate::functions::{
    Probe, ProbeRRef, add, add_on, hold, in_background, open, pid, probes, until_waiting,
    write_what_comes,
};
use crate::group::{Options, SILENT_MS};
use crate::worker::IN_MINORITY;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        (
            "each_side_of_a_split_goes_on_without_the_other",
            3,
            each_goes_on,
        ),
        (
            "a_side_that_is_no_majority_gives_up_if_it_needs_one",
            3,
            needs_majority,
        ),
    ]
}

/// When those are gone, calls another, writes what comes of it to a file, and opens a gate of its own.
#[farref::remote]
async fn go_on_without(
    lost: Vec<String>,
    with: String,
    gate: String,
    path: String,
) -> anyhow::Result<()> {
    let me = Worker::current().context("no worker")?;
    let with = me.peer(&with)?;
    let lost: Vec<_> = lost
        .iter()
        .map(|name| me.peer(name))
        .collect::<Result<_, _>>()?;
    in_background(async move {
        for peer in lost {
            let _ = peer.gone().await;
        }
        let sum = add::on(&with, 1, 2).await;
        let _ = std::fs::write(path, format!("{sum:?}"));
        let _ = open::on(&me.me(), gate).await;
    });
    Ok(())
}

async fn start(network: &Network, require_majority: bool) -> anyhow::Result<Team<'_>> {
    let options = Options {
        peer_timeout_ms: SILENT_MS,
        may_be_evicted: require_majority,
        require_majority,
        ..options()
    };
    let plan = Plan::new(network, options).worker("a", 1).worker("b", 2);
    let team = plan.worker("c", 3).worker("d", 3).start().await?;
    team.calls_all_to_all().await?;
    Ok(team)
}

/// The larger side has noticed: calls to the others fail, what they held is freed, and it works on.
async fn goes_on_with_three(team: &Team<'_>) -> anyhow::Result<()> {
    for lost in ["c", "d"] {
        let lost = team.peer(lost)?;
        lost.gone().await?;
        let outcome = add::on(&lost, 1, 2).await;
        ensure!(
            matches!(outcome, Err(Error::PeerLost { .. })),
            "{outcome:?}"
        );
    }
    let b = team.peer("b")?;
    eventually_async("what they held is freed", async || {
        Ok(probes::on(&b).await? == 0)
    })
    .await?;
    for (from, to) in [("a", "b"), ("b", "a"), ("b", "driver")] {
        ensure!(add_on::on(&team.peer(from)?, to.into(), 1, 2).await? == 3);
    }
    Ok(())
}

/// A value on `b` that only `c` and `d` hold.
async fn hold_on_the_other_side(team: &Team<'_>) -> anyhow::Result<()> {
    let probe = Probe::new_on(&team.peer("b")?, 1).remote();
    ensure!(probe.value().await? == 1);
    hold::on(&team.peer("c")?, "k".into(), probe.clone()).await?;
    hold::on(&team.peer("d")?, "k".into(), probe).await?;
    Ok(())
}

/// F6
fn each_goes_on(network: &Network) -> anyhow::Result<()> {
    run_test(async {
        let scratch = Scratch::new()?;
        let mut team = start(network, false).await?;
        let (c, d) = (team.peer("c")?, team.peer("d")?);
        // While `d` waits for `c` their side does not come to rest, and so does not end.
        let (waited, called) = (scratch.file("waited"), scratch.file("called"));
        write_what_comes::on(&d, "c".into(), "gate".into(), waited.clone()).await?;
        until_waiting::on(&c, "gate".into(), 1).await?;
        let lost = ["driver", "a", "b"].map(str::to_owned).to_vec();
        go_on_without::on(&c, lost, "d".into(), "gate".into(), called.clone()).await?;

        network.shut_off(3)?;
        goes_on_with_three(&team).await?;
        // Nobody of the smaller side has work of its own: it ends as a group of its own, well.
        for name in ["c", "d"] {
            let code = team.ended(name).await?;
            ensure!(code == Some(0), "`{name}` ended with {code:?}");
        }
        let (waited, called) = (
            std::fs::read_to_string(waited)?,
            std::fs::read_to_string(called)?,
        );
        ensure!(
            waited == "Ok(())" && called == "Ok(3)",
            "{waited}, {called}"
        );
        network.let_through(3)?;
        team.finish().await
    })
}

/// F7
fn needs_majority(network: &Network) -> anyhow::Result<()> {
    run_test(async {
        let scratch = Scratch::new()?;
        let mut team = start(network, true).await?;
        let (c, d) = (team.peer("c")?, team.peer("d")?);
        let before = pid::on(&c).await?;
        hold_on_the_other_side(&team).await?;
        let waited = scratch.file("waited");
        write_what_comes::on(&d, "c".into(), "gate".into(), waited.clone()).await?;
        until_waiting::on(&c, "gate".into(), 1).await?;

        network.shut_off(3)?;
        goes_on_with_three(&team).await?;
        for name in ["c", "d"] {
            let code = team.ended(name).await?;
            ensure!(code == Some(IN_MINORITY), "`{name}` ended with {code:?}");
        }
        // One of the two may have noticed before the other, which then has lost it as well.
        let waited = std::fs::read_to_string(waited)?;
        ensure!(
            waited.contains("Minority") || waited.contains("PeerLost"),
            "its call ended with {waited}"
        );

        network.let_through(3)?;
        for name in ["c", "d"] {
            team.restart(name).await?;
        }
        ensure!(pid::on(&team.peer("c")?).await? != before);
        for from in ["a", "b", "c", "d"] {
            for to in ["a", "b", "c", "d"] {
                team.reaches(from, to).await?;
            }
        }
        team.calls_all_to_all().await?;
        team.finish().await
    })
}
