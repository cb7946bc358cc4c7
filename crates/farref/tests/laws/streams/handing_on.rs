//! T5: a stream has one reader, and can be handed on.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, Result};
use farref::{Error, Misuse, RRef, Stream, Streaming};
use tokio::sync::Notify;

use super::sources::{Each, Watched};
use super::{all, collect, numbers, reaches, three};
use crate::cluster::{finish, pair};

/// Streams that a worker was told to keep.
static KEPT: Mutex<Vec<Streaming<u64>>> = Mutex::new(Vec::new());

#[farref::remote]
async fn keep(stream: Streaming<u64>) {
    KEPT.lock().expect("nobody panics").push(stream);
}

#[farref::remote]
async fn kept() -> Option<Streaming<u64>> {
    KEPT.lock().expect("nobody panics").pop()
}

/// Reads a few items, and hands the rest on.
#[farref::remote]
async fn skip(mut stream: Streaming<u64>, count: u64) -> farref::Result<Streaming<u64>> {
    for _ in 0..count {
        stream.next().await.transpose()?;
    }
    Ok(stream)
}

/// T5: whoever handed it on unread may die.
#[tokio::test]
async fn a_stream_that_is_handed_on_unread_has_nothing_to_do_with_who_did() -> Result<()> {
    let (cluster, [_, two]) = three().await?;
    // The maker is this worker, the one in the middle is the second.
    let middle = cluster.worker(0).peer("worker1")?;
    let mine = Streaming::new(Each(0..5000));
    let back = skip::on(&middle, mine, 0).await?;
    keep::on(&two, back).await?;
    cluster.crash(1).await;
    let stream = kept::on(&two).await?.context("it was kept")?;
    assert_eq!(all(stream).await?.len(), 5000);
    finish(cluster).await
}

/// T5: nothing is lost, and nothing comes twice.
#[tokio::test]
async fn a_stream_that_was_begun_is_read_on_elsewhere() -> Result<()> {
    let (cluster, [one, two]) = three().await?;
    for skipped in [1, 1000, 1500, 4999, 5000] {
        let stream = numbers::on(&one, 0, 5000).await?;
        // From `one` to `two`, which has read some of it, through here, and back.
        let rest = skip::on(&two, stream, skipped).await?;
        let rest = collect::on(&one, rest).await?;
        assert!(rest == (skipped..5000).collect::<Vec<_>>(), "{skipped}");
        // The same with this worker in the middle.
        let mut stream = numbers::on(&one, 0, 5000).await?;
        for _ in 0..skipped {
            stream.next().await.transpose()?;
        }
        let rest = collect::on(&two, stream).await?;
        assert!(rest == (skipped..5000).collect::<Vec<_>>(), "{skipped}");
    }
    finish(cluster).await
}

/// T5: one of this worker's own can be begun here, too.
#[tokio::test]
async fn a_stream_of_ones_own_can_be_begun_before_it_is_sent() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let mut stream = Streaming::new(Each(0..10));
    assert_eq!(stream.next().await.transpose()?, Some(0));
    assert_eq!(
        collect::on(&peer, stream).await?,
        (1..10).collect::<Vec<_>>()
    );
    let mut stream = Streaming::new(Each(0..1));
    while stream.next().await.is_some() {}
    assert!(collect::on(&peer, stream).await?.is_empty());
    finish(cluster).await
}

/// T5, and D1: of several who bring the same stream, one has it.
#[tokio::test]
async fn a_stream_has_one_reader() -> Result<()> {
    let (cluster, [one, two]) = three().await?;
    let there: RRef<Streaming<u64>> = numbers::on(&one, 0, 5000).remote();
    let mut first = there.to_here().await?;
    let mut second = there.to_here().await?;
    assert_eq!(first.next().await.transpose()?, Some(0));
    let refused = second.next().await;
    assert!(
        matches!(refused, Some(Err(Error::Misuse(Misuse::StreamTaken)))),
        "a second reader was given {refused:?}"
    );
    assert!(second.next().await.is_none());

    #[farref::remote]
    async fn bring(stream: RRef<Streaming<u64>>) -> farref::Result<()> {
        let brought = stream.to_here().await?.next().await;
        brought.transpose().map(|_| ())
    }
    let refused = bring::on(&two, there.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("one reader"), "{refused}");
    assert_eq!(all(first).await?.len(), 4999);
    drop(there);
    finish(cluster).await
}

/// T3: what stays with its maker after it was brought keeps nothing of what its reader has done with.
#[tokio::test]
async fn a_stream_goes_with_its_reader_and_not_with_where_it_was() -> Result<()> {
    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    #[farref::remote(name = "streams::endless_and_watched")]
    async fn endless() -> Streaming<u64> {
        Streaming::new(Watched(Each(0..), &DROPPED))
    }

    static READ: Notify = Notify::const_new();

    #[farref::remote]
    async fn read_one_and_wait(stream: RRef<Streaming<u64>>) -> farref::Result<()> {
        let mut stream = stream.to_here().await?;
        stream.next().await.transpose()?;
        READ.notify_one();
        std::future::pending().await
    }

    let (cluster, [one, two]) = three().await?;
    let there: RRef<Streaming<u64>> = endless::on(&one).remote();
    // Nobody has read it yet: it stays.
    drop(there.to_here().await?);
    drop(there.to_here().await?);
    let mut stream = there.to_here().await?;
    assert_eq!(stream.next().await.transpose()?, Some(0));
    assert_eq!(DROPPED.load(Ordering::SeqCst), 0);
    drop(stream);
    reaches(&DROPPED, 1).await?;
    let mut late = there.to_here().await?;
    let refused = late.next().await;
    assert!(
        matches!(refused, Some(Err(Error::Misuse(Misuse::StreamTaken)))),
        "{refused:?}"
    );
    drop((there, late));

    // The same if its reader dies.
    let there: RRef<Streaming<u64>> = endless::on(&one).remote();
    let reading = read_one_and_wait::on(&two, there.clone()).start();
    READ.notified().await;
    cluster.crash(2).await;
    assert!(reading.await.is_err());
    reaches(&DROPPED, 2).await?;
    drop(there);
    finish(cluster).await
}

/// S2: what was begun and is handed on was made where the stream was, and not in farref.
#[tokio::test]
async fn a_stream_that_was_begun_is_reported_where_it_was_made() -> Result<()> {
    let (cluster, [one, two]) = three().await?;
    let mut stream = numbers::on(&one, 0, 5000).await?;
    stream.next().await.transpose()?;
    keep::on(&two, stream).await?;
    let reported = cluster.worker(2).references();
    let lines: Vec<_> = reported.0.iter().map(|leak| &leak.location).collect();
    let is_ours = |line: &&Option<String>| {
        let line = line.as_deref();
        line.is_some_and(|line| line.contains("laws/streams.rs"))
    };
    assert!(!lines.is_empty() && lines.iter().all(is_ours), "{lines:?}");
    let stream = kept::on(&two).await?.context("it was kept")?;
    assert_eq!(all(stream).await?.len(), 4999);
    finish(cluster).await
}

/// T5: who brings it at the same time as others has it as well, until one reads it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_may_bring_a_stream_at_once() -> Result<()> {
    let (cluster, [one, _]) = three().await?;
    for _ in 0..200 {
        let there: RRef<Streaming<u64>> = numbers::on(&one, 0, 3).remote();
        there.confirmed().await?;
        let mut bringing = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let there = there.clone();
            bringing.spawn(async move { there.to_here().await.map(drop) });
        }
        for brought in bringing.join_all().await {
            brought?;
        }
    }
    finish(cluster).await
}

/// T5
#[tokio::test]
async fn a_stream_that_was_sent_is_of_no_use() -> Result<()> {
    /// Sends a stream that it keeps.
    struct Twice(std::sync::Arc<Streaming<u64>>);
    impl serde::Serialize for Twice {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            self.0.serialize(serializer)
        }
    }
    impl<'de> serde::Deserialize<'de> for Twice {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            Ok(Self(std::sync::Arc::new(Streaming::deserialize(from)?)))
        }
    }

    #[farref::remote]
    async fn take(_: Twice) {}

    let (cluster, peer) = pair().await?;
    let stream = std::sync::Arc::new(Streaming::new(Each(0..10)));
    take::on(&peer, Twice(stream.clone())).await?;
    let mut stream = std::sync::Arc::into_inner(stream).context("the only one")?;
    let refused = stream.next().await;
    assert!(
        matches!(refused, Some(Err(Error::Misuse(Misuse::StreamHandedOn)))),
        "{refused:?}"
    );
    drop(stream);
    finish(cluster).await
}

/// R8: a stream is read as what it is, also where nothing else is compared.
#[tokio::test]
async fn a_stream_of_other_items_is_refused() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let stream: RRef<Streaming<u64>> = numbers::on(&peer, 0, 3).remote();
    let cast = stream.cast::<Streaming<u32>>();
    assert!(matches!(cast, Err(Error::TypeMismatch(_))), "{cast:?}");

    // Behind a type of the program's that looks the same.
    #[derive(serde::Serialize, serde::Deserialize)]
    enum Either {
        Numbers(Streaming<u64>),
        Texts(Streaming<String>),
    }
    #[farref::remote]
    async fn either(texts: bool) -> Either {
        match texts {
            true => Either::Texts(Streaming::new(Each(std::iter::once("text".to_owned())))),
            false => Either::Numbers(Streaming::new(Each(0..3))),
        }
    }
    match either::on(&peer, true).await? {
        Either::Texts(texts) => assert_eq!(all(texts).await?, ["text"]),
        Either::Numbers(_) => panic!("not these"),
    }
    match either::on(&peer, false).await? {
        Either::Numbers(numbers) => assert_eq!(all(numbers).await?, [0, 1, 2]),
        Either::Texts(_) => panic!("not these"),
    }
    drop(stream);
    finish(cluster).await
}

/// A stream goes into a call or an answer, and nowhere else.
#[tokio::test]
async fn a_stream_cannot_be_written_elsewhere() -> Result<()> {
    let stream = Streaming::new(Each(0..3_u64));
    let refused = serde_json::to_string(&stream).unwrap_err().to_string();
    assert!(refused.contains("inside a call"), "{refused}");
    assert_eq!(all(stream).await?.len(), 3);
    fn is_a_stream<S: Stream + Send + Sync + Unpin + 'static>(_: &S) {}
    is_a_stream(&Streaming::new(Each(0..3_u64)));
    Ok(())
}

/// T5: one that has come to its end has nothing more for who it is handed on to, and that is no error.
#[tokio::test]
async fn a_stream_that_is_over_can_be_handed_on() -> Result<()> {
    let (cluster, [one, two]) = three().await?;
    let mut stream = numbers::on(&one, 0, 3).await?;
    for n in 0..3 {
        assert_eq!(stream.next().await.transpose()?, Some(n));
    }
    assert!(stream.next().await.is_none());
    assert_eq!(collect::on(&two, stream).await?, [0; 0]);
    finish(cluster).await
}
