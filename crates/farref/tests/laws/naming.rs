//! N1-N5: names that references are published under.

mod trouble;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::thread::ThreadId;
use std::time::Duration;

use anyhow::{Result, ensure};
use farref::testing::Cluster;
use farref::{Error, Misuse, Peer, RRef, Worker, WorkerBuilder};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tokio::time::timeout;

use crate::channels;
use crate::cluster::{finish, pair};

/// Never up in these tests.
const LONG: Duration = Duration::from_secs(3600);

/// Counts in a counter of its own when it is dropped.
struct Tracked(&'static AtomicU32);

impl Drop for Tracked {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

struct Inner;

/// A value that has references to others.
#[derive(Default)]
struct Outer(Vec<RRef<Inner>>);

#[farref::remote]
impl Outer {
    pub(crate) async fn hold(&mut self, inner: RRef<Inner>) {
        self.0.push(inner);
    }
}

#[farref::remote]
async fn number(number: u64) -> u64 {
    number
}

/// Publishes a number of this worker's.
fn publish(worker: &Worker, name: &str, number: u64) -> Result<farref::NameVersion> {
    Ok(worker.publish(name, &worker.rref(number)?)?)
}

async fn read(found: RRef<u64>) -> Result<u64> {
    Ok(timeout(TEST_TIMEOUT, found.to_here()).await??)
}

/// Looks a number up.
async fn find(peer: &Peer, name: &str) -> Result<u64> {
    read(timeout(TEST_TIMEOUT, peer.lookup::<u64>(name).timeout(LONG)).await??).await
}

/// A lookup that is waiting.
fn waiting(peer: &Peer, name: &str) -> tokio::task::JoinHandle<farref::Result<RRef<u64>>> {
    let lookup = peer.lookup::<u64>(name).timeout(LONG);
    tokio::spawn(lookup)
}

/// Waits until a worker serves so many calls of another.
async fn serves(worker: &Worker, calls: usize) -> Result<()> {
    eventually("the lookups wait there", || {
        let peers = worker.snapshot().peers;
        peers.iter().map(|peer| peer.calls_served).sum::<usize>() == calls
    })
    .await
}

#[tokio::test]
async fn n1_a_name_is_found_once_it_is_published_however_early_it_was_looked_up() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let publisher = cluster.worker(1);
    let early: Vec<_> = (0..10).map(|_| waiting(&peer, "n")).collect();
    let other = waiting(&peer, "other");
    serves(publisher, 11).await?;
    ensure!(peer.lookup::<u64>("n").now().await?.is_none());

    publish(publisher, "n", 7)?;
    for lookup in early {
        ensure!(read(timeout(TEST_TIMEOUT, lookup).await???).await? == 7);
    }
    ensure!(find(&peer, "n").await? == 7);
    ensure!(!other.is_finished());
    other.abort();
    ensure!(other.await.is_err());
    serves(publisher, 0).await?;
    ensure!(publisher.unpublish("n") && !publisher.unpublish("n"));
    ensure!(peer.lookup::<u64>("n").now().await?.is_none());
    finish(cluster).await
}

#[tokio::test]
async fn n1_any_reference_can_be_published_by_whoever_holds_it_and_outlives_its_name() -> Result<()>
{
    let cluster = Cluster::start(3).await?;
    let [me, middle] = [cluster.worker(0), cluster.worker(1)];
    let value = number::on(&middle.peer("worker2")?, 5).remote();
    middle.publish("far", &value)?;
    drop(value);
    let found = me.peer("worker1")?.lookup::<u64>("far").await?;
    ensure!(found.owner()?.name() == "worker2");
    ensure!(middle.unpublish("far"));
    found.confirmed().await?;
    cluster.crash(1).await;
    ensure!(read(found).await? == 5, "R4");
    finish(cluster).await
}

#[tokio::test]
async fn n2_what_is_published_again_takes_the_place_of_what_was_and_is_newer() -> Result<()> {
    let (mut cluster, peer) = pair().await?;
    let publisher = cluster.worker(1).clone();
    let first = publish(&publisher, "n", 1)?;
    let (rref, version) = peer.lookup::<u64>("n").versioned().await?;
    ensure!(version == first && read(rref).await? == 1);
    let newer = |version| {
        let lookup = peer.lookup::<u64>("n").newer_than(version).timeout(LONG);
        tokio::spawn(lookup.versioned())
    };
    let waiting = newer(first);
    serves(&publisher, 1).await?;
    // Another name is none of its business, and nor is that it is gone for a while.
    publish(&publisher, "m", 0)?;
    ensure!(publisher.unpublish("n"));
    ensure!(!waiting.is_finished());
    let second = publish(&publisher, "n", 2)?;
    ensure!(second.number() > first.number());
    let (rref, version) = timeout(TEST_TIMEOUT, waiting).await???;
    ensure!(version == second && read(rref).await? == 2);
    // Of several that nobody waited for, the last counts.
    publish(&publisher, "n", 3)?;
    let fourth = publish(&publisher, "n", 4)?;
    let (rref, version) = timeout(TEST_TIMEOUT, newer(second)).await???;
    ensure!(version == fourth && read(rref).await? == 4);

    // A later life is newer, whatever its numbers.
    cluster.crash(1).await;
    let reborn = cluster.restart(1).await?.clone();
    let fifth = publish(&reborn, "n", 5)?;
    ensure!(fifth.number() < fourth.number());
    let (rref, version) = timeout(TEST_TIMEOUT, newer(fourth)).await???;
    ensure!(version == fifth && read(rref).await? == 5);
    ensure!(reborn.unpublish("n"));
    finish(cluster).await
}

#[tokio::test]
async fn n3_names_go_with_their_publisher_and_with_the_owner_of_their_value() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let [me, publisher] = [cluster.worker(0), cluster.worker(1)];
    let peer = me.peer("worker1")?;
    publisher.publish(
        "there",
        &number::on(&publisher.peer("worker2")?, 6).remote(),
    )?;
    publish(publisher, "here", 5)?;
    ensure!(find(&peer, "there").await? == 6);

    let owner = publisher.peer("worker2")?.gone();
    cluster.crash(2).await;
    timeout(TEST_TIMEOUT, owner).await??;
    ensure!(peer.lookup::<u64>("there").now().await?.is_none());
    // Whoever waits gets what takes its place.
    let replaced = waiting(&peer, "there");
    serves(publisher, 1).await?;
    publish(publisher, "there", 7)?;
    ensure!(read(timeout(TEST_TIMEOUT, replaced).await???).await? == 7);

    let lost = waiting(&peer, "never");
    serves(publisher, 1).await?;
    cluster.crash(1).await;
    for lost in [
        timeout(TEST_TIMEOUT, lost).await??,
        peer.lookup("here").await,
    ] {
        match lost {
            Err(
                ref error @ Error::PeerLost {
                    ref peer,
                    ref function,
                    ..
                },
            ) => {
                ensure!(&**peer == "worker1" && function.as_str().starts_with("lookup of "));
                // Nothing ran.
                ensure!(!error.to_string().contains("it ran"), "{error}");
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
    finish(cluster).await
}

/// A name that is given to a value whose owner is gone already goes at once.
#[tokio::test]
async fn n3_a_value_whose_owner_is_gone_gets_no_name() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let publisher = cluster.worker(1);
    let owner = publisher.peer("worker2")?;
    let value = number::on(&owner, 6).remote();
    value.confirmed().await?;
    cluster.crash(2).await;
    timeout(TEST_TIMEOUT, owner.gone()).await??;
    // Whether or not that is an error.
    let published = publisher.publish("n", &value);
    ensure!(!publisher.unpublish("n"), "{published:?}");
    drop(value);
    finish(cluster).await
}

#[tokio::test]
async fn n3_whoever_looks_for_another_type_is_told_both() -> Result<()> {
    let (cluster, peer) = pair().await?;
    publish(cluster.worker(1), "n", 1)?;
    for lookup in [peer.lookup::<String>("n"), cluster.worker(0).lookup("n")] {
        match lookup.await {
            Err(error @ Error::TypeMismatch(_)) => {
                let text = error.to_string();
                ensure!(text.contains("`u64`") && text.contains("String"), "{text}");
                ensure!(text.contains("`n` of worker `worker1`"), "{text}");
            }
            other => anyhow::bail!("{other:?}"),
        }
    }
    ensure!(cluster.worker(1).unpublish("n"));
    finish(cluster).await
}

#[tokio::test]
async fn n4_in_the_group_the_lowest_number_counts_and_the_dead_do_not() -> Result<()> {
    let mut cluster = Cluster::start(4).await?;
    let me = cluster.worker(0).clone();
    let find =
        async || read(timeout(TEST_TIMEOUT, me.lookup::<u64>("n").timeout(LONG)).await??).await;
    ensure!(me.lookup::<u64>("n").now().await?.is_none());
    for rank in [3, 1, 2] {
        publish(cluster.worker(rank as usize), "n", rank)?;
    }
    ensure!(find().await? == 1);
    cluster.crash(1).await;
    ensure!(find().await? == 2);
    cluster.worker(2).leave().await?;
    ensure!(find().await? == 3);
    publish(&me, "n", 0)?;
    ensure!(find().await? == 0, "one's own counts as well");
    ensure!(me.unpublish("n") && cluster.worker(3).unpublish("n"));

    // Nobody has it: whoever publishes it first does, also one that joins.
    let waits = |me: &Worker| tokio::spawn(me.lookup::<u64>("n").timeout(LONG));
    let waiting = [waits(&me), waits(cluster.worker(3))];
    serves(cluster.worker(3), 2).await?;
    let late = cluster.join("late").await?;
    publish(late, "n", 9)?;
    for waiting in waiting {
        ensure!(read(timeout(TEST_TIMEOUT, waiting).await???).await? == 9);
    }
    ensure!(late.unpublish("n"));
    finish(cluster).await
}

/// A name that two workers publish changes its meaning only with the first of them.
#[tokio::test]
async fn n4_in_the_group_newer_is_what_takes_the_place_of_the_first() -> Result<()> {
    let cluster = Cluster::start(4).await?;
    let me = cluster.worker(0).clone();
    for rank in [1, 2, 3] {
        publish(cluster.worker(rank as usize), "n", rank)?;
    }
    let newer = |version| {
        let lookup = me.lookup::<u64>("n").newer_than(version).timeout(LONG);
        tokio::spawn(lookup.versioned())
    };
    let found = async |waiting: tokio::task::JoinHandle<farref::Result<(RRef<u64>, _)>>| {
        let (rref, version) = timeout(TEST_TIMEOUT, waiting).await???;
        anyhow::Ok((read(rref).await?, version))
    };
    let (_, of_first) = me.lookup::<u64>("n").versioned().await?;
    let waiting = newer(of_first);
    serves(cluster.worker(1), 1).await?;
    // Others that come after it change nothing.
    publish(cluster.worker(2), "n", 20)?;
    ensure!(
        me.lookup::<u64>("n")
            .newer_than(of_first)
            .now()
            .await?
            .is_none()
    );
    ensure!(!waiting.is_finished());
    publish(cluster.worker(1), "n", 10)?;
    let (number, of_first) = found(waiting).await?;
    ensure!(number == 10);

    let waiting = newer(of_first);
    serves(cluster.worker(1), 1).await?;
    ensure!(cluster.worker(1).unpublish("n"));
    let (number, of_second) = found(waiting).await?;
    ensure!(number == 20, "the next one's");

    let waiting = newer(of_second);
    serves(cluster.worker(2), 1).await?;
    serves(cluster.worker(1), 1).await?;
    publish(cluster.worker(1), "n", 11)?;
    let (number, of_first) = found(waiting).await?;
    ensure!(number == 11, "one that comes before");

    let waiting = newer(of_first);
    serves(cluster.worker(1), 1).await?;
    cluster.crash(1).await;
    let (number, _) = found(waiting).await?;
    ensure!(number == 20, "the next one's");
    for rank in [2, 3] {
        ensure!(cluster.worker(rank).unpublish("n"));
        serves(cluster.worker(rank), 0).await?;
    }
    finish(cluster).await
}

#[tokio::test]
async fn n4_the_death_of_all_who_were_asked_is_no_error_in_the_group() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let me = cluster.worker(0).clone();
    let waiting = tokio::spawn(me.lookup::<u64>("n").timeout(LONG));
    for index in [1, 2] {
        serves(cluster.worker(index), 1).await?;
        cluster.crash(index).await;
    }
    let reborn = cluster.restart(2).await?;
    publish(reborn, "n", 3)?;
    ensure!(read(timeout(TEST_TIMEOUT, waiting).await???).await? == 3);
    ensure!(reborn.unpublish("n"));
    finish(cluster).await
}

#[tokio::test]
async fn n1_a_lookup_has_a_time_limit_and_takes_its_waiting_back() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let short = Duration::from_millis(30);
    let late = peer.lookup::<u64>("n").timeout(short).await;
    ensure!(
        matches!(&late, Err(Error::Timeout { peer, function, limit })
            if &**peer == "worker1" && function.as_str() == "lookup of `n`" && *limit == short),
        "{late:?}"
    );
    // In the group nobody is to blame, if there was time to ask all.
    for limit in [30, 300, 3000, 30_000].map(Duration::from_millis) {
        let late = cluster.worker(0).lookup::<u64>("n").timeout(limit).await;
        let Err(
            error @ Error::Timeout {
                peer, limit: had, ..
            },
        ) = &late
        else {
            anyhow::bail!("{late:?}");
        };
        ensure!(*had == limit);
        if &**peer == "any of the group" {
            let text = error.to_string();
            ensure!(text.contains("the lookup of `n` in the group"), "{text}");
            ensure!(text.contains("nobody is known to have it"), "{text}");
            break;
        }
        ensure!(limit < TEST_TIMEOUT, "{late:?}");
    }
    for worker in cluster.workers() {
        serves(worker, 0).await?;
    }
    finish(cluster).await
}

/// A value that is replaced is dropped, and one that a name alone holds is not.
#[tokio::test]
async fn n2_the_name_holds_its_reference_and_nothing_else_does() -> Result<()> {
    static DROPPED: AtomicU32 = AtomicU32::new(0);
    let (cluster, peer) = pair().await?;
    let publisher = cluster.worker(1);
    for round in 0..3 {
        publisher.publish("t", &publisher.rref_to_object(Tracked(&DROPPED))?)?;
        ensure!(DROPPED.load(Ordering::SeqCst) == round);
    }
    let found = peer.lookup::<Tracked>("t").await?;
    ensure!(publisher.unpublish("t"));
    ensure!(DROPPED.load(Ordering::SeqCst) == 2, "somebody has it");
    drop(found);
    eventually("it is dropped", || DROPPED.load(Ordering::SeqCst) == 3).await?;
    finish(cluster).await
}

/// `Cluster::shutdown` fails if anything leaks.
#[tokio::test]
async fn n5_what_is_published_at_the_end_is_no_leak_and_holds_nobody_up() -> Result<()> {
    static DROPPED: AtomicU32 = AtomicU32::new(0);
    let cluster = Cluster::start(3).await?;
    for worker in cluster.workers() {
        worker.publish("t", &worker.rref_to_object(Tracked(&DROPPED))?)?;
    }
    // Published values with references to values of each other's workers, in both directions.
    let [a, b] = [cluster.worker(0), cluster.worker(1)];
    for (from, to) in [(a, b), (b, a)] {
        let outer = from.rref_to_object(Outer::default())?;
        from.publish("outer", &outer)?;
        to.publish("inner", &to.rref_to_object(Inner)?)?;
        let inner = from.peer(to.name())?.lookup::<Inner>("inner").await?;
        outer.hold(inner).await?;
    }
    // And of another's value.
    let far = cluster
        .worker(2)
        .peer("worker0")?
        .lookup::<Tracked>("t")
        .await?;
    cluster.worker(2).publish("far", &far)?;
    drop(far);
    cluster.shutdown().await?;
    eventually("all are dropped", || DROPPED.load(Ordering::SeqCst) == 3).await
}

/// Somebody joins when all others had only references left, and the names had gone.
#[tokio::test]
async fn n5_a_group_that_goes_on_after_all_can_publish_and_look_up() -> Result<()> {
    static DROPPED: AtomicU32 = AtomicU32::new(0);
    // What is kept holds the others up for as long as this test likes.
    let configure = |builder: WorkerBuilder| builder.leak_grace(LONG).shutdown_timeout(LONG);
    let mut cluster = Cluster::start_with(2, configure).await?;
    let [publisher, done] = [0, 1].map(|index| cluster.worker(index).clone());
    publisher.publish("n", &publisher.rref_to_object(Tracked(&DROPPED))?)?;
    let kept = number::on(&done.peer("worker0")?, 1).remote();
    kept.confirmed().await?;
    let ending = [&publisher, &done].map(|worker| {
        let worker = worker.clone();
        tokio::spawn(async move { worker.shutdown().await })
    });
    eventually("the names go", || DROPPED.load(Ordering::SeqCst) == 1).await?;

    let late = cluster.join("late").await?.clone();
    let peer = late.peer("worker0")?;
    let early = waiting(&peer, "n");
    serves(&publisher, 1).await?;
    publish(&publisher, "n", 7)?;
    ensure!(read(timeout(TEST_TIMEOUT, early).await???).await? == 7);
    ensure!(find(&peer, "n").await? == 7);
    drop(kept);
    timeout(TEST_TIMEOUT, late.shutdown()).await??;
    for ending in ending {
        timeout(TEST_TIMEOUT, ending).await???;
    }
    Ok(())
}

/// The owner of a value that others have published waits for their names to go, also if it has no patience with leaks.
#[tokio::test]
async fn n5_what_others_have_published_is_no_leak_of_the_owners() -> Result<()> {
    let configure = |builder: WorkerBuilder| builder.leak_grace(Duration::ZERO);
    let cluster = Cluster::start_with(3, configure).await?;
    for publisher in cluster.workers() {
        for owner in cluster.workers() {
            let value = number::on(&publisher.peer(owner.name())?, 1).remote();
            value.confirmed().await?;
            publisher.publish(owner.name(), &value)?;
        }
    }
    Ok(cluster.shutdown().await?)
}

/// Says on which thread it was dropped.
struct Placed(mpsc::Sender<ThreadId>);

impl Drop for Placed {
    fn drop(&mut self) {
        let _ = self.0.send(std::thread::current().id());
    }
}

/// It may block, which those who wait for the end do not have to feel.
#[tokio::test]
async fn n5_destructors_of_published_values_do_not_run_where_the_end_is_waited_for() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let publisher = cluster.worker(1);
    let (said, heard) = mpsc::channel();
    for name in ["a", "b"] {
        publisher.publish(name, &publisher.rref_to_object(Placed(said.clone()))?)?;
    }
    cluster.shutdown().await?;
    for _ in 0..2 {
        ensure!(heard.recv_timeout(TEST_TIMEOUT)? != std::thread::current().id());
    }
    Ok(())
}

#[tokio::test]
async fn n5_a_reference_that_was_looked_up_and_kept_is_a_leak_as_ever() -> Result<()> {
    let (cluster, peer) = pair().await?;
    publish(cluster.worker(1), "n", 1)?;
    let kept = peer.lookup::<u64>("n").await?;
    match cluster.shutdown().await {
        Err(Error::Leaked(leaks)) => ensure!(leaks.to_string().contains("lookup"), "{leaks}"),
        other => anyhow::bail!("{other:?}"),
    }
    drop(kept);
    Ok(())
}

/// Who leaves does not wait for lookups that may wait for ever, and its names are there until it is gone.
#[tokio::test]
async fn n5_who_leaves_is_not_held_up_by_lookups_and_keeps_its_names_if_it_stays() -> Result<()> {
    let configure = |builder: WorkerBuilder| builder.shutdown_timeout(LONG);
    let cluster = Cluster::start_with(3, configure).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let leaver = cluster.worker(1).clone();
    publish(&leaver, "n", 1)?;
    let lost = waiting(&peer, "never");
    let busy = hang::on(&peer).timeout(LONG).start();
    serves(&leaver, 2).await?;
    // It waits for `busy`, and changes its mind.
    let leaving = timeout(Duration::from_millis(50), leaver.leave()).await;
    ensure!(leaving.is_err() && leaver.is_member());
    ensure!(find(&peer, "n").await? == 1 && !lost.is_finished());
    drop(busy);
    timeout(TEST_TIMEOUT, leaver.leave()).await??;
    let lost = timeout(TEST_TIMEOUT, lost).await??;
    ensure!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
    ensure!(publish(&leaver, "n", 2).is_err());
    finish(cluster).await
}

#[farref::remote]
async fn hang() {
    std::future::pending().await
}

#[tokio::test]
async fn n1_a_name_has_some_bytes_and_not_too_many_and_is_of_ones_own_references() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let [me, other] = [cluster.worker(0), cluster.worker(1)];
    let value = me.rref(1_u64)?;
    for name in ["", &"n".repeat(256)] {
        let refused = [
            me.publish(name, &value).map(drop),
            peer.lookup::<u64>(name).await.map(drop),
            me.lookup::<u64>(name).now().await.map(drop),
        ];
        for refused in refused {
            ensure!(
                matches!(refused, Err(Error::Misuse(Misuse::BadName))),
                "{refused:?}"
            );
        }
    }
    let longest = "n".repeat(255);
    me.publish(&longest, &value)?;
    ensure!(find(&other.peer("worker0")?, &longest).await? == 1);
    ensure!(me.unpublish(&longest));
    let foreign = other.publish("n", &value);
    ensure!(
        matches!(foreign, Err(Error::ForeignReference { .. })),
        "{foreign:?}"
    );
    drop(value);
    finish(cluster).await
}

/// A lookup is no part of the context that surrounds it, which would wait for it.
#[tokio::test]
async fn n1_a_lookup_that_waits_holds_no_context() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let scope = farref::context::ContextScope::open(cluster.worker(0))?;
    let mut inside = Box::pin(scope.run(peer.lookup::<u64>("n").timeout(LONG)));
    ensure!(timeout(Duration::ZERO, &mut inside).await.is_err());
    serves(cluster.worker(1), 1).await?;
    timeout(TEST_TIMEOUT, scope.release()).await??;
    drop(inside);
    finish(cluster).await
}

/// A wire that says that it has no names has none.
#[tokio::test]
async fn n1_where_a_wire_has_no_names_it_is_said() -> Result<()> {
    let ends = [0, 1].map(|_| channels::End {
        has_names: false,
        ..channels::End::default()
    });
    let [a, b] = channels::group(ends).await?;
    let value = a.rref(1_u64)?;
    let refused = [
        a.publish("n", &value).map(drop),
        a.lookup::<u64>("n").await.map(drop),
        b.peer("w0")?.lookup::<u64>("n").await.map(drop),
    ];
    for refused in refused {
        ensure!(
            matches!(refused, Err(Error::Misuse(Misuse::NoNames))),
            "{refused:?}"
        );
    }
    drop(value);
    channels::end([a, b]).await
}
