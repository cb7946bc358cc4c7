//! T6: many streams beside each other and beside calls.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use farref::testing::Cluster;
use farref::{Stream, Streaming};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::sources::{Channel, Each};
use super::{all, numbers};
use crate::cluster::finish;

const STREAMS: usize = 1000;

#[farref::remote(name = "streams::beside_streams")]
async fn add(a: u64, b: u64) -> u64 {
    a + b
}

/// T6: one that is idle is one open call, and takes no room for answers.
#[tokio::test]
async fn idle_streams_do_not_hold_up_calls() -> Result<()> {
    #[farref::remote(name = "streams::one_large_item_and_silence")]
    async fn idle() -> Streaming<Vec<u8>> {
        let (sender, channel) = Channel::new();
        sender.send(vec![0; 100_000]).expect("it is open");
        std::mem::forget(sender);
        Streaming::new(channel)
    }

    // Room for ten such items.
    let cluster =
        Cluster::start_with(2, |builder| builder.max_answer_bytes_per_peer(1_000_000)).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let mut streams = JoinSet::new();
    let read = Arc::new(AtomicUsize::new(0));
    for _ in 0..STREAMS {
        let (peer, read) = (peer.clone(), Arc::clone(&read));
        streams.spawn(async move {
            let mut stream = idle::on(&peer).await?;
            let first = stream.next().await.transpose()?;
            assert_eq!(first.map(|item| item.len()), Some(100_000));
            read.fetch_add(1, Ordering::SeqCst);
            stream.next().await.transpose()
        });
    }
    eventually("all have read an item", || {
        read.load(Ordering::SeqCst) == STREAMS
    })
    .await?;
    eventually("each waits for one more", || {
        me.snapshot().open_calls as usize == STREAMS
    })
    .await?;
    for n in 0..1000 {
        assert_eq!(add::on(&peer, n, 1).await?, n + 1);
    }
    streams.shutdown().await;
    finish(cluster).await
}

/// T6: a thousand streams that never pause, and a thousand calls beside them: the calls are done before the streams have
/// brought a hundred batches each.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn busy_streams_do_not_starve_calls_nor_each_other() -> Result<()> {
    #[farref::remote(name = "streams::busy_stream")]
    async fn busy() -> Streaming<u64> {
        Streaming::new(Each(0..))
    }

    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let items: Arc<Vec<AtomicUsize>> =
        Arc::new((0..STREAMS).map(|_| AtomicUsize::new(0)).collect());
    let mut streams = JoinSet::new();
    for n in 0..STREAMS {
        let (peer, items) = (peer.clone(), Arc::clone(&items));
        streams.spawn(async move {
            let mut stream = busy::on(&peer).await?;
            while let Some(item) = stream.next().await {
                let expected = items[n].fetch_add(1, Ordering::SeqCst);
                assert_eq!(item?, expected as u64);
            }
            Ok::<(), farref::Error>(())
        });
    }
    let of_each = || items.iter().map(|one| one.load(Ordering::SeqCst));
    eventually("all streams flow", || of_each().all(|items| items > 0)).await?;
    let before: Vec<_> = of_each().collect();
    let calls: Vec<_> = (0..1000).map(|n| add::on(&peer, n, 1).start()).collect();
    for (n, call) in calls.into_iter().enumerate() {
        let answer = timeout(TEST_TIMEOUT, call).await.context("in time")??;
        assert_eq!(answer, n as u64 + 1);
    }
    let meanwhile = of_each().sum::<usize>() - before.iter().sum::<usize>();
    ensure!(
        meanwhile < 100 * 64 * STREAMS,
        "{meanwhile} items came beside 1000 calls"
    );
    let all_go_on = || of_each().zip(&before).all(|(now, &before)| now > before);
    eventually("none of the streams is left behind", all_go_on).await?;
    streams.shutdown().await;
    finish(cluster).await
}

/// T1, SR-1: also where each batch has to find a place among other calls.
#[tokio::test]
async fn items_come_in_order_where_there_is_no_place_for_more_calls() -> Result<()> {
    #[farref::remote(name = "streams::crowd")]
    async fn crowd() {}

    let narrow = |builder: farref::WorkerBuilder| {
        let builder = builder.max_calls_per_peer(64);
        builder.max_waiting_calls_per_peer(4)
    };
    let cluster = Cluster::start_with(2, narrow).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let mut crowding = JoinSet::new();
    for _ in 0..100 {
        let peer = peer.clone();
        crowding.spawn(async move { while crowd::on(&peer).await.is_ok() {} });
    }
    for _ in 0..3 {
        let items = all(numbers::on(&peer, 0, 50_000).await?).await?;
        assert!(items.into_iter().eq(0..50_000));
    }
    crowding.shutdown().await;
    finish(cluster).await
}

/// T1, SR-1: a batch for which there is no place is not overtaken by one that is asked for later.
#[tokio::test]
async fn items_come_in_order_where_a_place_comes_late() -> Result<()> {
    #[farref::remote(name = "streams::take_a_place")]
    async fn take_a_place() {
        std::future::pending().await
    }

    #[farref::remote(name = "streams::gated")]
    async fn gated() -> Streaming<u64> {
        Streaming::new(Gated(0))
    }

    let narrow = |builder: farref::WorkerBuilder| {
        let builder = builder.max_calls_per_peer(64);
        builder.max_waiting_calls_per_peer(1)
    };
    let cluster = Cluster::start_with(2, narrow).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let take = || take_a_place::on(&peer).timeout(None).start();
    let open = || cluster.worker(0).snapshot().open_calls;
    let mut stream = gated::on(&peer).await?;
    eventually("it is there", || open() == 0).await?;

    // The first batch has a place; other calls have all the others, and one waits.
    let mut first = Box::pin(stream.next());
    assert!(timeout(Duration::ZERO, &mut first).await.is_err());
    let most: Vec<_> = (0..62).map(|_| take()).collect();
    let [early, late] = [take(), take()];
    assert_eq!(open(), 65);
    // There is more than fits: of the two that are asked for ahead, one waits, and there is no place for the other.
    OPEN.store(true, Ordering::SeqCst);
    GATE.notify_waiters();
    GATE.notify_one();
    assert_eq!(timeout(TEST_TIMEOUT, first).await?.transpose()?, Some(0));
    drop(early);
    for expected in 1..20_000 {
        let item = timeout(TEST_TIMEOUT, stream.next())
            .await
            .context("in time")?;
        assert_eq!(item.transpose()?, Some(expected));
    }
    drop((stream, most, late));
    finish(cluster).await
}

static OPEN: AtomicBool = AtomicBool::new(false);
static GATE: Notify = Notify::const_new();

/// Numbers without end, when the gate is open.
struct Gated(u64);

impl Stream for Gated {
    type Item = u64;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u64>> {
        if !OPEN.load(Ordering::SeqCst) {
            let waker = context.waker().clone();
            tokio::spawn(async move {
                GATE.notified().await;
                waker.wake();
            });
            return Poll::Pending;
        }
        self.0 += 1;
        Poll::Ready(Some(self.0 - 1))
    }
}

/// T6, SR-2: also one that was busy is one open call when it is idle.
#[tokio::test]
async fn a_stream_that_was_busy_is_one_open_call_when_it_is_idle() -> Result<()> {
    #[farref::remote(name = "streams::many_items_and_silence")]
    async fn busy_then_idle(count: u64) -> Streaming<u64> {
        Streaming::new(ThenSilence(0..count))
    }

    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let mut stream = busy_then_idle::on(&me.peer("worker1")?, 5000).await?;
    for n in 0..5000 {
        assert_eq!(stream.next().await.transpose()?, Some(n));
    }
    let mut next = Box::pin(stream.next());
    assert!(timeout(Duration::from_millis(20), &mut next).await.is_err());
    eventually("one call is open", || me.snapshot().open_calls == 1).await?;
    drop(next);
    drop(stream);
    finish(cluster).await
}

/// Numbers, and no end.
struct ThenSilence(std::ops::Range<u64>);

impl Stream for ThenSilence {
    type Item = u64;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
        self.0
            .next()
            .map_or(Poll::Pending, |n| Poll::Ready(Some(n)))
    }
}

/// SR-3: whoever reads without a pause lets others have their turn after two batches at the latest, though there are more.
#[tokio::test]
async fn a_reader_does_not_go_on_from_batch_to_batch() -> Result<()> {
    #[farref::remote(name = "streams::endless_numbers")]
    async fn endless() -> Streaming<u64> {
        Streaming::new(Each(0..))
    }

    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let mut stream = endless::on(&me.peer("worker1")?).await?;
    for round in 0..3 {
        timeout(TEST_TIMEOUT, stream.next())
            .await
            .context("in time")?;
        eventually("what was asked for is there", || {
            me.snapshot().open_calls == 0
        })
        .await?;
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut items = 0;
        while let Poll::Ready(item) = Pin::new(&mut stream).poll_next(&mut context) {
            item.context("no end")??;
            items += 1;
        }
        assert!(items <= 2 * 1024, "{items} items in round {round}");
    }
    drop(stream);
    finish(cluster).await
}
