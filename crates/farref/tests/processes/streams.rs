//! T1 to T4 between processes: streams whose ends are killed, stopped and cut off.

use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, bail, ensure};
use farref::{Error, Peer, RRef, Result, Stream, Streaming, Worker};
use farref_testkit::eventually_async;
use serde::{Deserialize, Serialize};

use crate::counts::{CountDrop, count, has_counted};
use crate::functions::{Probe, ProbeRRef as _, add, probes};
use crate::group::{Group, Options, SILENT_MS, proxied, run};
use crate::worker::EVICTED;
use crate::{Tests, amount};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "t4_the_death_of_a_streams_maker_is_an_error_that_names_it",
            maker_dies,
        ),
        (
            "t4_a_streams_maker_that_is_silent_for_too_long_is_lost",
            maker_is_silent,
        ),
        (
            "t3_the_death_of_a_streams_reader_drops_the_stream",
            reader_dies,
        ),
        (
            "t1_streams_lose_nothing_over_a_hundred_broken_connections",
            broken_connections,
        ),
        ("t2_a_slow_reader_holds_the_maker_back", slow_reader),
        (
            "t5_items_that_read_whatever_comes_are_read_on_by_who_has_never_made_any",
            untagged_items,
        ),
    ]
}

/// Numbers that were made in this process.
static MADE: AtomicU64 = AtomicU64::new(0);

/// How many numbers were made on that worker.
#[farref::remote]
async fn made() -> u64 {
    MADE.load(Ordering::SeqCst)
}

/// Counts up.
struct Numbers {
    next: u64,
    end: u64,
    _dropped: Option<CountDrop>,
}

impl Stream for Numbers {
    type Item = u64;

    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u64>> {
        let number = self.next;
        self.next += 1;
        MADE.fetch_add(1, Ordering::SeqCst);
        Poll::Ready((number < self.end).then_some(number))
    }
}

/// Counts up to `end`. When it is dropped, that counts as `{key} dropped`.
#[farref::remote]
async fn count_up(end: u64, key: String) -> Streaming<u64> {
    Streaming::new(Numbers {
        next: 0,
        end,
        _dropped: Some(CountDrop(format!("{key} dropped"))),
    })
}

/// Each number of a stream, and one more.
struct Successors(Streaming<u64>);

impl Stream for Successors {
    type Item = Result<u64, String>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(Pin::new(&mut self.get_mut().0).poll_next(context));
        let next = next.map(|next| next.map_err(|error| error.to_string()));
        Poll::Ready(next.map(|next| next.map(|number| number + 1)))
    }
}

#[farref::remote]
async fn successors(numbers: Streaming<u64>) -> Streaming<Result<u64, String>> {
    Streaming::new(Successors(numbers))
}

/// Reads until the end, and counts what it read.
#[farref::remote]
async fn read_all(mut numbers: Streaming<u64>, key: String) -> Result<u64> {
    let mut read = 0;
    while let Some(number) = numbers.next().await {
        number?;
        read += 1;
        if read == 1000 {
            count(&format!("{key} reads"));
        }
    }
    Ok(read)
}

/// Items that refer to values of their maker's.
#[farref::remote]
async fn stream_probes() -> Streaming<RRef<Probe>> {
    struct Probes(Worker);

    impl Stream for Probes {
        type Item = RRef<Probe>;

        fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<RRef<Probe>>> {
            Poll::Ready(self.0.rref_to_object(Probe::new(7)).ok())
        }
    }

    Streaming::new(Probes(
        Worker::current().expect("inside of a remote function"),
    ))
}

/// Holds a few of them for ever.
#[farref::remote]
async fn hold_probes(mut probes: Streaming<RRef<Probe>>, key: String) -> Result<()> {
    let mut held = Vec::new();
    while let Some(probe) = probes.next().await {
        held.push(probe?);
        if held.len() == 100 {
            held[99].value().await?;
            count(&key);
            std::future::pending::<()>().await;
        }
    }
    Ok(())
}

/// Reads what is left, which has to end with the loss of `a`.
async fn ensure_lost(numbers: &mut Streaming<u64>, mut read: u64) -> anyhow::Result<()> {
    loop {
        match numbers.next().await.context("it ended well")? {
            Ok(number) => ensure!(number == read, "{number} in the place of {read}"),
            Err(Error::PeerLost { peer, function, .. }) => {
                ensure!(&*peer == "a", "`{peer}` was lost");
                ensure!(
                    function.as_str().ends_with("count_up"),
                    "lost in {function}"
                );
                ensure!(numbers.next().await.is_none(), "something came after it");
                return Ok(());
            }
            Err(other) => bail!("not the loss of `a`: {other:?}"),
        }
        read += 1;
    }
}

async fn read_some(a: &Peer, count: u64) -> anyhow::Result<Streaming<u64>> {
    let mut numbers = count_up::on(a, u64::MAX, String::new()).await?;
    for n in 0..count {
        ensure!(numbers.next().await.transpose()? == Some(n));
    }
    Ok(numbers)
}

/// T4: nothing but the refused connection can have told, with a time-out as long as this.
fn maker_dies() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let mut mine = read_some(&a, 5000).await?;
        let mut unread = count_up::on(&a, u64::MAX, String::new()).await?;
        let theirs = count_up::on(&a, u64::MAX, String::new()).await?;
        let theirs = read_all::on(&b, theirs, "theirs".into())
            .timeout(None)
            .start();
        eventually_async("b reads", async || has_counted(&b, "theirs reads", 1).await).await?;
        group.kill("a")?;
        ensure_lost(&mut mine, 5000).await?;
        ensure_lost(&mut unread, 0).await?;
        match theirs.await {
            Err(Error::Remote(error)) => {
                ensure!(error.message().contains("worker `a` was lost"), "{error}");
            }
            other => bail!("b was not told: {other:?}"),
        }
        ensure!(add::on(&b, 1, 2).await? == 3);
        Ok(())
    })
}

/// T4: and what reads it on the stopped worker ends, too.
fn maker_is_silent() -> anyhow::Result<()> {
    let options = Options {
        peer_timeout_ms: SILENT_MS,
        may_be_evicted: true,
        ..Options::default()
    };
    run(options, &["a", "b"], async |group| {
        let a = group.peer("a")?;
        let mut numbers = read_some(&a, 5000).await?;
        let mine = Numbers {
            next: 0,
            end: u64::MAX,
            _dropped: Some(CountDrop("mine dropped".into())),
        };
        let argument = read_all::on(&a, Streaming::new(mine), "mine".into()).start();
        eventually_async("a reads", async || has_counted(&a, "mine reads", 1).await).await?;
        group.stop("a")?;
        ensure_lost(&mut numbers, 5000).await?;
        ensure!(argument.await.is_err());
        let me = group.me.me();
        eventually_async("what it read is dropped", async || {
            has_counted(&me, "mine dropped", 1).await
        })
        .await?;
        group.resume("a")?;
        let status = group.ended("a").await?;
        ensure!(status.code() == Some(EVICTED), "it ended with {status}");
        Ok(())
    })
}

/// T3, R2
fn reader_dies() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b", "c"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let numbers = count_up::on(&a, u64::MAX, "k".into()).await?;
        let reading = read_all::on(&b, numbers, "k".into()).timeout(None).start();
        let references = stream_probes::on(&a).await?;
        let holding = hold_probes::on(&b, references, "holds".into());
        let holding = holding.timeout(None).start();
        for what in ["k reads", "holds"] {
            eventually_async(what, async || has_counted(&b, what, 1).await).await?;
        }
        ensure!(probes::on(&a).await? >= 100);
        ensure!(has_counted(&a, "k dropped", 0).await?);
        group.kill("b")?;
        ensure!(reading.await.is_err() && holding.await.is_err());
        eventually_async("the stream is dropped", async || {
            has_counted(&a, "k dropped", 1).await
        })
        .await?;
        eventually_async("what was in items is freed", async || {
            Ok(probes::on(&a).await? == 0)
        })
        .await
    })
}

fn connections(group: &Group) -> anyhow::Result<u64> {
    let snapshot = group.me.snapshot();
    let peer = snapshot.peers.iter().find(|peer| peer.name == "a");
    Ok(peer.context("no link")?.connections)
}

/// T1, D2: out and back at once, over connections that break wherever they are.
fn broken_connections() -> anyhow::Result<()> {
    const NUMBERS: u64 = 20_000;
    let (proxy, options) = proxied(&["driver", "a"])?;
    run(options, &["a"], async |group| {
        let a = group.peer("a")?;
        proxy.cut_repeatedly();
        while connections(group)? <= 100 {
            let mine = Numbers {
                next: 0,
                end: NUMBERS,
                _dropped: None,
            };
            let mut back = successors::on(&a, Streaming::new(mine)).await?;
            for n in 0..NUMBERS {
                let came = back.next().await.transpose()?.context("it ended")?;
                ensure!(came == Ok(n + 1), "{came:?} in the place of {}", n + 1);
            }
            ensure!(back.next().await.is_none());
        }
        proxy.pass();
        Ok(())
    })
}

/// An item that has to say what it is, for those who read it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Either {
    Number(u64),
    Text(String),
}

impl Either {
    fn of(number: u64) -> Self {
        match number % 2 {
            0 => Self::Number(number),
            _ => Self::Text(number.to_string()),
        }
    }
}

/// Only who runs this makes any.
#[farref::remote]
async fn make_either(count: u64) -> Streaming<Either> {
    struct Eithers(u64, u64);

    impl Stream for Eithers {
        type Item = Either;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Either>> {
            self.0 += 1;
            Poll::Ready((self.0 <= self.1).then(|| Either::of(self.0 - 1)))
        }
    }

    Streaming::new(Eithers(0, count))
}

/// Reads the first item of a stream of `maker`'s, and has the rest read by `reader`.
#[farref::remote]
async fn begin_either(maker: String, reader: String, count: u64) -> Result<Vec<Either>> {
    let me = Worker::current().expect("inside of a remote function");
    let mut items = make_either::on(&me.peer(&maker)?, count).await?;
    let first = items.next().await.transpose()?;
    let rest = collect_either::on(&me.peer(&reader)?, items).await?;
    Ok(first.into_iter().chain(rest).collect())
}

#[farref::remote]
async fn collect_either(mut items: Streaming<Either>) -> Result<Vec<Either>> {
    let mut all = Vec::new();
    while let Some(item) = items.next().await {
        all.push(item?);
    }
    Ok(all)
}

/// T5: in processes of their own, so that nobody knows the items from elsewhere.
fn untagged_items() -> anyhow::Result<()> {
    const COUNT: u64 = 3_000;
    run(Options::default(), &["a", "b", "c"], async |group| {
        let middle = group.peer("b")?;
        let items = begin_either::on(&middle, "a".into(), "c".into(), COUNT).await?;
        ensure!(items.into_iter().eq((0..COUNT).map(Either::of)));
        Ok(())
    })
}

/// T2, D5
fn slow_reader() -> anyhow::Result<()> {
    run(Options::default(), &["a"], async |group| {
        let a = group.peer("a")?;
        let mut numbers = read_some(&a, 1).await?;
        for read in 1..amount(30_000, 100_000) {
            if read % 5_000 == 0 {
                // Whatever is made without being asked for would be made meanwhile.
                for _ in 0..20 {
                    add::on(&a, 1, 2).await?;
                }
                let ahead = made::on(&a).await? - read;
                ensure!(ahead <= 3 * 1024 + 65, "{ahead} numbers ahead");
            }
            ensure!(numbers.next().await.transpose()? == Some(read));
        }
        drop(numbers);
        Ok(())
    })
}
