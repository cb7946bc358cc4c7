//! Time limits: as long as there is one may be meant as none.

use std::time::Duration;

use anyhow::Result;
use farref::testing::Cluster;
use farref::{Blob, Error};
use farref_testkit::TEST_TIMEOUT;

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

#[farref::remote(name = "limits::size")]
async fn size(blob: Blob) -> usize {
    blob.len()
}

#[farref::remote(name = "limits::make")]
async fn make(size: usize) -> Blob {
    vec![1; size].into()
}

/// FR-7: how much a worker takes is its own business, and nobody is thrown out for not knowing it.
#[tokio::test]
async fn what_is_larger_than_a_worker_takes_fails_its_call_alone() -> Result<()> {
    const MIB: usize = 1 << 20;
    let built = std::cell::Cell::new(0);
    let cluster = Cluster::start_with(2, |builder| {
        built.set(built.get() + 1);
        builder.max_message_bytes(MIB as u64 * if built.get() == 1 { 64 } else { 1 })
    })
    .await?;
    let large = cluster.worker(0).peer("worker1")?;
    let refused = size::on(&large, vec![0; 4 * MIB].into()).await;
    assert!(
        matches!(&refused, Err(Error::Codec { what: "the arguments", reason, .. })
            if reason.to_string().contains("max_message_bytes")),
        "{refused:?}"
    );
    let never_made = size::on(&large, vec![0; 4 * MIB].into()).remote();
    assert!(never_made.to_here().await.is_err());
    drop(never_made);
    assert_eq!(size::on(&large, vec![0; MIB / 2].into()).await?, MIB / 2);

    let small = cluster.worker(1).peer("worker0")?;
    let refused = make::on(&small, 4 * MIB).await;
    assert!(
        matches!(&refused, Err(Error::Codec { what: "the result", reason, .. })
            if reason.to_string().contains("max_message_bytes")),
        "{refused:?}"
    );
    assert_eq!(make::on(&small, MIB / 2).await?.len(), MIB / 2);
    finish(cluster).await
}

#[farref::remote]
async fn never() {
    std::future::pending().await
}

/// D3: a limit passes also while nobody drives the runtime that the worker was made on.
#[test]
fn a_call_awaited_on_another_runtime_has_its_limit() -> Result<()> {
    let runtime = || {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
    };
    let [theirs, mine] = [runtime()?, runtime()?];
    let cluster = theirs.block_on(Cluster::start(2))?;
    let peer = cluster.worker(0).peer("worker1")?;
    let outcome = mine.block_on(async {
        let call = never::on(&peer).timeout(Duration::from_millis(50)).start();
        tokio::time::timeout(TEST_TIMEOUT / 4, call).await
    });
    let outcome = outcome.expect("the limit of the call is shorter");
    assert!(matches!(outcome, Err(Error::Timeout { .. })), "{outcome:?}");
    Ok(theirs.block_on(cluster.shutdown())?)
}
