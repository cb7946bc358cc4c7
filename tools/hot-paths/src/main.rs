//! One hot path, over and over, for tools that count instructions.
//!
//! Two workers in one process and on one thread, over the in-memory wire, so that two runs do nearly the same. What one
//! operation costs is the difference between two runs of different length. `bench/instructions/check` counts that, beside
//! what it was.
//!
//! The paths: `call` (an empty call, one after the other), `pipelined` (64 at once), `fetch` (create a reference, fetch
//! its value, drop it), `share` (hand a reference over).

use anyhow::{Context as _, bail, ensure};
use farref::testing::Cluster;
use farref::{Peer, RRef, Worker};

/// How many calls are open at once in a pipeline.
const AT_ONCE: usize = 64;

#[farref::remote]
async fn nothing() {}

#[farref::remote]
async fn one() -> u64 {
    1
}

#[farref::remote]
async fn take(_: RRef<u64>) {}

fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: farref-hot-paths call|pipelined|fetch|share COUNT";
    let path = arguments.next().context(usage)?;
    let count = arguments.next().context(usage)?.parse().context(usage)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        let cluster = Cluster::start(2).await?;
        let me = cluster.worker(0);
        let peer = me.peer("worker1")?;
        match path.as_str() {
            "call" => calls(&peer, count).await?,
            "pipelined" => pipelined(&peer, count).await?,
            "fetch" => fetches(&peer, count).await?,
            "share" => shares(me, &peer, count).await?,
            _ => bail!("{usage}"),
        }
        Ok(cluster.shutdown().await?)
    })
}

async fn calls(peer: &Peer, count: usize) -> anyhow::Result<()> {
    for _ in 0..count {
        nothing::on(peer).await?;
    }
    Ok(())
}

async fn pipelined(peer: &Peer, count: usize) -> anyhow::Result<()> {
    let callers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let peer = peer.clone();
            tokio::spawn(async move { calls(&peer, count / AT_ONCE).await })
        })
        .collect();
    for caller in callers {
        caller.await??;
    }
    Ok(())
}

async fn fetches(peer: &Peer, count: usize) -> anyhow::Result<()> {
    for _ in 0..count {
        let there = one::on(peer).remote();
        ensure!(there.to_here().await? == 1);
    }
    Ok(())
}

async fn shares(me: &Worker, peer: &Peer, count: usize) -> anyhow::Result<()> {
    let held = me.rref(1_u64)?;
    for _ in 0..count {
        take::on(peer, held.clone()).await?;
    }
    Ok(())
}
