//! T1, T3, T4: what becomes of streams.

use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result, ensure};
use farref::{Error, Streaming};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::time::timeout;

use super::{LATE, group};
use crate::channels::{self, Fate, Fates, delayed, end_in_time, give_up, is_answer, is_call};
use crate::streams::sources::{Channel, Each, Watched};

/// More than fit into a few batches.
const MANY: u64 = 10_000;

#[farref::remote(name = "seam::count_to")]
async fn count_to(end: u64) -> Streaming<u64> {
    Streaming::new(Each(0..end))
}

static STOPPED: AtomicUsize = AtomicUsize::new(0);

/// Never ends by itself.
#[farref::remote(name = "seam::count_for_ever")]
async fn count_for_ever() -> Streaming<u64> {
    let (sender, channel) = Channel::new();
    let _ = sender.send(0);
    std::mem::forget(sender);
    Streaming::new(Watched(channel, &STOPPED))
}

/// The next item, or how the stream ended.
async fn next(stream: &mut Streaming<u64>) -> Result<Option<farref::Result<u64>>> {
    timeout(TEST_TIMEOUT, stream.next())
        .await
        .context("in time")
}

/// What it brings is 0, 1, 2 and so on. How many that were, and the error that it ended with.
async fn read(stream: &mut Streaming<u64>) -> Result<(u64, Option<Error>)> {
    let mut expected = 0;
    while let Some(item) = next(stream).await? {
        match item {
            Ok(item) => ensure!(item == expected, "{item} after {expected} items"),
            Err(error) => {
                ensure!(next(stream).await?.is_none(), "something comes after it");
                return Ok((expected, Some(error)));
            }
        }
        expected += 1;
    }
    Ok((expected, None))
}

/// T1: also when a batch overtakes the one before it.
#[tokio::test]
async fn items_whose_batches_are_late_come_in_order_and_then_the_end() -> Result<()> {
    let fates = Fates::default();
    let workers = delayed([&Fates::default(), &fates]).await?;
    let mut stream = count_to::on(&workers[0].peer("w1")?, MANY).await?;
    for _ in 0..3 {
        fates.next(is_answer, Fate::Late(LATE / 4));
    }
    let (items, error) = read(&mut stream).await?;
    ensure!(items == MANY && error.is_none(), "{items} and {error:?}");
    ensure!(fates.is_empty(), "fewer were late");
    channels::end(workers).await
}

/// T1: what asks for batches is late, and keeps its order, as small calls do (AG-1).
#[tokio::test]
async fn items_that_are_asked_for_late_come_in_order_and_then_the_end() -> Result<()> {
    let fates = Fates::default();
    let workers = delayed([&fates, &Fates::default()]).await?;
    let mut stream = count_to::on(&workers[0].peer("w1")?, MANY).await?;
    fates.all(is_call, Fate::Late(LATE / 20));
    let (items, error) = read(&mut stream).await?;
    ensure!(items == MANY && error.is_none(), "{items} and {error:?}");
    channels::end(workers).await
}

/// T1, F4: no item comes twice. Whoever asks for the same twice may be cut off, with words.
#[tokio::test]
async fn items_that_are_asked_for_twice_come_once() -> Result<()> {
    let fates = Fates::default();
    let workers = group([&fates, &Fates::default()]).await?;
    let peer = workers[0].peer("w1")?;
    let mut stream = count_to::on(&peer, MANY).await?;
    fates.next(is_call, Fate::Twice);
    let (items, error) = read(&mut stream).await?;
    ensure!(fates.is_empty(), "nothing was asked for twice");
    match error {
        None => ensure!(items == MANY, "{items}"),
        Some(Error::PeerLost { .. } | Error::OwnerLost { .. } | Error::Evicted { .. }) => {}
        Some(other) => ensure!(false, "{other:?}"),
    }
    drop(stream);
    end_in_time(workers).await
}

/// T4: a batch that is lost is an error when its maker is given up, after all items before it.
#[tokio::test]
async fn a_batch_that_is_lost_is_an_error_and_no_end() -> Result<()> {
    let fates = [Fates::default(), Fates::default()];
    let [a, b] = group([&fates[0], &fates[1]]).await?;
    let mut stream = count_to::on(&a.peer("w1")?, MANY).await?;
    fates[1].next(is_answer, Fate::Lose);
    let reading = tokio::spawn(async move { read(&mut stream).await });
    eventually("a batch is lost", || fates[1].is_empty()).await?;
    give_up([&fates[0], &fates[1]])?;
    let (items, error) = reading.await??;
    ensure!(items < MANY, "nothing was lost");
    ensure!(
        matches!(
            error,
            Some(Error::PeerLost { .. } | Error::OwnerLost { .. })
        ),
        "{error:?}"
    );
    b.crash().await;
    timeout(TEST_TIMEOUT, a.shutdown()).await??;
    Ok(())
}

/// T3: a reader is gone for the maker, too, when the news of that arrives.
#[tokio::test]
async fn a_stream_whose_reader_is_gone_is_dropped_though_the_news_is_late() -> Result<()> {
    let fates = Fates::default();
    let workers = delayed([&fates, &Fates::default()]).await?;
    let mut stream = count_for_ever::on(&workers[0].peer("w1")?).await?;
    ensure!(matches!(next(&mut stream).await?, Some(Ok(0))));
    fates.all(|message| !is_call(message), Fate::Late(LATE));
    drop(stream);
    eventually("it is dropped", || STOPPED.load(Ordering::SeqCst) == 1).await?;
    channels::end(workers).await
}
