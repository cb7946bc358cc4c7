//! Time limits: as long as there is one may be meant as none.

use std::time::Duration;

use anyhow::Result;
use farref::testing::Cluster;

use crate::cluster::finish;

#[farref::remote]
async fn echo(x: u32) -> u32 {
    x
}

#[tokio::test]
async fn a_time_limit_may_be_as_long_as_there_is() -> Result<()> {
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX / 2)] {
        let cluster = Cluster::start_with(2, |builder| {
            builder
                .join_timeout(limit)
                .peer_timeout(limit)
                .call_timeout(limit)
                .shutdown_timeout(limit)
                .leak_grace(limit)
        })
        .await?;
        let me = cluster.worker(0);
        let peer = me.wait_for_peer("worker1", limit).await?;
        assert_eq!(echo::on(&peer, 7).await?, 7);
        assert_eq!(echo::on(&peer, 8).timeout(limit).await?, 8);
        let kept = echo::on(&peer, 9).timeout(limit).remote();
        assert_eq!(kept.to_here().await?, 9);
        drop(kept);
        finish(cluster).await?;
    }
    Ok(())
}
