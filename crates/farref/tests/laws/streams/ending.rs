//! T3, T4: how streams end before their end.

use std::sync::atomic::AtomicUsize;

use anyhow::{Context as _, Result};
use farref::{Error, RRef, Stream, Streaming, Worker};
use farref_testkit::TEST_TIMEOUT;
use serde::ser::SerializeTuple as _;
use tokio::sync::Notify;
use tokio::time::timeout;

use super::sources::{Channel, Each, Watched};
use super::{all, numbers, reaches};
use crate::cluster::{finish, pair};

/// T3: the maker's stream is dropped when its reader is, whether items are ready or not.
#[tokio::test]
async fn dropping_the_reader_drops_what_makes_the_items() -> Result<()> {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    #[farref::remote(name = "streams::watched")]
    async fn watched(count: u64) -> Streaming<u64> {
        let (sender, channel) = Channel::new();
        for n in 0..count {
            sender.send(n).expect("it is open");
        }
        // It never ends.
        std::mem::forget(sender);
        Streaming::new(Watched(channel, &DROPPED))
    }

    let (cluster, peer) = pair().await?;
    // Before it is read.
    drop(watched::on(&peer, 3).await?);
    reaches(&DROPPED, 1).await?;
    // While some are ready.
    let mut stream = watched::on(&peer, 10_000).await?;
    assert_eq!(stream.next().await.transpose()?, Some(0));
    drop(stream);
    reaches(&DROPPED, 2).await?;
    // While one is waited for.
    let mut stream = watched::on(&peer, 1).await?;
    assert_eq!(stream.next().await.transpose()?, Some(0));
    let nothing = timeout(std::time::Duration::from_millis(20), stream.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    drop(stream);
    reaches(&DROPPED, 3).await?;
    finish(cluster).await
}

/// T3: so is the stream of a call that is cancelled, or that fails.
#[tokio::test]
async fn a_stream_goes_with_the_call_that_was_to_take_it() -> Result<()> {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);
    static BEGUN: Notify = Notify::const_new();

    #[farref::remote(name = "streams::take_and_wait")]
    async fn take_and_wait(mut items: Streaming<u64>) {
        let _ = items.next().await;
        BEGUN.notify_one();
        std::future::pending().await
    }

    #[farref::remote(name = "streams::take_and_fail")]
    async fn take_and_fail(_: Streaming<u64>) -> Result<(), String> {
        Err("no".to_owned())
    }

    let (cluster, peer) = pair().await?;
    let watched = || Streaming::new(Watched(Each(0..), &DROPPED));
    drop(watched());
    reaches(&DROPPED, 1).await?;
    drop(take_and_wait::on(&peer, watched())); // never made
    reaches(&DROPPED, 2).await?;
    let call = take_and_wait::on(&peer, watched()).start();
    BEGUN.notified().await;
    drop(call);
    reaches(&DROPPED, 3).await?;
    take_and_fail::on(&peer, watched()).await.unwrap_err();
    reaches(&DROPPED, 4).await?;
    finish(cluster).await
}

/// T3: the end of a stream frees what made it, though its reader is still there.
#[tokio::test]
async fn a_stream_that_is_over_is_dropped_at_once() -> Result<()> {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    #[farref::remote(name = "streams::watched_to_its_end")]
    async fn watched() -> Streaming<u64> {
        Streaming::new(Watched(Each(0..3), &DROPPED))
    }

    let (cluster, peer) = pair().await?;
    let mut stream = watched::on(&peer).await?;
    while stream.next().await.transpose()?.is_some() {}
    reaches(&DROPPED, 1).await?;
    // Nothing refers to anything, though it is there.
    finish(cluster).await?;
    assert!(stream.next().await.is_none());
    Ok(())
}

/// T4: what was ready before a panic comes before it; then nothing.
#[tokio::test]
async fn a_panic_comes_after_the_items_before_it() -> Result<()> {
    #[farref::remote(name = "streams::panics_at")]
    async fn panics_at(n: u64) -> Streaming<u64> {
        Streaming::new(Each((0..).inspect(move |&i| assert!(i < n, "at {n}"))))
    }

    let (cluster, peer) = pair().await?;
    for n in [0, 1, 100, 5000] {
        let mut stream = panics_at::on(&peer, n).await?;
        for i in 0..n {
            assert_eq!(stream.next().await.transpose()?, Some(i));
        }
        match stream.next().await {
            Some(Err(Error::Remote(error))) => {
                assert!(error.panicked);
                assert_eq!(error.message(), format!("at {n}"));
                assert_eq!(error.function.as_str(), "streams::panics_at");
                assert_eq!(&*error.worker, "worker1");
            }
            other => panic!("after {n} items, instead of the panic: {other:?}"),
        }
        assert!(stream.next().await.is_none());
    }
    assert_eq!(all(numbers::on(&peer, 0, 3).await?).await?.len(), 3);
    finish(cluster).await
}

/// T4: nothing is sent of an item that panics while it is written, and all that were ready before it are. The same holds
/// for one that panics when it is dropped, which has been sent by then.
#[tokio::test]
async fn an_item_that_panics_comes_after_the_items_before_it() -> Result<()> {
    #[derive(Clone, Copy, PartialEq, Debug)]
    enum Panics {
        Never,
        Written,
        Dropped,
    }

    /// A copy of one that was sent never panics.
    #[derive(Debug)]
    struct Touchy(u64, Panics);
    impl serde::Serialize for Touchy {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let mut twice = serializer.serialize_tuple(2)?;
            twice.serialize_element(&self.0)?;
            assert!(self.1 != Panics::Written, "half of it is written");
            twice.serialize_element(&self.0)?;
            twice.end()
        }
    }
    impl<'de> serde::Deserialize<'de> for Touchy {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let (number, again): (u64, u64) = serde::Deserialize::deserialize(deserializer)?;
            match number == again {
                true => Ok(Self(number, Panics::Never)),
                false => Err(serde::de::Error::custom("two halves of different items")),
            }
        }
    }
    impl Drop for Touchy {
        fn drop(&mut self) {
            assert!(self.1 != Panics::Dropped, "it does not want to go");
        }
    }

    fn touchy(at: u64, panics: Panics) -> Streaming<Touchy> {
        Streaming::new(Each((0..).map(move |n| match n == at {
            true => Touchy(n, panics),
            false => Touchy(n, Panics::Never),
        })))
    }
    #[farref::remote(name = "streams::panics_when_written")]
    async fn panics_when_written(at: u64) -> Streaming<Touchy> {
        touchy(at, Panics::Written)
    }
    #[farref::remote(name = "streams::panics_when_dropped")]
    async fn panics_when_dropped(at: u64) -> Streaming<Touchy> {
        touchy(at, Panics::Dropped)
    }

    /// How many come before the error, and what that says.
    async fn until_error(mut stream: Streaming<Touchy>) -> Result<(u64, String)> {
        let mut count = 0;
        loop {
            match stream.next().await.context("an item or an error")? {
                Ok(item) => assert_eq!(item.0, count),
                Err(Error::Remote(error)) => {
                    assert!(error.panicked);
                    assert!(stream.next().await.is_none());
                    return Ok((count, error.message().to_owned()));
                }
                Err(other) => return Err(other.into()),
            }
            count += 1;
        }
    }

    let (cluster, peer) = pair().await?;
    for at in [0, 1, 7, 5000] {
        let (count, message) = until_error(panics_when_written::on(&peer, at).await?).await?;
        assert_eq!((count, &*message), (at, "half of it is written"));
        let (count, message) = until_error(panics_when_dropped::on(&peer, at).await?).await?;
        assert!(count > at, "{count} of {at}");
        assert_eq!(message, "it does not want to go");
    }
    finish(cluster).await
}

/// T4: an item that cannot be written ends the stream, after those before it.
#[tokio::test]
async fn an_item_that_cannot_be_sent_is_an_error() -> Result<()> {
    #[farref::remote(name = "streams::one_reference")]
    async fn one_reference() -> Streaming<Result<u64, RRef<u64>>> {
        let worker = Worker::current().expect("inside of a remote function");
        let other = worker.rref(1).expect("a member");
        let items = (0..10).map(move |n| match n {
            7 => Err(other.clone()),
            n => Ok(n),
        });
        let (sender, channel) = Channel::new();
        items.for_each(|item| sender.send(item).expect("it is open"));
        Streaming::new(channel)
    }

    #[derive(Debug)]
    struct Unsendable;
    impl serde::Serialize for Unsendable {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("too secret"))
        }
    }
    impl<'de> serde::Deserialize<'de> for Unsendable {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Self)
        }
    }

    #[farref::remote(name = "streams::secrets")]
    async fn secrets() -> Streaming<Result<u64, Unsendable>> {
        Streaming::new(Each((0..10).map(|n| match n {
            7 => Err(Unsendable),
            n => Ok(n),
        })))
    }

    let (cluster, peer) = pair().await?;
    let mut stream = secrets::on(&peer).await?;
    for n in 0..7 {
        let item = stream.next().await.transpose()?;
        assert!(matches!(item, Some(Ok(found)) if found == n), "{item:?}");
    }
    let refused = stream.next().await.context("an error")?;
    let text = refused.unwrap_err().to_string();
    assert!(
        text.contains("too secret") && text.contains("secrets"),
        "{text}"
    );
    assert!(stream.next().await.is_none());
    // One that can be sent is.
    let items = all(one_reference::on(&peer).await?).await?;
    assert_eq!(items.iter().filter(|item| item.is_err()).count(), 1);
    drop(items);
    finish(cluster).await
}

/// T4, F2
#[tokio::test]
async fn the_death_of_the_maker_is_an_error_that_names_it() -> Result<()> {
    #[farref::remote(name = "streams::idle_stream")]
    async fn idle() -> Streaming<u64> {
        let (sender, channel) = Channel::new();
        sender.send(1).expect("it is open");
        std::mem::forget(sender);
        Streaming::new(channel)
    }

    let (cluster, peer) = pair().await?;
    let mut read = idle::on(&peer).await?;
    let mut unread = idle::on(&peer).await?;
    assert_eq!(read.next().await.transpose()?, Some(1));
    let waiting = tokio::spawn(async move { read.next().await });
    cluster.crash(1).await;
    let waited = timeout(TEST_TIMEOUT, waiting).await.context("in time")??;
    for lost in [waited, unread.next().await] {
        match lost {
            Some(Err(
                ref error @ Error::PeerLost {
                    ref peer,
                    ref function,
                    ..
                },
            )) => {
                assert_eq!(&**peer, "worker1");
                assert_eq!(function.as_str(), "streams::idle_stream");
                let text = error.to_string();
                assert!(
                    text.contains("the stream of `streams::idle_stream`"),
                    "{text}"
                );
                assert!(!text.contains("answered"), "{text}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(unread.next().await.is_none());
    finish(cluster).await
}

/// T4: a stage hands on with `?` what was wrong with what it reads, and that is its end, here and from afar.
#[tokio::test]
async fn a_stream_of_results_ends_with_its_first_error() -> Result<()> {
    #[derive(PartialEq, Debug, serde::Serialize, serde::Deserialize, thiserror::Error)]
    #[error("{0} is odd")]
    struct Odd(u64);

    #[farref::remote]
    async fn half(number: u64) -> Result<u64, Odd> {
        match number % 2 {
            0 => Ok(number / 2),
            _ => Err(Odd(number)),
        }
    }

    /// Two, and then the error, and then what nobody is to see.
    fn halves(error: Error) -> impl Stream<Item = farref::Result<u64>> {
        Each([Ok(1), Ok(2), Err(error), Ok(3)].into_iter())
    }

    #[farref::remote]
    async fn stage() -> farref::Result<impl Stream<Item = farref::Result<u64>>> {
        let caller = Worker::caller().expect("inside of a remote function");
        Ok(halves(half::on(&caller, 7).await.unwrap_err()))
    }

    #[farref::remote]
    async fn next_stage(input: Streaming<u64>) -> Streaming<u64> {
        Streaming::of_results(input)
    }

    let (cluster, peer) = pair().await?;
    let here = Streaming::of_results(halves(Error::ContextReleased));
    let one = stage::on(&peer).await?;
    let two = next_stage::on(&peer, stage::on(&peer).await?).await?;
    for (mut stream, is_here) in [(here, true), (one, false), (two, false)] {
        assert_eq!(stream.next().await.transpose()?, Some(1));
        assert_eq!(stream.next().await.transpose()?, Some(2));
        let error = stream.next().await.expect("the error").unwrap_err();
        match is_here {
            true => assert!(matches!(error, Error::ContextReleased), "{error:?}"),
            // F5
            false => assert_eq!(error.downcast_ref(), Some(&Odd(7)), "{error:?}"),
        }
        assert!(stream.next().await.is_none());
    }
    finish(cluster).await
}

/// R1, R2: references in items live as long as the items do, read or not.
#[tokio::test]
async fn references_in_items_are_freed_with_them() -> Result<()> {
    #[farref::remote(name = "streams::references_in_items")]
    async fn references(count: usize) -> Streaming<(u32, RRef<String>)> {
        let worker = Worker::current().expect("inside of a remote function");
        Streaming::new(Each((0..count).map(move |n| {
            let text = worker.rref(n.to_string()).expect("a member");
            (n as u32, text)
        })))
    }

    let (cluster, peer) = pair().await?;
    let mut stream = references::on(&peer, 2000).await?;
    for n in 0..1500 {
        let (number, text) = stream.next().await.context("an item")??;
        assert_eq!(number, n);
        if n % 100 == 0 {
            assert_eq!(text.to_here().await?, n.to_string());
        }
    }
    // The others are on their way, or here and not read.
    drop(stream);
    let items = all(references::on(&peer, 300).await?).await?;
    assert_eq!(items[299].1.to_here().await?, "299");
    drop(items);
    finish(cluster).await
}

/// T3, T4: an item that cannot be read is the last that comes, and nobody makes more, though the reader is still there.
#[tokio::test]
async fn a_stream_whose_item_cannot_be_read_is_dropped_by_its_maker() -> Result<()> {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    #[derive(Debug)]
    struct Unreadable(u64);
    impl serde::Serialize for Unreadable {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.serialize(serializer)
        }
    }
    impl<'de> serde::Deserialize<'de> for Unreadable {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            match u64::deserialize(from)? {
                7 => Err(serde::de::Error::custom("not a seven")),
                n => Ok(Self(n)),
            }
        }
    }

    #[farref::remote(name = "streams::seven_is_unreadable")]
    async fn endless() -> Streaming<Unreadable> {
        Streaming::new(Watched(Each((0..).map(Unreadable)), &DROPPED))
    }

    let (cluster, peer) = pair().await?;
    let mut stream = endless::on(&peer).await?;
    for n in 0..7 {
        let item = stream.next().await.transpose()?;
        assert_eq!(item.map(|item| item.0), Some(n));
    }
    let unread = stream.next().await.context("an error")?;
    assert!(matches!(unread, Err(Error::Codec { .. })), "{unread:?}");
    reaches(&DROPPED, 1).await?;
    assert!(stream.next().await.is_none());
    finish(cluster).await
}
