//! References and calls of workers that are not what they were: other lives, other groups, no runtime.

use std::time::Duration;

use anyhow::{Context as _, Result};
use farref::testing::Cluster;
use farref::{Error, RRef};

use crate::cluster::{finish, pair};

#[farref::remote(name = "strangers::length")]
async fn length(text: RRef<String>) -> farref::Result<usize> {
    Ok(text.to_here().await?.len())
}

#[farref::remote(name = "strangers::seven")]
async fn seven() -> u64 {
    7
}

/// F4: two workers of one name in one process are told apart.
#[tokio::test]
async fn f4_a_foreign_reference_says_which_worker_of_that_name_holds_it() -> Result<()> {
    let earlier = Cluster::start(1).await?;
    let old = earlier.worker(0).rref("of an earlier life".to_owned())?;
    // It is still held: that is what it is about.
    drop(earlier.shutdown().await);
    let (other, _) = pair().await?;
    let elsewhere = other.worker(0).rref("of another group".to_owned())?;
    let (cluster, peer) = pair().await?;

    for (text, which) in [(&old, "which has ended"), (&elsewhere, "in another group")] {
        let error = length::on(&peer, text.clone()).await.unwrap_err();
        assert!(
            matches!(&error, Error::ForeignReference { .. }),
            "{error:?}"
        );
        let said = error.to_string();
        assert!(said.contains(which) && said.contains("`worker0`"), "{said}");
    }
    // Workers of different names need no such word.
    let own = cluster.worker(1).rref("of a peer".to_owned())?;
    let said = length::on(&peer, own.clone())
        .await
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("held by worker `worker1` cannot be sent by worker `worker0`"),
        "{said}"
    );
    drop((old, elsewhere, own));
    finish(other).await?;
    finish(cluster).await
}

/// F4: a call of a worker whose runtime is gone is an error as any other, with or without a time limit.
#[test]
fn f4_a_call_after_the_runtime_is_gone_is_an_error() -> Result<()> {
    let runtime = tokio::runtime::Runtime::new()?;
    let (cluster, peer) = runtime.block_on(pair())?;
    assert_eq!(seven::on(&peer).wait()?, 7);
    // One that is under way meanwhile ends as well.
    let waiting = never::on(&peer).timeout(None);
    let waiting = std::thread::spawn(move || waiting.wait());
    runtime.block_on(farref_testkit::eventually("it runs", || {
        cluster.worker(1).snapshot().running.len() == 1
    }))?;
    drop(runtime);
    let waited = waiting.join().ok().context("it panicked")?;
    assert!(matches!(waited, Err(Error::NotMember { .. })), "{waited:?}");
    for limit in [None, Some(Duration::from_secs(60))] {
        let error = seven::on(&peer).timeout(limit).wait().unwrap_err();
        assert!(matches!(&error, Error::NotMember { .. }), "{error:?}");
        assert!(error.to_string().contains("runtime"), "{error}");
    }
    drop(cluster);
    Ok(())
}

#[farref::remote(name = "strangers::never")]
async fn never() {
    std::future::pending().await
}
