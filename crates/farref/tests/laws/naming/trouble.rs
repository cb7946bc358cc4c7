//! N1, N4, N5 where something is in the way: no place for a call, members that cannot be asked, less time, slow
//! destructors.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use anyhow::{Result, ensure};
use farref::testing::Cluster;
use farref::{Error, Peer, Pending, RRef, Worker, WorkerBuilder};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::time::timeout;

use super::{LONG, find, hang, number, publish, read, serves};
use crate::channels;
use crate::cluster::{finish, pair};

/// Room for as few calls as can be.
const OPEN: usize = 64;

fn narrow(builder: WorkerBuilder) -> WorkerBuilder {
    builder
        .max_calls_per_peer(OPEN as u32)
        .max_waiting_calls_per_peer(1)
}

/// As many calls as are carried out, and one that waits.
async fn crowd(peer: &Peer, worker: &Worker) -> Result<Vec<Pending<()>>> {
    // After this it is known how many that worker accepts.
    number::on(peer, 1).await?;
    let calls = (0..=OPEN).map(|_| hang::on(peer).timeout(LONG).start());
    let calls = calls.collect();
    serves(worker, OPEN).await?;
    Ok(calls)
}

/// D5: a lookup is awaited, so it waits for a place as any call does that is.
#[tokio::test]
async fn n1_a_lookup_waits_for_a_place_where_there_is_none() -> Result<()> {
    let cluster = Cluster::start_with(2, narrow).await?;
    let [me, publisher] = [cluster.worker(0), cluster.worker(1)];
    let peer = me.peer("worker1")?;
    publish(publisher, "n", 7)?;
    let busy = crowd(&peer, publisher).await?;
    let more = hang::on(&peer).timeout(LONG).start().await;
    ensure!(matches!(more, Err(Error::TooManyCalls { .. })), "{more:?}");

    let there = peer.lookup::<u64>("n").timeout(LONG);
    let mut there = Box::pin(there);
    let mut anywhere = Box::pin(me.lookup::<u64>("n").timeout(LONG));
    let mut now = Box::pin(me.lookup::<u64>("n").timeout(LONG).now());
    ensure!(timeout(Duration::ZERO, &mut there).await.is_err());
    ensure!(timeout(Duration::ZERO, &mut anywhere).await.is_err());
    ensure!(timeout(Duration::ZERO, &mut now).await.is_err());
    let late = peer.lookup::<u64>("n").timeout(Duration::from_millis(20));
    let late = late.await;
    ensure!(matches!(late, Err(Error::Timeout { .. })), "{late:?}");
    // N4: who did not answer is named.
    let late = me.lookup::<u64>("n").timeout(Duration::from_millis(20));
    let late = late.await;
    ensure!(
        matches!(&late, Err(Error::Timeout { peer, .. }) if peer.starts_with("worker")),
        "{late:?}"
    );
    drop(busy);
    let found = timeout(TEST_TIMEOUT, async { tokio::join!(there, anywhere, now) });
    let (there, anywhere, now) = found.await?;
    ensure!(read(there?).await? == 7 && read(anywhere?).await? == 7);
    ensure!(now?.is_some());
    ensure!(publisher.unpublish("n"));
    finish(cluster).await
}

/// A member that answers with an error may have the name or not: who has it is found all the same.
#[tokio::test]
async fn n4_a_member_that_cannot_be_asked_is_named_only_if_nobody_else_has_it() -> Result<()> {
    let ends = [false, true].map(|has_names| channels::End {
        has_names,
        ..channels::End::default()
    });
    let [a, b] = channels::group(ends).await?;
    let is_named =
        |error: &Error| matches!(error, Error::Remote(remote) if &*remote.worker == "w0");
    let nothing = b.lookup::<u64>("n").now().await;
    ensure!(nothing.as_ref().is_err_and(is_named), "{nothing:?}");
    // If there was time to hear from it.
    for limit in [30, 300, 3000, 30_000].map(Duration::from_millis) {
        let nothing = b.lookup::<u64>("n").timeout(limit).await;
        if nothing.as_ref().is_err_and(is_named) {
            break;
        }
        let is_late = matches!(nothing, Err(Error::Timeout { .. }));
        ensure!(is_late && limit < TEST_TIMEOUT / 10, "{nothing:?}");
    }

    // One that waits goes on waiting for the others.
    let waiting = tokio::spawn(b.lookup::<u64>("n").timeout(LONG).versioned());
    serves(&b, 1).await?;
    let first = publish(&b, "n", 1)?;
    let (found, version) = timeout(TEST_TIMEOUT, waiting).await???;
    ensure!(version == first && read(found).await? == 1);
    ensure!(b.lookup::<u64>("n").now().await?.is_some());
    let newer = b.lookup::<u64>("n").newer_than(first).timeout(LONG);
    let newer = tokio::spawn(newer.versioned());
    serves(&b, 1).await?;
    publish(&b, "n", 2)?;
    ensure!(read(timeout(TEST_TIMEOUT, newer).await???.0).await? == 2);
    ensure!(b.unpublish("n"));
    for worker in [&a, &b] {
        eventually("nothing is referred to", || worker.references().is_empty()).await?;
    }
    channels::end([a, b]).await
}

static LATE: Mutex<Option<farref::Result<()>>> = Mutex::new(None);

/// A lookup in the group that may take longer than the call that it is part of.
#[farref::remote]
fn look_up_for_long() {
    let me = Worker::current().expect("a worker");
    let late = me.lookup::<u64>("never").timeout(LONG).wait();
    *LATE.lock().unwrap() = Some(late.map(drop));
}

/// D3: the limit is that of the call that it works for.
#[tokio::test]
async fn n1_a_lookup_in_the_group_says_which_limit_it_had() -> Result<()> {
    let (cluster, peer) = pair().await?;
    // Long enough for the call to arrive.
    let limit = Duration::from_secs(2);
    let late = look_up_for_long::on(&peer).timeout(limit).await;
    // Its time is up on both sides at once: it may still have returned.
    ensure!(
        matches!(late, Ok(()) | Err(Error::Timeout { .. })),
        "{late:?}"
    );
    eventually("it is late", || LATE.lock().unwrap().is_some()).await?;
    let late = LATE.lock().unwrap().take();
    ensure!(
        matches!(&late, Some(Err(Error::Timeout { peer, limit: had, .. }))
            if !peer.is_empty() && *had <= limit),
        "{late:?}"
    );
    finish(cluster).await
}

/// Has a reference, and is dropped when it may be.
struct Slow(RRef<u64>, mpsc::Sender<()>, Mutex<mpsc::Receiver<()>>);

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.1.send(());
        let _ = self.2.lock().unwrap().recv_timeout(TEST_TIMEOUT);
        let _ = &self.0;
    }
}

/// `Cluster::shutdown` fails if anything leaks, here at the first look.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n5_what_a_published_value_has_is_no_leak_however_long_its_destructor_takes() -> Result<()>
{
    let configure = |builder: WorkerBuilder| {
        let builder = builder.leak_grace(Duration::ZERO);
        builder.shutdown_timeout(LONG)
    };
    let cluster = Cluster::start_with(2, configure).await?;
    let publisher = cluster.worker(0);
    let far = number::on(&publisher.peer("worker1")?, 1).remote();
    far.confirmed().await?;
    let (begins, begun) = mpsc::channel();
    let (may_end, end) = mpsc::channel();
    let slow = publisher.rref_to_object(Slow(far, begins, end.into()))?;
    publisher.publish("slow", &slow)?;
    drop(slow);
    let mut ending = tokio::spawn(async move { cluster.shutdown().await });
    tokio::task::spawn_blocking(move || begun.recv_timeout(TEST_TIMEOUT)).await??;
    // Leaks are looked for a second after the names have gone.
    let early = timeout(Duration::from_secs(3), &mut ending).await;
    ensure!(early.is_err(), "{early:?}");
    may_end.send(())?;
    Ok(timeout(TEST_TIMEOUT, ending).await???)
}

/// A destructor that never ends is waited for during half of the time that there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n5_a_destructor_that_does_not_end_does_not_keep_the_group_from_its_end() -> Result<()> {
    let configure = |builder: WorkerBuilder| {
        let builder = builder.leak_grace(Duration::ZERO);
        builder.shutdown_timeout(Duration::from_secs(20))
    };
    let cluster = Cluster::start_with(2, configure).await?;
    let publisher = cluster.worker(0);
    let near = publisher.rref(1)?;
    let (begins, _begun) = mpsc::channel();
    let (may_end, end) = mpsc::channel();
    publisher.publish(
        "stuck",
        &publisher.rref_to_object(Slow(near, begins, end.into()))?,
    )?;
    let ended = cluster.shutdown().await;
    ensure!(matches!(ended, Err(Error::Leaked(_))), "{ended:?}");
    may_end.send(())?;
    Ok(())
}

/// What others publish is found while one lookup waits for a place elsewhere.
#[tokio::test]
async fn n4_a_member_without_a_place_is_waited_for_and_then_counts() -> Result<()> {
    let cluster = Cluster::start_with(3, narrow).await?;
    let me = cluster.worker(0);
    let first = me.peer("worker1")?;
    for rank in [1, 2] {
        publish(cluster.worker(rank as usize), "n", rank)?;
    }
    let busy = crowd(&first, cluster.worker(1)).await?;
    let mut found = Box::pin(me.lookup::<u64>("n").timeout(LONG));
    // The second has answered, and does not count as long as the first may.
    ensure!(timeout(Duration::ZERO, &mut found).await.is_err());
    ensure!(find(&me.peer("worker2")?, "n").await? == 2);
    ensure!(timeout(Duration::ZERO, &mut found).await.is_err());
    drop(busy);
    ensure!(read(timeout(TEST_TIMEOUT, found).await??).await? == 1);
    for rank in [1, 2] {
        ensure!(cluster.worker(rank).unpublish("n"));
    }
    finish(cluster).await
}

#[farref::remote]
fn find_blocking() -> farref::Result<u64> {
    let me = Worker::current().expect("a worker").me();
    me.lookup::<u64>("n").timeout(LONG).wait()?.to_here().wait()
}

#[farref::remote]
fn publish_blocking() -> farref::Result<()> {
    let me = Worker::current().expect("a worker");
    me.publish("n", &me.rref(7_u64)?).map(drop)
}

/// A plain function that waits for a name takes no thread from the one that publishes it.
#[tokio::test]
async fn n1_functions_that_wait_for_a_name_do_not_use_the_pool_up() -> Result<()> {
    let cluster = Cluster::start_with(2, |builder| builder.blocking_threads(1)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let found = find_blocking::on(&peer).timeout(TEST_TIMEOUT).start();
    // It, and the lookup of its own.
    serves(cluster.worker(1), 2).await?;
    publish_blocking::on(&peer).timeout(TEST_TIMEOUT).await?;
    ensure!(found.await? == 7);
    ensure!(cluster.worker(1).unpublish("n"));
    finish(cluster).await
}

/// One that dies before it has answered has nothing, and that is no error.
#[tokio::test]
async fn n4_the_death_of_a_member_is_no_error_of_who_asks_what_there_is_now() -> Result<()> {
    let cluster = Cluster::start_with(3, narrow).await?;
    let me = cluster.worker(0);
    let busy = crowd(&me.peer("worker1")?, cluster.worker(1)).await?;
    let mut now = Box::pin(me.lookup::<u64>("n").timeout(LONG).now());
    ensure!(timeout(Duration::ZERO, &mut now).await.is_err());
    cluster.crash(1).await;
    let now = timeout(TEST_TIMEOUT, now).await?;
    ensure!(matches!(now, Ok(None)), "{now:?}");
    drop(busy);
    finish(cluster).await
}
