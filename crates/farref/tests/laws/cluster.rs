//! Groups of workers within this process, which have to end with nothing left.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use farref::testing::Cluster;
use farref::{Peer, WorkerBuilder};
use farref_testkit::eventually;

/// Two workers, and the second one as the first one's peer.
pub(crate) async fn pair() -> Result<(Cluster, Peer)> {
    let cluster = Cluster::start(2).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    Ok((cluster, peer))
}

/// A worker for each of these limits of its shutdown.
pub(crate) async fn start_with_shutdown_timeouts(limits: &[Duration]) -> Result<Cluster> {
    let next = AtomicUsize::new(0);
    let set_up = |builder: WorkerBuilder| {
        let worker = next.fetch_add(1, Ordering::Relaxed);
        builder.shutdown_timeout(limits[worker])
    };
    Ok(Cluster::start_with(limits.len() as u32, set_up).await?)
}

/// Waits until nobody refers to anything, and shuts down.
pub(crate) async fn finish(cluster: Cluster) -> Result<()> {
    for worker in cluster.workers() {
        eventually("nothing is referred to", || worker.references().is_empty()).await?;
    }
    Ok(cluster.shutdown().await?)
}
