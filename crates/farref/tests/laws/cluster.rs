//! Groups of workers within this process, which have to end with nothing left.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use farref::Peer;
use farref::testing::Cluster;

use crate::PATIENCE;

/// Two workers, and the second one as the first one's peer.
pub(crate) async fn pair() -> Result<(Cluster, Peer)> {
    let cluster = Cluster::start(2).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    Ok((cluster, peer))
}

/// Waits until something is so.
pub(crate) async fn eventually(what: &str, mut is_so: impl FnMut() -> bool) -> Result<()> {
    let began = Instant::now();
    while !is_so() {
        ensure!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}

/// Waits until nobody refers to anything, and shuts down.
pub(crate) async fn finish(cluster: Cluster) -> Result<()> {
    for worker in cluster.workers() {
        eventually("nothing is referred to", || worker.references().is_empty()).await?;
    }
    Ok(cluster.shutdown().await?)
}
