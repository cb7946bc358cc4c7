//! Firewalls that drop instead of refusing, where somebody joins: nothing comes back, and the error has to say from where.

use std::net::SocketAddr;

use anyhow::{Context as _, ensure};
use farref::Worker;
use farref_testkit::{TEST_TIMEOUT, free_port, run_test};

use super::Test;
use super::network::Network;
use super::team::options;
use crate::functions::add;
use crate::group::Options;
use crate::launch::Launch;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        (
            "who_cannot_reach_the_store_is_told_where_it_is",
            2,
            no_store,
        ),
        (
            "who_cannot_reach_the_workers_is_told_where_they_are",
            2,
            no_workers,
        ),
    ]
}

/// A worker that founds a group which grows, and hosts its store.
async fn founder(network: &Network) -> anyhow::Result<(Worker, SocketAddr)> {
    let place = SocketAddr::new(network.address(1), free_port()?);
    let builder = Worker::builder("driver").rendezvous(&format!("tcp://{place}"));
    let me = options().apply(builder).join().await?;
    Ok((me, place))
}

/// What somebody on host 2 complains of who wants to join.
async fn complaints(network: &Network, place: SocketAddr) -> anyhow::Result<String> {
    let options = Options {
        // Enough for a busy machine to read the store.
        join_timeout_ms: 8_000,
        ..options()
    };
    let late = Launch::with(network.command_on(2)?, &options)?
        .env("FARREF_NAME", "late")
        .env("FARREF_RENDEZVOUS", format!("tcp://{place}"))
        .start("late")?;
    let (status, complaints) = late.ended().await?;
    ensure!(!status.success(), "it has joined");
    Ok(complaints)
}

/// With the firewall out of the way the same worker joins.
async fn joins(network: &Network, me: &Worker, place: SocketAddr) -> anyhow::Result<()> {
    let late = Launch::with(network.command_on(2)?, &options())?
        .env("FARREF_NAME", "late")
        .env("FARREF_RENDEZVOUS", format!("tcp://{place}"))
        .start("late")?;
    let peer = me.wait_for_peer("late", TEST_TIMEOUT).await?;
    ensure!(add::on(&peer, 1, 2).await? == 3);
    me.shutdown().await?;
    late.ended_well().await
}

fn no_store(network: &Network) -> anyhow::Result<()> {
    run_test(async {
        network.know_each_other()?;
        let (me, place) = founder(network).await?;
        network.shut_off(2)?;
        let complaints = complaints(network, place).await?;
        let says = |words: &str| complaints.contains(words);
        ensure!(
            says(&format!("no store answers at {place}")) && says("is the port open"),
            "{complaints}"
        );
        network.let_through(2)?;
        joins(network, &me, place).await
    })
}

/// The store is reached, and its host's worker is not: another port.
fn no_workers(network: &Network) -> anyhow::Result<()> {
    run_test(async {
        let (me, place) = founder(network).await?;
        let snapshot = me.snapshot();
        let address = snapshot.peers[0].addresses.first();
        let address = address.context("it listens nowhere")?;
        let at: SocketAddr = address
            .strip_prefix("tcp://")
            .context("not by TCP")?
            .parse()?;
        network.drop_from(1, at.port(), 2)?;
        let complaints = complaints(network, place).await?;
        let says = |words: &str| complaints.contains(words);
        ensure!(
            says(&format!("driver at {address}")) && says("ports open between the hosts"),
            "{complaints}"
        );
        network.drop_no_more(1, at.port(), 2)?;
        joins(network, &me, place).await
    })
}
