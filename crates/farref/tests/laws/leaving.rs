//! S3: what becomes of the calls of a worker that leaves.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Result, ensure};
use farref::testing::Cluster;
use farref::{Error, Stream, Streaming, Worker};
use farref_testkit::TEST_TIMEOUT;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cluster::start_with_shutdown_timeouts;

/// Never up in these tests.
const LONG: Duration = Duration::from_secs(3600);

/// Where calls wait: how many do, and whether they need not any more.
type Gate = watch::Sender<(u32, bool)>;

static GATES: Mutex<BTreeMap<String, Arc<Gate>>> = Mutex::new(BTreeMap::new());

fn gate(name: &str) -> Arc<Gate> {
    let mut gates = GATES.lock().unwrap_or_else(PoisonError::into_inner);
    Arc::clone(gates.entry(name.to_owned()).or_default())
}

/// Returns when a call waits at the gate.
async fn waited_at(name: &str) -> Result<()> {
    let mut changes = gate(name).subscribe();
    timeout(TEST_TIMEOUT, changes.wait_for(|(waiting, _)| *waiting > 0)).await??;
    Ok(())
}

fn open(name: &str) {
    gate(name).send_modify(|(_, open)| *open = true);
}

#[farref::remote]
async fn pass(name: String) -> String {
    let gate = gate(&name);
    gate.send_modify(|(waiting, _)| *waiting += 1);
    let _ = gate.subscribe().wait_for(|(_, open)| *open).await;
    name
}

#[farref::remote]
async fn nothing() {}

#[farref::remote]
async fn leave_soon() {
    if let Some(me) = Worker::current() {
        tokio::spawn(async move { me.leave().await });
    }
}

#[farref::remote]
async fn leave_now() -> farref::Result<()> {
    match Worker::current() {
        Some(me) => me.leave().await,
        None => Ok(()),
    }
}

/// Leaves in the background. The first part, in which it sees which calls it serves, is over at once.
async fn begin_to_leave(worker: &Worker) -> JoinHandle<farref::Result<()>> {
    let worker = worker.clone();
    let mut leaving = Box::pin(async move { worker.leave().await });
    let begun = timeout(Duration::ZERO, &mut leaving).await;
    assert!(begun.is_err(), "it leaves without answering: {begun:?}");
    tokio::spawn(leaving)
}

fn is_lost<T>(outcome: &farref::Result<T>) -> bool {
    matches!(outcome, Err(Error::PeerLost { peer, .. }) if &**peer == "worker1")
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_answers_the_calls_it_serves() -> Result<()> {
    let cluster = Cluster::start_with(3, |builder| builder.shutdown_timeout(LONG)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let first = pass::on(&peer, "serves: first".into()).start();
    waited_at("serves: first").await?;
    let leaving = begin_to_leave(cluster.worker(1)).await;

    // It is still there for others, since the calls it serves may need it.
    let second = pass::on(&peer, "serves: second".into()).start();
    waited_at("serves: second").await?;
    open("serves: first");
    assert_eq!(timeout(TEST_TIMEOUT, first).await??, "serves: first");

    // That has an end, or one that is called all the time could never leave.
    let refused = timeout(TEST_TIMEOUT, async {
        loop {
            match nothing::on(&peer).await {
                Ok(()) => tokio::time::sleep(Duration::from_millis(5)).await,
                refused => break refused,
            }
        }
    });
    let refused = refused.await?;
    ensure!(is_lost(&refused), "{refused:?}");
    ensure!(!leaving.is_finished() && cluster.worker(1).is_member());
    open("serves: second");
    assert_eq!(timeout(TEST_TIMEOUT, second).await??, "serves: second");
    timeout(TEST_TIMEOUT, leaving).await???;
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_ends_without_its_group_answers_the_calls_that_it_has_patience_for() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let served = pass::on(&peer, "ends: served".into()).start();
    waited_at("ends: served").await?;
    let ends = cluster.worker(1).clone();
    let ending = tokio::spawn(async move { ends.crash_after(LONG).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    ensure!(!ending.is_finished() && cluster.worker(1).is_member());
    open("ends: served");
    assert_eq!(timeout(TEST_TIMEOUT, served).await??, "ends: served");
    timeout(TEST_TIMEOUT, ending).await??;

    // A patience that is up is the end for who still waits.
    let peer = cluster.worker(0).peer("worker2")?;
    let waits = pass::on(&peer, "ends: waits".into()).start();
    waited_at("ends: waits").await?;
    let ends = cluster.worker(2).clone();
    timeout(TEST_TIMEOUT, ends.crash_after(Duration::from_millis(50))).await?;
    let lost = timeout(TEST_TIMEOUT, waits).await?;
    ensure!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
    open("ends: waits");
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_is_told_not_to_leave_after_all_serves_as_before() -> Result<()> {
    let cluster = Cluster::start_with(2, |builder| builder.shutdown_timeout(LONG)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let leaver = cluster.worker(1);
    leaver.publish("number", &leaver.rref(7_u64)?)?;
    let first = pass::on(&peer, "stays: first".into()).start();
    waited_at("stays: first").await?;
    let mut leaving = Box::pin(leaver.leave());
    ensure!(
        timeout(Duration::from_millis(50), &mut leaving)
            .await
            .is_err()
    );
    let second = pass::on(&peer, "stays: second".into()).start();
    waited_at("stays: second").await?;
    open("stays: first");
    timeout(TEST_TIMEOUT, first).await??;
    let refused = timeout(TEST_TIMEOUT, async {
        loop {
            tokio::select! {
                left = &mut leaving => break left,
                called = nothing::on(&peer) => if called.is_err() {
                    break called;
                },
            }
        }
    });
    let refused = refused.await?;
    ensure!(is_lost(&refused), "{refused:?}");

    drop(leaving);
    nothing::on(&peer).await?;
    let number = peer.lookup::<u64>("number").now().await?;
    ensure!(number.is_some(), "its names are there");
    drop(number);
    open("stays: second");
    assert_eq!(timeout(TEST_TIMEOUT, second).await??, "stays: second");
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_tells_its_worker_to_leave_is_answered() -> Result<()> {
    for _ in 0..20 {
        // Three: the good-bye may come round by the third.
        let cluster = Cluster::start(3).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        leave_soon::on(&peer).await?;
        cluster.shutdown().await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_leaves_does_not_wait_for_itself() -> Result<()> {
    let cluster = Cluster::start_with(2, |builder| builder.shutdown_timeout(LONG)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let lost = timeout(TEST_TIMEOUT, leave_now::on(&peer)).await?;
    ensure!(is_lost(&lost), "{lost:?}");
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_does_not_end_holds_nobody_up_for_ever() -> Result<()> {
    let short = Duration::from_millis(100);
    let cluster = start_with_shutdown_timeouts(&[LONG, short]).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let pending = pass::on(&peer, "never opened".into()).start();
    waited_at("never opened").await?;
    match timeout(TEST_TIMEOUT, cluster.worker(1).leave()).await? {
        Err(Error::ShutdownTimeout { waiting_for, .. }) => {
            assert_eq!(
                waiting_for,
                ["`worker0`, 1 of whose calls are not answered"]
            );
        }
        other => panic!("{other:?}"),
    }
    ensure!(!cluster.worker(1).is_member());
    let lost = timeout(TEST_TIMEOUT, pending).await?;
    ensure!(is_lost(&lost), "{lost:?}");
    Ok(cluster.shutdown().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_does_not_wait_for_callers_that_are_gone() -> Result<()> {
    let cluster = Cluster::start_with(3, |builder| builder.shutdown_timeout(LONG)).await?;
    let peer = cluster.worker(2).peer("worker1")?;
    let pending = pass::on(&peer, "of the dead".into()).start();
    waited_at("of the dead").await?;
    let leaver = cluster.worker(1).clone();
    let leaving = tokio::spawn(async move { leaver.leave().await });
    cluster.worker(2).crash().await;
    timeout(TEST_TIMEOUT, leaving).await???;
    drop(pending);
    Ok(cluster.shutdown().await?)
}

/// What is sent to a stream.
static TICKS: Mutex<Option<mpsc::UnboundedReceiver<u32>>> = Mutex::new(None);

struct Ticks(mpsc::UnboundedReceiver<u32>);

impl Stream for Ticks {
    type Item = u32;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u32>> {
        self.0.poll_recv(context)
    }
}

#[farref::remote(name = "leaving::ticks")]
async fn ticks() -> impl Stream<Item = u32> {
    let mut ticks = TICKS.lock().unwrap_or_else(PoisonError::into_inner);
    Ticks(ticks.take().expect("one at a time"))
}

/// T3, S3
#[tokio::test(flavor = "multi_thread")]
async fn who_leaves_lets_streams_come_to_their_end() -> Result<()> {
    for limit in [LONG, Duration::from_millis(300)] {
        let cluster = start_with_shutdown_timeouts(&[LONG, limit]).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        let (ticker, receiver) = mpsc::unbounded_channel();
        *TICKS.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
        let mut stream: Streaming<u32> = ticks::on(&peer).await?;
        ticker.send(0)?;
        ensure!(stream.next().await.transpose()? == Some(0));
        let leaver = cluster.worker(1).clone();
        let leaving = tokio::spawn(async move { leaver.leave().await });
        if limit == LONG {
            for tick in 1..20 {
                tokio::time::sleep(Duration::from_millis(5)).await;
                ticker.send(tick)?;
                let read = timeout(TEST_TIMEOUT, stream.next()).await?;
                ensure!(matches!(read, Some(Ok(read)) if read == tick), "{read:?}");
                ensure!(!leaving.is_finished());
            }
            drop(ticker);
            ensure!(timeout(TEST_TIMEOUT, stream.next()).await?.is_none());
            timeout(TEST_TIMEOUT, leaving).await???;
        } else {
            // One that is idle is waited for as long as for a call.
            match timeout(TEST_TIMEOUT, leaving).await?? {
                Err(Error::ShutdownTimeout { waiting_for, .. }) => {
                    let text = waiting_for.join("; ");
                    let says = "`worker0`, which has not read the stream of `leaving::ticks`";
                    ensure!(text.contains(says), "{text}");
                }
                other => anyhow::bail!("{other:?}"),
            }
            let lost = timeout(TEST_TIMEOUT, stream.next()).await?;
            ensure!(
                matches!(lost, Some(Err(Error::PeerLost { .. }))),
                "{lost:?}"
            );
        }
        drop(stream);
        cluster.shutdown().await?;
    }
    Ok(())
}
