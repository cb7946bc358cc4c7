//! T1 to T6: streams between workers, and what becomes of them.

mod ending;
mod handing_on;
mod many;
mod seen;
pub(crate) mod sources;
mod waiting;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use farref::context::ContextScope;
use farref::testing::Cluster;
use farref::{Blob, Error, RRef, Stream, Streaming, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually};

use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use self::sources::{Channel, Counted, Each, Sums};
use crate::cluster::{finish, pair};

/// All that is left of a stream.
async fn all<T>(mut stream: Streaming<T>) -> Result<Vec<T>>
where
    T: Serialize + serde::de::DeserializeOwned + Send + 'static,
{
    let mut items = Vec::new();
    while let Some(item) = timeout(TEST_TIMEOUT, stream.next())
        .await
        .context("in time")?
    {
        items.push(item?);
    }
    let after = timeout(TEST_TIMEOUT, stream.next())
        .await
        .context("in time")?;
    ensure!(after.is_none(), "something comes after the end");
    Ok(items)
}

#[farref::remote]
async fn numbers(from: u64, to: u64) -> Streaming<u64> {
    Streaming::new(Each(from..to))
}

#[farref::remote]
fn plain_numbers(to: u64) -> Result<Streaming<u64>, String> {
    match to {
        0 => Err("no numbers".to_owned()),
        to => Ok(Streaming::new(Each(0..to))),
    }
}

#[farref::remote]
async fn collect(numbers: Streaming<u64>) -> Result<Vec<u64>, anyhow::Error> {
    all(numbers).await
}

struct Shelf(Vec<u64>);

#[farref::remote]
impl Shelf {
    pub(crate) async fn new(size: u64) -> Self {
        Self((0..size).collect())
    }

    pub(crate) async fn items(&self) -> Streaming<u64> {
        Streaming::new(Each(self.0.clone().into_iter()))
    }

    pub(crate) async fn put(&mut self, items: Streaming<u64>) -> Result<usize, anyhow::Error> {
        self.0 = all(items).await?;
        Ok(self.0.len())
    }
}

/// T1
#[tokio::test]
async fn all_items_come_in_order_and_then_the_end() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let me = cluster.worker(0);
    for to in [&peer, &me.me()] {
        for count in [0, 1, 2, 1023, 1024, 1025, 10_000] {
            let expected: Vec<_> = (0..count).collect();
            assert!(all(numbers::on(to, 0, count).await?).await? == expected);
            let sent = Streaming::new(Each(0..count));
            assert!(collect::on(to, sent).await? == expected);
        }
        assert_eq!(all(plain_numbers::on(to, 3).await?).await?, [0, 1, 2]);
        let refused = plain_numbers::on(to, 0).await;
        assert!(matches!(refused, Err(Error::Remote(_))), "{refused:?}");
        let shelf = Shelf::new_on(to, 3).remote();
        assert_eq!(all(shelf.items().await?).await?, [0, 1, 2]);
        assert_eq!(shelf.put(Streaming::new(Each(0..7))).await?, 7);
        assert_eq!(all(shelf.items().await?).await?.len(), 7);
    }
    finish(cluster).await
}

/// `impl Stream` in a signature, as what it is here and as a `Streaming` from afar.
#[tokio::test]
async fn a_function_may_return_any_stream() -> Result<()> {
    #[farref::remote]
    async fn any(to: u64) -> impl Stream<Item = u64> {
        Each(0..to)
    }

    #[farref::remote]
    fn any_or_none(to: u64) -> std::result::Result<impl Stream<Item = u64> + Send, String> {
        match to {
            0 => Err("none".to_owned()),
            to => Ok(Each(0..to)),
        }
    }

    #[farref::remote]
    async fn any_of_an_alias(to: u64) -> farref::Result<impl Stream<Item = Result<u64, String>>> {
        Ok(Each((0..to).map(Ok)))
    }

    #[farref::remote]
    async fn any_in_a_box(to: u64) -> std::pin::Pin<Box<dyn Stream<Item = u64> + Send>> {
        Box::pin(Each(0..to))
    }

    type BoxStream<'a, T> = std::pin::Pin<Box<dyn Stream<Item = T> + Send + 'a>>;

    #[farref::remote]
    fn any_in_an_alias(to: u64) -> farref::Result<BoxStream<'static, u64>> {
        Ok(Box::pin(Each(0..to)))
    }

    struct Till(u64);

    #[farref::remote]
    impl Till {
        pub(crate) async fn new(coins: u64) -> Self {
            Self(coins)
        }

        pub(crate) fn coins(&self) -> impl Stream<Item = u64> + use<> {
            Each(0..self.0)
        }
    }

    let (cluster, peer) = pair().await?;
    let mut here = std::pin::pin!(any(3).await);
    let first = std::future::poll_fn(|context| here.as_mut().poll_next(context)).await;
    assert_eq!(first, Some(0));
    let mut stream: Streaming<u64> = any::on(&peer, 3).await?;
    assert_eq!(stream.next().await.transpose()?, Some(0));
    drop(stream);
    assert_eq!(all(any::on(&peer, 3).await?).await?, [0, 1, 2]);
    assert_eq!(all(any_or_none::on(&peer, 3).await?).await?, [0, 1, 2]);
    let none = any_or_none::on(&peer, 0).result().await?;
    assert_eq!(none.map(drop), Err("none".to_owned()));
    assert_eq!(all(any_of_an_alias::on(&peer, 1).await?).await?, [Ok(0)]);
    assert_eq!(all(any_in_a_box::on(&peer, 3).await?).await?, [0, 1, 2]);
    assert_eq!(all(any_in_an_alias::on(&peer, 3).await?).await?, [0, 1, 2]);
    let till = Till::new_on(&peer, 3).remote();
    assert_eq!(all(till.coins().await?).await?, [0, 1, 2]);
    drop(till);
    let there: RRef<Streaming<u64>> = any::on(&peer, 3).remote();
    assert_eq!(all(there.to_here().await?).await?, [0, 1, 2]);
    drop(there);
    finish(cluster).await
}

/// T1: the maker of a stream that is slower than its reader is waited for, item by item.
#[tokio::test]
async fn an_item_arrives_before_the_next_one_is_made() -> Result<()> {
    #[farref::remote(name = "streams::echo_stream")]
    async fn echo(numbers: Streaming<u64>) -> Streaming<u64> {
        Streaming::new(Sums::of(numbers))
    }

    let (cluster, peer) = pair().await?;
    let (sender, channel) = Channel::new();
    let mut sums = echo::on(&peer, Streaming::new(channel)).await?;
    let mut sum = 0;
    for n in 0..100 {
        sender.send(n)?;
        sum += n;
        let item = timeout(TEST_TIMEOUT, sums.next())
            .await
            .context("in time")?;
        assert_eq!(item.transpose()?, Some(sum));
    }
    drop(sender);
    let end = timeout(TEST_TIMEOUT, sums.next())
        .await
        .context("in time")?;
    assert!(end.is_none(), "{end:?}");
    finish(cluster).await
}

/// T1: whatever the items are.
#[tokio::test]
async fn items_are_what_they_were() -> Result<()> {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Row {
        #[serde(skip_serializing_if = "Option::is_none", default)]
        note: Option<String>,
        #[serde(flatten)]
        rest: std::collections::BTreeMap<String, u32>,
    }

    fn rows() -> Vec<Row> {
        let note = |n: u32| n.is_multiple_of(2).then(|| n.to_string());
        let rest = |n: u32| (0..n % 5).map(|i| (i.to_string(), n)).collect();
        let row = |n| Row {
            note: note(n),
            rest: rest(n),
        };
        (0..3000).map(row).collect()
    }

    fn outcomes() -> Vec<std::result::Result<u8, String>> {
        vec![Ok(1), Err("two".to_owned()), Ok(3)]
    }

    fn values() -> Vec<serde_json::Value> {
        vec![serde_json::json!({ "a": [1, null, "text"] }), 7.into()]
    }

    fn buffers() -> Vec<Vec<u8>> {
        [0, 10, 100_000, 3_000_000, 10]
            .map(|size| vec![7; size])
            .to_vec()
    }

    #[farref::remote]
    async fn stream_rows() -> Streaming<Row> {
        Streaming::new(Each(rows().into_iter()))
    }

    #[farref::remote]
    async fn stream_outcomes() -> Streaming<std::result::Result<u8, String>> {
        Streaming::new(Each(outcomes().into_iter()))
    }

    #[farref::remote]
    async fn stream_values() -> Streaming<serde_json::Value> {
        Streaming::new(Each(values().into_iter()))
    }

    #[farref::remote]
    async fn stream_nothing() -> Streaming<()> {
        Streaming::new(Each(std::iter::repeat_n((), 5000)))
    }

    #[farref::remote]
    async fn stream_buffers() -> Streaming<(u8, Blob)> {
        let blobs = buffers().into_iter().map(|buffer| (1, Blob::from(buffer)));
        Streaming::new(Each(blobs))
    }

    #[farref::remote]
    async fn stream_streams() -> Streaming<Streaming<u64>> {
        Streaming::new(Each((0..10).map(|n| Streaming::new(Each(0..n)))))
    }

    let (cluster, peer) = pair().await?;
    assert!(all(stream_rows::on(&peer).await?).await? == rows());
    assert_eq!(all(stream_outcomes::on(&peer).await?).await?, outcomes());
    assert_eq!(all(stream_values::on(&peer).await?).await?, values());
    assert_eq!(all(stream_nothing::on(&peer).await?).await?.len(), 5000);
    let came = all(stream_buffers::on(&peer).await?).await?;
    let came = came.into_iter().map(|(_, blob)| blob.to_vec());
    assert!(came.eq(buffers()));
    for (n, stream) in all(stream_streams::on(&peer).await?)
        .await?
        .into_iter()
        .enumerate()
    {
        assert_eq!(all(stream).await?.len(), n);
    }
    finish(cluster).await
}

/// T1, T5, SR-1: items that come with something and items that come alone keep their order among each other, also where
/// somebody who has begun to read hands the rest on.
#[tokio::test]
async fn items_of_different_kinds_keep_their_order() -> Result<()> {
    #[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
    struct Row {
        number: u32,
        #[serde(skip_serializing_if = "Option::is_none", default)]
        note: Option<String>,
        beside: Blob,
    }

    /// Some with a note, some with a buffer that travels beside them, some with neither.
    fn row(number: u32) -> Row {
        let size = if number % 4 == 1 { 5000 } else { 1 };
        Row {
            number,
            note: (number % 4 == 2).then(|| number.to_string()),
            beside: Blob::from(vec![number as u8; size]),
        }
    }

    #[farref::remote]
    async fn mixed_rows() -> Streaming<Row> {
        Streaming::new(Each((0..1000).map(row)))
    }

    /// References among numbers.
    #[farref::remote]
    async fn mixed_references() -> Streaming<std::result::Result<RRef<u32>, u32>> {
        let worker = Worker::current().expect("inside of a remote function");
        let item = move |n: u32| match n % 3 {
            0 => Ok(worker.rref(n).expect("a member")),
            _ => Err(n),
        };
        Streaming::new(Each((0..300).map(item)))
    }

    #[farref::remote]
    async fn all_but_the_first(mut rows: Streaming<Row>) -> Streaming<Row> {
        let first = rows.next().await;
        assert!(matches!(first, Some(Ok(Row { number: 0, .. }))));
        rows
    }

    let (cluster, peer) = pair().await?;
    let rows: Vec<_> = (0..1000).map(row).collect();
    assert!(all(mixed_rows::on(&peer).await?).await? == rows);
    let own = Streaming::new(Each(rows.clone().into_iter()));
    let rest = all_but_the_first::on(&peer, own).await?;
    assert!(all(rest).await? == rows[1..]);
    let mut references = mixed_references::on(&peer).await?;
    for n in 0..300 {
        let came = match references.next().await.context("an item")?? {
            Ok(reference) => reference.to_here().await?,
            Err(number) => number,
        };
        assert_eq!(came, n);
    }
    drop((references, peer));
    finish(cluster).await
}

/// T1: what can be sent alone can be sent in a stream, whatever comes before it.
#[tokio::test]
async fn an_item_that_fits_into_a_message_is_sent() -> Result<()> {
    #[farref::remote]
    async fn sizes(of: Vec<usize>) -> Streaming<Blob> {
        Streaming::new(Each(of.into_iter().map(|size| Blob::from(vec![1; size]))))
    }

    const MOST: usize = 1 << 20;
    let cluster = Cluster::start_with(2, |builder| builder.max_message_bytes(MOST as u64)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let of: Vec<_> = (0..100)
        .map(|n| [100, 30_000, MOST - 1000][n % 3])
        .collect();
    let came = all(sizes::on(&peer, of.clone()).await?).await?;
    assert!(came.iter().map(|blob| blob.len()).eq(of));
    let mut too_much = sizes::on(&peer, vec![1, MOST + 1, 1]).await?;
    assert_eq!(too_much.next().await.context("an item")??.len(), 1);
    let refused = too_much.next().await.context("an error")?;
    assert!(refused.is_err(), "{refused:?}");
    assert!(too_much.next().await.is_none());
    finish(cluster).await
}

/// T1: a batch is no larger than a message may be.
#[tokio::test]
async fn items_that_are_ready_together_are_sent_where_messages_are_small() -> Result<()> {
    #[farref::remote(name = "streams::many_numbers")]
    async fn numbers(count: u64) -> Streaming<u64> {
        Streaming::new(Each((0..count).map(|n| u64::MAX - n)))
    }

    let cluster = Cluster::start_with(2, |builder| builder.max_message_bytes(4 << 10)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let came = all(numbers::on(&peer, 5000).await?).await?;
    assert!(came.into_iter().eq((0..5000).map(|n| u64::MAX - n)));
    drop(peer);
    finish(cluster).await
}

/// T4, SR-4: a batch that its reader's worker refuses is no end, also where nothing of it arrives.
#[tokio::test]
async fn an_item_that_is_too_large_is_an_error_and_no_end() -> Result<()> {
    #[farref::remote]
    async fn texts(of: Vec<usize>) -> Streaming<String> {
        Streaming::new(Each(of.into_iter().map(|size| "a".repeat(size))))
    }

    const MOST: usize = 1 << 20;
    let cluster = Cluster::start_with(2, |builder| builder.max_message_bytes(MOST as u64)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    for before in [0, 1, 3] {
        let mut of = vec![10_000; before];
        of.extend([2 * MOST, 10_000]);
        let mut stream = texts::on(&peer, of).await?;
        for _ in 0..before {
            assert_eq!(stream.next().await.context("an item")??.len(), 10_000);
        }
        let refused = stream.next().await.context("an error")?;
        assert!(matches!(refused, Err(Error::Codec { .. })), "{refused:?}");
        assert!(stream.next().await.is_none());
    }
    finish(cluster).await
}

/// T1: what goes along with an item is all there, of each kind.
#[tokio::test]
async fn items_may_have_buffers_and_references_in_them() -> Result<()> {
    #[farref::remote(name = "streams::buffers_and_references")]
    async fn both(count: u8) -> Streaming<(Blob, RRef<u8>)> {
        let worker = Worker::current().expect("inside of a remote function");
        Streaming::new(Each((0..count).map(move |n| {
            let blob = Blob::from(vec![n; 10_000]);
            (blob, worker.rref(n).expect("a member"))
        })))
    }

    let (cluster, peer) = pair().await?;
    let items = all(both::on(&peer, 20).await?).await?;
    for (n, (blob, rref)) in (0..20).zip(&items) {
        assert_eq!(blob[..], [n; 10_000]);
        assert_eq!(rref.to_here().await?, n);
    }
    assert_eq!(items.len(), 20);
    drop(items);
    finish(cluster).await
}

/// T2
#[tokio::test]
async fn a_stream_that_nobody_reads_is_not_made() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let (items, made) = Counted::new(Each(0..));
    #[farref::remote]
    async fn hold(numbers: Streaming<u64>) -> RRef<Streaming<u64>> {
        let worker = Worker::current().expect("inside of a remote function");
        worker.rref(numbers).expect("a member")
    }
    let there = hold::on(&peer, Streaming::new(items)).await?;
    let mut here = there.to_here().await?;
    assert_eq!(made.load(Ordering::SeqCst), 0);
    assert_eq!(here.next().await.transpose()?, Some(0));
    assert!(made.load(Ordering::SeqCst) > 0);
    drop((here, there));
    finish(cluster).await
}

/// T2: what a reader has not read is not made but for a bounded number of items, however long it waits.
#[tokio::test]
async fn a_slow_reader_holds_the_maker_back() -> Result<()> {
    static MADE: AtomicUsize = AtomicUsize::new(0);

    #[farref::remote(name = "streams::endless")]
    async fn endless() -> Streaming<u64> {
        Streaming::new(Each((0..).inspect(|_| {
            MADE.fetch_add(1, Ordering::SeqCst);
        })))
    }

    #[farref::remote(name = "streams::tick")]
    async fn tick() {}

    let (cluster, peer) = pair().await?;
    let mut stream = endless::on(&peer).await?;
    for n in 0..10_000 {
        assert_eq!(stream.next().await.transpose()?, Some(n));
        if n % 1000 == 0 {
            // Whatever is going to be made without being asked for has time to be.
            for _ in 0..50 {
                tick::on(&peer).await?;
            }
        }
        let ahead = MADE.load(Ordering::SeqCst) - n as usize;
        assert!(ahead <= 3 * 1024 + 64 + 1, "{ahead} items ahead of {n}");
    }
    drop(stream);
    finish(cluster).await
}

/// T6: the limit of a call ends when its stream is there.
#[tokio::test]
async fn a_stream_outlives_the_limit_of_its_call() -> Result<()> {
    let (cluster, peer) = pair().await?;

    /// Reads a stream in the background, past the end of the call that brought it.
    #[farref::remote]
    async fn read_on(mut numbers: Streaming<u64>) -> farref::Result<Streaming<u64>> {
        let first = numbers.next().await.transpose()?;
        assert_eq!(first, Some(0));
        let (sender, channel) = Channel::new();
        tokio::spawn(async move {
            while let Some(Ok(number)) = numbers.next().await {
                if sender.send(number).is_err() {
                    return;
                }
            }
        });
        Ok(Streaming::new(channel))
    }

    // The shortest limit in which this machine carries out the call.
    let mut limits = [0.1, 1.0, 10.0, 100.0]
        .map(Duration::from_secs_f64)
        .into_iter();
    let (sender, mut far) = loop {
        let limit = limits.next().context("the call is never in time")?;
        let (sender, channel) = Channel::new();
        sender.send(0)?;
        let call = read_on::on(&peer, Streaming::new(channel)).timeout(limit);
        match call.await {
            Err(Error::Timeout { .. }) => {}
            far => {
                tokio::time::sleep(2 * limit).await;
                break (sender, far?);
            }
        }
    };
    for n in 1..10 {
        sender.send(n).context("nobody reads any more")?;
        let next = timeout(TEST_TIMEOUT, far.next()).await.context("in time")?;
        assert_eq!(next.transpose()?, Some(n));
    }
    drop((sender, far));
    finish(cluster).await
}

/// T6: an item that does not come in time is an error, and nothing is lost by it.
#[tokio::test]
async fn a_late_item_is_an_error_and_comes_all_the_same() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let (sender, channel) = Channel::new();

    #[farref::remote(name = "streams::pass_on")]
    async fn pass_on(numbers: Streaming<u64>) -> Streaming<u64> {
        numbers
    }

    let limit = Duration::from_millis(30);
    let mut far = pass_on::on(&peer, Streaming::new(channel))
        .await?
        .timeout(limit);
    for n in 0..3 {
        match far.next().await {
            Some(Err(Error::Timeout {
                peer, limit: given, ..
            })) => {
                assert_eq!((&*peer, given), ("worker0", limit));
            }
            other => panic!("{other:?}"),
        }
        sender.send(n)?;
        far = far.timeout(None);
        assert_eq!(far.next().await.transpose()?, Some(n));
        far = far.timeout(limit);
    }
    drop((sender, far));
    finish(cluster).await
}

/// T6, A3: items belong to no context, whatever their reader is in.
#[tokio::test]
async fn items_belong_to_no_context() -> Result<()> {
    #[farref::remote(name = "streams::contexts_of_a_stream")]
    async fn contexts() -> Streaming<bool> {
        Streaming::new(Each((0..3).map(|_| ContextScope::current().is_some())))
    }

    let (cluster, peer) = pair().await?;
    let me = cluster.worker(0);
    let scope = ContextScope::open(me)?;
    let items = scope
        .run(async { all(contexts::on(&peer).await?).await })
        .await?;
    assert_eq!(items, [false; 3]);
    scope.release().await?;
    finish(cluster).await
}

/// Waits for somebody's count.
async fn reaches(count: &AtomicUsize, wanted: usize) -> Result<()> {
    eventually("the count is reached", || {
        count.load(Ordering::SeqCst) == wanted
    })
    .await
}

/// A group of three, and the second and third as peers of the first.
async fn three() -> Result<(Cluster, [farref::Peer; 2])> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let peers = [me.peer("worker1")?, me.peer("worker2")?];
    Ok((cluster, peers))
}
