//! What becomes of a worker that needs a majority of its group and sees none.

use std::time::Duration;

use farref::testing::Cluster;
use farref::{Error, MemberEvent, Result, WorkerBuilder, WorkerEnd};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::time::timeout;

#[farref::remote]
async fn number() -> u64 {
    7
}

/// Three workers, the last of which is cut off from the others.
async fn split(settings: impl Fn(WorkerBuilder) -> WorkerBuilder) -> Result<Cluster> {
    let impatient = Duration::from_secs(3);
    let cluster =
        Cluster::start_with(3, |builder| settings(builder.peer_timeout(impatient))).await?;
    cluster.partition(0, 2);
    cluster.partition(1, 2);
    Ok(cluster)
}

/// The two that are left have noticed, and go on.
async fn two_go_on(cluster: &Cluster) -> anyhow::Result<()> {
    let (one, two) = (cluster.worker(0), cluster.worker(1));
    for worker in [one, two] {
        timeout(TEST_TIMEOUT, worker.peer("worker2")?.gone()).await??;
    }
    assert_eq!(number::on(&one.peer("worker1")?).await?, 7);
    assert_eq!(number::on(&two.peer("worker0")?).await?, 7);
    let (first, second) = tokio::join!(one.shutdown(), two.shutdown());
    first?;
    second?;
    Ok(())
}

/// F7, MJ-2: who is in the minority gives up, without a call to notice by, and says so to all who wait.
#[tokio::test(flavor = "multi_thread")]
async fn f7_a_worker_that_needs_a_majority_gives_up_without_one() -> anyhow::Result<()> {
    let cluster = split(|builder| builder.require_majority(true)).await?;
    let cut_off = cluster.worker(2);
    let mut members = cut_off.watch_members();
    let there = cut_off.peer("worker0")?;
    let reference = number::on(&there).remote();
    let confirmed = timeout(TEST_TIMEOUT, reference.confirmed()).await?;
    assert!(confirmed.is_err(), "{confirmed:?}");
    let ended = timeout(TEST_TIMEOUT, cut_off.serve()).await?;
    assert!(
        matches!(ended, Err(Error::Minority { left: 1, of: 3, .. })),
        "{ended:?}"
    );
    let late = number::on(&there).await;
    assert!(matches!(late, Err(Error::Minority { .. })), "{late:?}");
    let mut last = None;
    while let Some(event) = timeout(TEST_TIMEOUT, members.next()).await? {
        last = Some(event);
    }
    assert!(
        matches!(last, Some(MemberEvent::Ended(WorkerEnd::Minority))),
        "{last:?}"
    );
    two_go_on(&cluster).await
}

/// F7, MJ-2: also where nobody has ever called anybody.
#[tokio::test(flavor = "multi_thread")]
async fn f7_a_majority_that_is_lost_in_silence_is_missed() -> anyhow::Result<()> {
    let cluster = split(|builder| builder.require_majority(true)).await?;
    let cut_off = cluster.worker(2);
    eventually("it gives up", || !cut_off.is_member()).await?;
    let ended = timeout(TEST_TIMEOUT, cut_off.serve()).await?;
    assert!(
        matches!(ended, Err(Error::Minority { left: 1, of: 3, .. })),
        "{ended:?}"
    );
    two_go_on(&cluster).await
}

/// F7, MJ-1: who has joined counts as those do who were there first.
#[tokio::test(flavor = "multi_thread")]
async fn f7_whoever_has_joined_later_is_missed_as_well() -> anyhow::Result<()> {
    let mut cluster = Cluster::start_with(1, |builder| builder.require_majority(true)).await?;
    for name in ["second", "third"] {
        cluster.join(name).await?;
    }
    cluster.crash(1).await;
    cluster.crash(2).await;
    let ended = timeout(TEST_TIMEOUT, cluster.worker(0).serve()).await?;
    assert!(
        matches!(ended, Err(Error::Minority { left: 1, .. })),
        "{ended:?}"
    );
    Ok(())
}

/// F7, MJ-1: what all who are left know is the group from then on.
#[tokio::test(flavor = "multi_thread")]
async fn f7_who_was_lost_long_ago_is_not_counted_with_who_is_lost_now() -> anyhow::Result<()> {
    let mut cluster = Cluster::start_with(3, |builder| builder.require_majority(true)).await?;
    let [first, second] = ["worker1", "worker2"].map(|name| cluster.worker(0).peer(name));
    cluster.crash(2).await;
    timeout(TEST_TIMEOUT, second?.gone()).await??;
    // All have heard of that before somebody is let in.
    cluster.join("newcomer").await?;
    cluster.crash(1).await;
    timeout(TEST_TIMEOUT, first?.gone()).await??;
    let (last, newcomer) = (cluster.worker(0), cluster.worker(3));
    assert_eq!(number::on(&last.peer("newcomer")?).await?, 7);
    let (one, other) = tokio::join!(last.shutdown(), newcomer.shutdown());
    one?;
    other?;
    Ok(())
}

/// F6: by default each side goes on, even if it is one worker.
#[tokio::test(flavor = "multi_thread")]
async fn f6_a_worker_that_needs_no_majority_goes_on_alone() -> anyhow::Result<()> {
    let cluster = split(|builder| builder).await?;
    let cut_off = cluster.worker(2);
    for other in ["worker0", "worker1"] {
        timeout(TEST_TIMEOUT, cut_off.peer(other)?.gone()).await??;
    }
    assert_eq!(number::on(&cut_off.me()).await?, 7);
    timeout(TEST_TIMEOUT, cut_off.shutdown()).await??;
    two_go_on(&cluster).await
}

/// F7, MJ-1: who leaves, and the end of all, are no loss: down to the last one.
#[tokio::test(flavor = "multi_thread")]
async fn f7_whoever_leaves_takes_no_majority_along() -> anyhow::Result<()> {
    let cluster = Cluster::start_with(5, |builder| builder.require_majority(true)).await?;
    for n in (1..5).rev() {
        timeout(TEST_TIMEOUT, cluster.worker(n).leave()).await??;
    }
    let last = cluster.worker(0);
    assert_eq!(number::on(&last.me()).await?, 7);
    timeout(TEST_TIMEOUT, last.shutdown()).await??;
    Ok(())
}
