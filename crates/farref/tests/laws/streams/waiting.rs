//! D3, T3, T6: `wait_next` on threads that may block, and limits for an item.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::AtomicUsize;
use std::task::{Context, Poll};
use std::time::Duration;

use anyhow::{Context as _, Result};
use farref::testing::Cluster;
use farref::{Error, Stream, Streaming};
use farref_testkit::TEST_TIMEOUT;
use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;

use super::sources::{Channel, Each, Watched};
use super::{numbers, reaches};
use crate::cluster::{finish, pair};

/// D3, T3: its call's end is its own, be it late or cancelled, and whether it waits or finds items without end.
#[tokio::test]
async fn a_plain_function_that_reads_ends_with_its_call() -> Result<()> {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    static BEGUN: Notify = Notify::const_new();

    #[farref::remote(name = "streams::count_blocking")]
    fn count(mut numbers: Streaming<u64>) -> farref::Result<u64> {
        let mut count = 0;
        while let Some(number) = numbers.wait_next() {
            if number? == 0 {
                BEGUN.notify_one();
            }
            count += 1;
        }
        Ok(count)
    }

    let silent = || {
        let (sender, channel) = Channel::new();
        sender.send(0).expect("it is open");
        std::mem::forget(sender);
        Streaming::new(Watched(channel, &DROPPED))
    };
    let endless = || Streaming::new(Watched(Each(0..), &DROPPED));
    let (cluster, peer) = pair().await?;
    assert_eq!(count::on(&peer, Streaming::new(Each(0..5000))).await?, 5000);
    BEGUN.notified().await;
    let mut dropped = 0;
    for stream in [silent(), endless()] {
        let late = count::on(&peer, stream).timeout(Duration::from_millis(100));
        let late = late.await;
        assert!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
        dropped += 1;
        reaches(&DROPPED, dropped).await?;
    }
    // Either may have begun before its time was up.
    let _ = timeout(Duration::ZERO, BEGUN.notified()).await;
    for stream in [silent(), endless()] {
        let call = count::on(&peer, stream).timeout(None).start();
        BEGUN.notified().await;
        drop(call);
        dropped += 1;
        reaches(&DROPPED, dropped).await?;
    }
    finish(cluster).await
}

/// A thread that knows of no runtime reads to the end, and asks again.
#[tokio::test]
async fn a_thread_without_a_runtime_may_wait() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let read = |mut stream: Streaming<u64>| {
        let (tell, told) = oneshot::channel();
        std::thread::spawn(move || {
            let mut items = Vec::new();
            while let Some(Ok(item)) = stream.wait_next() {
                items.push(item);
            }
            let is_over = stream.wait_next().is_none() && stream.wait_next().is_none();
            let _ = tell.send((items, is_over));
        });
        timeout(TEST_TIMEOUT, told)
    };
    let far = read(numbers::on(&peer, 0, 3).await?);
    assert_eq!(far.await.context("in time")??, (vec![0, 1, 2], true));
    let (sender, channel) = Channel::new();
    let own = read(Streaming::new(channel));
    for n in 0..3 {
        tokio::task::yield_now().await;
        sender.send(n)?;
    }
    drop(sender);
    assert_eq!(own.await.context("in time")??, (vec![0, 1, 2], true));
    finish(cluster).await
}

/// T6: the time for an item runs from when it is asked for, also if it was asked for before.
#[tokio::test]
async fn a_next_that_was_dropped_takes_no_time_from_the_next_one() -> Result<()> {
    #[farref::remote(name = "streams::silence")]
    async fn silence() -> Streaming<u64> {
        let (sender, channel) = Channel::new();
        std::mem::forget(sender);
        Streaming::new(channel)
    }

    let (cluster, peer) = pair().await?;
    let limit = Duration::from_secs(1);
    let mut stream = silence::on(&peer).await?.timeout(limit);
    let dropped = timeout(Duration::from_millis(20), stream.next()).await;
    assert!(dropped.is_err(), "{dropped:?}");
    tokio::time::sleep(limit).await;
    let first = {
        let mut next = pin!(stream.next());
        poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await
    };
    assert!(first.is_pending(), "{first:?}");
    drop(stream);
    finish(cluster).await
}

/// T6: each item has its own time, also for who reads it as a [`Stream`].
#[tokio::test]
async fn an_item_that_came_leaves_the_next_one_all_its_time() -> Result<()> {
    #[farref::remote(name = "streams::hand_back")]
    async fn hand_back(numbers: Streaming<u64>) -> Streaming<u64> {
        numbers
    }

    let (cluster, peer) = pair().await?;
    let (sender, channel) = Channel::new();
    // The first item has to come before this is over, however busy the machine is.
    let limit = Duration::from_secs(8);
    let stream = hand_back::on(&peer, Streaming::new(channel)).await?;
    let mut stream = stream.timeout(limit);
    let mut poll = |context: &mut Context<'_>| Pin::new(&mut stream).poll_next(context);
    let first = poll_fn(|context| Poll::Ready(poll(context))).await;
    assert!(first.is_pending(), "{first:?}");
    sender.send(7)?;
    let item = timeout(TEST_TIMEOUT, poll_fn(&mut poll))
        .await
        .context("in time")?;
    assert_eq!(item.transpose()?, Some(7));
    tokio::time::sleep(limit).await;
    let second = poll_fn(|context| Poll::Ready(poll(context))).await;
    assert!(second.is_pending(), "{second:?}");
    drop((sender, stream));
    finish(cluster).await
}

/// Has an item for who asks twice, and says so at once.
struct Hesitant(u64, bool);

impl Stream for Hesitant {
    type Item = u64;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<u64>> {
        self.1 = !self.1;
        if self.1 {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.0 += 1;
        Poll::Ready((self.0 <= 3).then_some(self.0))
    }
}

/// A thread that is woken before it sleeps does not sleep.
#[tokio::test]
async fn a_thread_without_a_runtime_is_woken_also_by_what_it_polls() -> Result<()> {
    let (tell, told) = oneshot::channel();
    std::thread::spawn(move || {
        let mut stream = Streaming::new(Hesitant(0, false));
        let items = std::iter::from_fn(|| stream.wait_next()).map(Result::ok);
        let _ = tell.send(items.collect::<Vec<_>>());
    });
    let items = timeout(TEST_TIMEOUT, told).await.context("in time")??;
    assert_eq!(items, [Some(1), Some(2), Some(3)]);
    Ok(())
}

/// A plain function that waits for an item takes no thread from the function that the item depends on.
#[tokio::test]
async fn functions_that_wait_for_items_do_not_use_the_pool_up() -> Result<()> {
    #[farref::remote(name = "streams::sum_blocking")]
    fn sum(mut numbers: Streaming<u64>) -> farref::Result<u64> {
        let mut sum = 0;
        while let Some(number) = numbers.wait_next() {
            sum += number?;
        }
        Ok(sum)
    }

    #[farref::remote(name = "streams::five_blocking")]
    fn five() -> u64 {
        5
    }

    let cluster = Cluster::start_with(2, |builder| builder.blocking_threads(1)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let (sender, channel) = Channel::new();
    let sum = sum::on(&peer, Streaming::new(channel))
        .timeout(TEST_TIMEOUT)
        .start();
    for _ in 0..3 {
        sender.send(five::on(&peer).timeout(TEST_TIMEOUT).await?)?;
    }
    drop(sender);
    assert_eq!(sum.await?, 15);
    finish(cluster).await
}
