//! Looking into workers from outside of their group. The invariants OB-1 to OB-3 are those of
//! `native/inquiry/observe.rs`.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use farref::observe::{ObserveError, Observer, Sighting};
use farref::{FinishedCall, StoreServer, Worker, WorkerBuilder};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Notify;

static BEGUN: Notify = Notify::const_new();

#[farref::remote(name = "observing::endless")]
async fn endless() {
    BEGUN.notify_one();
    std::future::pending().await
}

/// Of the groups here, so that they listen by TCP, too.
const TOKEN: &str = "of these tests";

fn observer() -> Observer {
    Observer::new().token(TOKEN)
}

struct Place {
    store: StoreServer,
}

impl Place {
    async fn new() -> Result<Self> {
        let store = StoreServer::bind("127.0.0.1:0").await?;
        Ok(Self { store })
    }

    fn address(&self) -> String {
        self.store.local_addr().to_string()
    }

    fn builder(&self, name: &str) -> WorkerBuilder {
        Worker::builder(name)
            .rendezvous(&format!("tcp://{}", self.address()))
            .store_is_hosted_elsewhere()
            .token(TOKEN)
            .fail_on_leaks(true)
    }

    async fn pair(&self) -> Result<[Worker; 2]> {
        let worker = |name, rank| self.builder(name).rank(rank).world_size(2).join();
        let (a, b) = tokio::try_join!(worker("a", 0), worker("b", 1))?;
        Ok([a, b])
    }
}

async fn end(workers: [Worker; 2]) -> Result<()> {
    let [a, b] = workers;
    tokio::try_join!(a.shutdown(), b.shutdown())?;
    Ok(())
}

fn tcp_address(worker: &Worker) -> Result<String> {
    let snapshot = worker.snapshot();
    let me = snapshot
        .peers
        .iter()
        .find(|peer| peer.name == worker.name());
    let addresses = &me.context("itself")?.addresses;
    let tcp = addresses.iter().find(|address| address.starts_with("tcp:"));
    Ok(tcp.context("a TCP address")?.clone())
}

fn names(sightings: &[Sighting]) -> Vec<&str> {
    sightings.iter().map(|seen| &*seen.name).collect()
}

#[tokio::test]
async fn a_group_is_found_by_its_rendezvous_and_by_any_of_its_workers() -> Result<()> {
    let place = Place::new().await?;
    let workers = place.pair().await?;
    let unix = workers[1].snapshot().peers[1].addresses[0].clone();
    ensure!(unix.starts_with("unix:"), "{unix}");
    for address in [
        place.address(),
        format!("tcp://{}", place.address()),
        tcp_address(&workers[0])?,
        tcp_address(&workers[1])?,
        unix,
    ] {
        let mut group = observer().group(&address).await?;
        assert_eq!(names(&group.look().await), ["a", "b"], "by {address}");
    }
    end(workers).await
}

#[farref::remote(name = "observing::inner")]
async fn inner() {}

#[farref::remote(name = "observing::outer")]
async fn outer() -> farref::Result<()> {
    let me = Worker::current().ok_or(farref::Misuse::NoWorker)?;
    inner::on(&me.peer("a")?).await
}

/// Who looks on is told of each call once, and which call made it; nobody records anything for who does not.
#[tokio::test]
async fn who_looks_on_sees_calls_of_several_workers_tied_together() -> Result<()> {
    let place = Place::new().await?;
    let workers = place.pair().await?;
    let peer = workers[0].peer("b")?;
    let mut passing_by = observer().group(&place.address()).await?;
    let finished = |sightings: Vec<Sighting>| -> Vec<FinishedCall> {
        let snapshots = sightings.into_iter().filter_map(|seen| seen.snapshot.ok());
        snapshots.flat_map(|snapshot| snapshot.finished).collect()
    };
    let mut looking_on = observer().calls(100).group(&place.address()).await?;
    looking_on.look().await;
    // Only some of the calls that a process serves in a second are shown, and other tests make calls
    // as well. So one of the two may be missing at first.
    let began = Instant::now();
    let (mut made, mut outers, mut inners) = (0, Vec::new(), Vec::new());
    let (outer, inner) = loop {
        ensure!(
            began.elapsed() < TEST_TIMEOUT,
            "never both: {outers:?}, {inners:?}"
        );
        outer::on(&peer).await?;
        made += 1;
        for call in finished(looking_on.look().await) {
            match &*call.function {
                "observing::outer" => outers.push(call),
                "observing::inner" => inners.push(call),
                _ => {}
            }
        }
        ensure!(
            outers.len() <= made && inners.len() <= made,
            "each is shown once"
        );
        let pair = outers.iter().find_map(|outer: &FinishedCall| {
            let inner = inners
                .iter()
                .find(|inner: &&FinishedCall| inner.trace.trace == outer.trace.trace);
            Some((outer.clone(), inner?.clone()))
        });
        if let Some(pair) = pair {
            break pair;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert_eq!((&*outer.caller, &*inner.caller), ("a", "b"));
    ensure!(outer.trace.is_outermost() && !inner.trace.is_outermost());
    assert_eq!(inner.trace.trace, outer.trace.trace);
    assert_eq!(inner.trace.parent, outer.trace.span);
    ensure!(outer.took >= inner.took && !outer.failed);

    assert_eq!(finished(looking_on.look().await), []);
    assert_eq!(finished(passing_by.look().await), []);
    let totals = &workers[1].snapshot().served;
    let counted = totals.iter().find(|one| one.function == "observing::outer");
    ensure!(counted.is_some_and(|one| one.calls() >= 1));
    end(workers).await
}

#[tokio::test]
async fn what_is_shown_is_what_the_worker_has() -> Result<()> {
    let place = Place::new().await?;
    let workers = place.pair().await?;
    let kept = workers[0].rref("kept".to_owned())?;
    let pending = endless::on(&workers[0].peer("b")?).start();
    BEGUN.notified().await;

    let mut group = observer().group(&place.address()).await?;
    let sightings = group.look().await;
    let [a, b] = &sightings[..] else {
        bail!("two workers, not {sightings:?}");
    };
    let (a, b) = (a.snapshot.as_ref(), b.snapshot.as_ref());
    let (Ok(a), Ok(b)) = (a, b) else {
        bail!("{sightings:?}");
    };
    assert_eq!(a.references.len(), 1);
    assert_eq!(a.references_in_all, 1);
    let location = a.references[0].location.as_deref().context("a line")?;
    ensure!(location.contains("observing.rs"), "{location}");
    assert_eq!(a.totals.calls, 1);
    assert_eq!(a.peers[1].calls_made, 1);
    assert_eq!(b.peers[0].calls_served, 1);
    assert_eq!(b.running.len(), 1);
    assert_eq!(b.running[0].function, "observing::endless");
    assert_eq!(b.running[0].caller, "a");
    ensure!(b.totals.bytes_received > 0 && a.totals.bytes_sent > 0);

    drop((kept, pending));
    end(workers).await
}

#[tokio::test]
async fn ob_1_who_looks_is_no_member_and_holds_up_no_shutdown() -> Result<()> {
    let place = Place::new().await?;
    let workers = place.pair().await?;
    let mut group = observer().group(&place.address()).await?;
    group.look().await;
    assert_eq!(workers[0].peers().len(), 2);
    assert_eq!(workers[0].snapshot().peers.len(), 2);
    // The observer is still connected.
    end(workers).await?;
    let after = group.look().await;
    ensure!(after.iter().all(|seen| seen.snapshot.is_err()), "{after:?}");
    Ok(())
}

#[tokio::test]
async fn ob_2_observers_are_limited_in_number_and_make_room_when_they_go() -> Result<()> {
    let place = Place::new().await?;
    let worker = place.builder("watched").join().await?;
    let address = tcp_address(&worker)?;
    let mut watching = Vec::new();
    for _ in 0..16 {
        watching.push(observer().group(&address).await?);
    }
    let error = observer().group(&address).await.err();
    let error = error.context("there is no room")?;
    ensure!(matches!(error, ObserveError::Crowded { .. }), "{error}");
    watching.clear();
    let mut again = None;
    for _ in 0..1000 {
        if let Ok(group) = observer().group(&address).await {
            again = Some(group);
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ensure!(again.is_some(), "the others have gone");
    Ok(worker.shutdown().await?)
}

#[tokio::test]
async fn ob_2_only_as_many_references_are_shown_as_were_asked_for() -> Result<()> {
    let place = Place::new().await?;
    let worker = place.builder("rich").join().await?;
    let many: Vec<_> = (0..100).map(|n| worker.rref(n)).collect::<Result<_, _>>()?;
    for (asked, shown) in [(0, 0), (7, 7), (1000, 100)] {
        let observer = observer().references(asked);
        let sightings = observer.group(&place.address()).await?.look().await;
        let Ok(snapshot) = &sightings[0].snapshot else {
            bail!("{sightings:?}");
        };
        assert_eq!(snapshot.references.len(), shown);
        assert_eq!(snapshot.references_in_all, 100);
    }
    drop(many);
    Ok(worker.shutdown().await?)
}

#[tokio::test]
async fn ob_3_only_who_knows_the_token_is_shown_anything() -> Result<()> {
    let place = Place::new().await?;
    let worker = place.builder("guarded").token("ours").join().await?;
    for (token, welcome) in [("", false), ("theirs", false), ("ours", true)] {
        let observer = Observer::new().token(token);
        let by_worker = observer.group(&tcp_address(&worker)?).await;
        let sightings = observer.group(&place.address()).await?.look().await;
        if welcome {
            ensure!(sightings[0].snapshot.is_ok(), "{sightings:?}");
            ensure!(by_worker.is_ok());
        } else {
            let refused =
                |error: Option<&ObserveError>| matches!(error, Some(ObserveError::Token { .. }));
            ensure!(
                refused(sightings[0].snapshot.as_ref().err()),
                "{sightings:?}"
            );
            ensure!(refused(by_worker.as_ref().err()), "{by_worker:?}");
        }
    }
    Ok(worker.shutdown().await?)
}

#[tokio::test]
async fn newcomers_are_found_and_the_departed_are_not_shown_any_more() -> Result<()> {
    let place = Place::new().await?;
    let first = place.builder("first").join().await?;
    let mut group = observer().group(&place.address()).await?;
    assert_eq!(names(&group.look().await), ["first"]);
    let second = place.builder("second").join().await?;
    assert_eq!(names(&group.look().await), ["first", "second"]);
    second.leave().await?;
    let began = Instant::now();
    while names(&group.look().await) != ["first"] {
        ensure!(began.elapsed() < TEST_TIMEOUT, "the second is still shown");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(first.shutdown().await?)
}

#[tokio::test]
async fn an_observer_that_talks_nonsense_harms_nobody() -> Result<()> {
    let place = Place::new().await?;
    let worker = place.builder("calm").join().await?;
    let address = tcp_address(&worker)?.replace("tcp://", "");
    for nonsense in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"farref\x08\x00\xff\xff\xff\xff",
        b"",
    ] {
        let mut stream = TcpStream::connect(&address).await?;
        stream.write_all(nonsense).await?;
        stream.shutdown().await?;
        // It hangs up, and says nothing that it should not.
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        ensure!(answer.len() < 512);
    }
    ensure!(observer().group(&address).await.is_ok());
    Ok(worker.shutdown().await?)
}

#[tokio::test]
async fn every_way_not_to_find_a_group_has_its_own_error() -> Result<()> {
    let observer = observer();
    let error = observer.group("not an address").await.err();
    ensure!(matches!(error, Some(ObserveError::Address { .. })));

    let place = Place::new().await?;
    let error = observer.group(&place.address()).await.err();
    ensure!(
        matches!(error, Some(ObserveError::NoGroup { .. })),
        "{error:?}"
    );

    let address = place.address();
    place.store.close().await;
    let error = observer.group(&address).await.err();
    ensure!(
        matches!(error, Some(ObserveError::Unreachable { .. })),
        "{error:?}"
    );

    // Listens, accepts, and never says a word.
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let observer = observer.patience(Duration::from_secs(2));
    let error = observer.group(&mute.local_addr()?.to_string()).await.err();
    ensure!(
        matches!(error, Some(ObserveError::Silent { .. })),
        "{error:?}"
    );
    Ok(())
}

#[tokio::test]
async fn what_was_counted_outlives_the_links_it_was_counted_on() -> Result<()> {
    let place = Place::new().await?;
    let first = place.builder("first").join().await?;
    let second = place.builder("second").join().await?;
    let peer = first.wait_for_peer("second", TEST_TIMEOUT).await?;
    peer.snapshot().await?;
    let before = first.snapshot().totals.bytes_received;
    ensure!(before > 0);
    second.leave().await?;
    eventually("the second is gone", || {
        let gone = first
            .snapshot()
            .peers
            .iter()
            .all(|peer| peer.name != "second" || peer.transport.is_none());
        let after = first.snapshot().totals.bytes_received;
        assert!(after >= before, "{after} after {before}");
        gone
    })
    .await?;
    Ok(first.shutdown().await?)
}
