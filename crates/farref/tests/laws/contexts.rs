//! Contexts, from outside: when a release is over.

use std::task::Poll;

use farref::context::ContextScope;
use farref::testing::Cluster;
use tokio::sync::Notify;

use crate::PATIENCE;

static BEGUN: Notify = Notify::const_new();
static GO_ON: Notify = Notify::const_new();

#[farref::remote]
async fn work_until_told() {
    BEGUN.notify_one();
    GO_ON.notified().await;
}

/// CT-1: whoever releases a context waits until it is released, however many do.
#[tokio::test]
async fn a_release_beside_another_waits_for_the_same_end() -> farref::Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let scope = ContextScope::open(me)?;
    let call = scope.enter(|| work_until_told::on(&peer).start());
    BEGUN.notified().await;

    let mut first = Box::pin(scope.release());
    assert!(poll_once(&mut first).is_pending());
    // Said, and not waited for.
    drop(scope.release());
    let mut others: Vec<_> = (0..3).map(|_| Box::pin(scope.release())).collect();
    for other in &mut others {
        assert!(poll_once(other).is_pending(), "it is still in use");
    }
    assert!(poll_once(&mut first).is_pending(), "it is still in use");
    GO_ON.notify_one();
    call.await?;
    let all = async {
        first.await?;
        for other in others {
            other.await?;
        }
        // And again, when all is over.
        scope.release().await
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("in time")?;
    assert_eq!(me.snapshot().contexts, 0);
    assert_eq!(peer.snapshot().await?.contexts, 0);
    cluster.shutdown().await
}

#[farref::remote]
async fn take_part() {}

/// CT-2: the same when its calls are done and only others have not said yet that they forgot it.
#[tokio::test]
async fn a_release_beside_another_waits_for_all_who_took_part() -> farref::Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let scope = ContextScope::open(me)?;
    scope.run(async { take_part::on(&peer).await }).await?;
    // That the call is done is said in a message of its own; the answer to a later call comes after it.
    take_part::on(&peer).await?;
    cluster.partition(0, 1);
    let mut first = Box::pin(scope.release());
    assert!(poll_once(&mut first).is_pending());
    let mut second = Box::pin(scope.release());
    assert!(
        poll_once(&mut second).is_pending(),
        "the other has not heard of it"
    );
    assert!(
        poll_once(&mut first).is_pending(),
        "nor has anything ended it"
    );
    cluster.heal(0, 1);
    let both = async { tokio::try_join!(first, second).map(drop) };
    tokio::time::timeout(PATIENCE, both)
        .await
        .expect("in time")?;
    assert_eq!(peer.snapshot().await?.contexts, 0);
    cluster.shutdown().await
}

/// Polls once.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context)
}
