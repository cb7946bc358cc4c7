//! W1-W5: what a program learns of the members of its group, and when.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use anyhow::{Context as _, Result, bail};
use farref::agent::NodeId;
use farref::testing::Cluster;
use farref::{Departure, Error, MemberEvent, Members, RRef, Worker, WorkerEnd};
use farref_testkit::{TEST_TIMEOUT, eventually};
use futures_core::Stream;
use tokio::time::timeout;

use crate::channels;
use crate::cluster::{finish, pair};

/// An event in few words, and the life that it is about.
type Told = (String, Option<NodeId>);

fn words(event: MemberEvent) -> Told {
    let of = |what: &str, member: farref::Member| {
        let about = format!("{what} {}", member.name());
        (about, Some(member.node()))
    };
    match event {
        MemberEvent::Joined(member) => of("joined", member),
        MemberEvent::Left(member) => of("left", member),
        MemberEvent::Died(member) => of("died", member),
        MemberEvent::Complete => ("complete".to_owned(), None),
        MemberEvent::Ended(how) => (format!("ended {how:?}"), None),
        other => (format!("{other:?}"), None),
    }
}

async fn next(members: &mut Members) -> Result<Told> {
    let event = timeout(TEST_TIMEOUT, members.next()).await?;
    event.map(words).context("the stream of members is over")
}

/// The next events in words, as many as are expected.
async fn expect(members: &mut Members, expected: &[&str]) -> Result<()> {
    for expected in expected {
        assert_eq!(next(members).await?.0, *expected);
    }
    Ok(())
}

/// The stream is over.
async fn expect_end(mut members: Members, how: &str) -> Result<()> {
    expect(&mut members, &[how]).await?;
    for _ in 0..2 {
        let event = timeout(TEST_TIMEOUT, members.next()).await?;
        assert!(event.is_none(), "{event:?}");
    }
    Ok(())
}

/// The watcher has begun, and knows two workers.
async fn watch_two(me: &Worker) -> Result<Members> {
    let mut members = me.watch_members();
    let present = ["joined worker0", "joined worker1", "complete"];
    expect(&mut members, &present).await?;
    Ok(members)
}

/// What can be read without waiting.
fn read_now(members: &mut Members) -> Vec<Told> {
    let mut context = Context::from_waker(Waker::noop());
    let mut told = Vec::new();
    while let Poll::Ready(Some(event)) = pin!(&mut *members).poll_next(&mut context) {
        told.push(words(event));
    }
    told
}

#[tokio::test]
async fn w1_those_who_are_there_come_first_and_then_it_is_said_that_they_are_all() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let me = cluster.worker(0).clone();
    let present = ["joined worker0", "joined worker1", "joined worker2"];
    let mut early = me.watch_members();
    expect(&mut early, &present).await?;
    expect(&mut early, &["complete"]).await?;

    cluster.join("late").await?;
    expect(&mut early, &["joined late"]).await?;
    let mut late = me.watch_members();
    expect(&mut late, &present).await?;
    expect(&mut late, &["joined late", "complete"]).await?;
    // Each worker watches for itself.
    let mut theirs = cluster.worker(3).watch_members();
    expect(&mut theirs, &present).await?;
    expect(&mut theirs, &["joined late", "complete"]).await?;
    finish(cluster).await
}

#[tokio::test]
async fn w2_each_life_is_told_to_join_and_to_go_with_how_it_went() -> Result<()> {
    let mut cluster = Cluster::start(2).await?;
    let mut members = watch_two(&cluster.worker(0).clone()).await?;
    let first = cluster.worker(1).node();
    cluster.crash(1).await;
    assert_eq!(
        next(&mut members).await?,
        ("died worker1".to_owned(), Some(first))
    );
    // What is told is so: no call reaches it any more.
    assert!(!cluster.worker(0).peer("worker1")?.is_alive());
    let second = cluster.restart(1).await?.node();
    assert!(second > first);
    assert_eq!(
        next(&mut members).await?,
        ("joined worker1".to_owned(), Some(second))
    );
    assert!(cluster.worker(0).peer("worker1")?.is_alive());
    cluster.worker(1).leave().await?;
    assert_eq!(
        next(&mut members).await?,
        ("left worker1".to_owned(), Some(second))
    );
    finish(cluster).await
}

#[tokio::test]
async fn w2_w3_of_lives_that_nobody_read_of_only_the_last_is_told_and_no_end_is_missed()
-> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let me = cluster.worker(0).clone();
    let mut members = me.watch_members();
    let present = ["joined worker0", "joined worker1", "joined worker2"];
    expect(&mut members, &present).await?;
    expect(&mut members, &["complete"]).await?;
    let first = cluster.worker(1).node();
    for _ in 0..5 {
        cluster.crash(1).await;
        cluster.restart(1).await?;
    }
    let last = cluster.worker(1).node();
    for name in ["short", "shorter"] {
        cluster.join(name).await?;
        cluster
            .workers()
            .last()
            .context("it joined")?
            .leave()
            .await?;
    }
    for name in ["short", "shorter"] {
        let peer = me.peer(name)?;
        eventually("it has left", || !peer.is_alive()).await?;
    }
    assert_eq!(
        read_now(&mut members),
        [
            ("died worker1".to_owned(), Some(first)),
            ("joined worker1".to_owned(), Some(last)),
        ]
    );
    finish(cluster).await
}

#[tokio::test]
async fn w3_who_stops_watching_or_waiting_loses_nothing_and_holds_nobody_up() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let me = cluster.worker(0);
    let mut kept = watch_two(me).await?;
    for _ in 0..100 {
        drop(watch_two(me).await?);
        drop(me.watch_members());
        drop(peer.gone());
        // Dropped while it waits: the event is still there for the next.
        assert!(
            timeout(std::time::Duration::ZERO, kept.next())
                .await
                .is_err()
        );
        assert!(
            timeout(std::time::Duration::ZERO, peer.gone())
                .await
                .is_err()
        );
    }
    let gone = peer.gone();
    cluster.crash(1).await;
    expect(&mut kept, &["died worker1"]).await?;
    assert_eq!(timeout(TEST_TIMEOUT, gone).await??, Departure::Died);
    finish(cluster).await
}

/// It would be looked for in vain, and then declared dead for all, whoever is given its number later.
#[tokio::test]
async fn w5_nobody_waits_for_a_worker_that_the_group_never_heard_of() -> Result<()> {
    /// The number of whoever joins first after the founders.
    const FIRST_NEWCOMER: u32 = 16_384;
    let (mut cluster, _) = pair().await?;
    let me = cluster.worker(0).clone();
    let nobody = me.peer_of(NodeId::new(FIRST_NEWCOMER, 1));
    let error = timeout(TEST_TIMEOUT, nobody.gone()).await?;
    assert!(matches!(error, Err(Error::PeerLost { .. })), "{error:?}");
    cluster.join("third").await?;
    let third = me.peer("third")?;
    assert_eq!(third.rank(), FIRST_NEWCOMER);
    assert!(third.is_alive());
    drop(me);
    finish(cluster).await
}

#[tokio::test]
async fn w4_the_stream_ends_with_its_worker_and_says_how() -> Result<()> {
    let cluster = Cluster::start(4).await?;
    let watch = |index: usize| cluster.worker(index).watch_members();
    let mut watching: Vec<Members> = (0..4).map(watch).collect();
    for members in &mut watching {
        while next(members).await?.0 != "complete" {}
    }
    let late = cluster.worker(3).clone();
    cluster.crash(3).await;
    expect_end(watching.pop().context("four")?, "ended Stopped").await?;
    for members in &mut watching {
        expect(members, &["died worker3"]).await?;
    }
    cluster.worker(2).leave().await?;
    expect_end(watching.pop().context("three")?, "ended Left").await?;
    for members in &mut watching {
        expect(members, &["left worker2"]).await?;
    }
    finish(cluster).await?;
    for members in watching {
        expect_end(members, "ended ShutDown").await?;
    }
    // Whoever comes later is told as well, and of nobody else.
    let mut members = late.watch_members();
    expect(&mut members, &["complete"]).await?;
    expect_end(members, "ended Stopped").await
}

/// What was not read when the worker ended is told before its end.
#[tokio::test]
async fn w4_what_came_before_the_end_is_told_before_it() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let mut members = watch_two(cluster.worker(0)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    cluster.crash(1).await;
    timeout(TEST_TIMEOUT, peer.gone()).await??;
    finish(cluster).await?;
    expect(&mut members, &["died worker1"]).await?;
    expect_end(members, "ended ShutDown").await
}

#[tokio::test]
async fn w4_an_evicted_worker_is_told_and_waits_for_nobody() -> Result<()> {
    let (worker, inbound) = channels::alone(|builder| builder).await?;
    let mut members = worker.watch_members();
    expect(&mut members, &["joined w0", "joined w1", "complete"]).await?;
    let gone = worker.peer("w1")?.gone();
    inbound.refused(NodeId::new(1, 1));
    expect_end(members, "ended Evicted").await?;
    let peer = worker.peer("w1");
    for outcome in [timeout(TEST_TIMEOUT, gone).await?, peer?.gone().await] {
        assert!(matches!(outcome, Err(Error::Evicted { .. })), "{outcome:?}");
    }
    assert!(worker.shutdown().await.is_err());
    Ok(())
}

/// Where another system keeps the list of members, its word counts.
#[tokio::test]
async fn w1_members_that_another_system_admits_and_dismisses_are_told_alike() -> Result<()> {
    let (worker, inbound) = channels::alone(|builder| builder).await?;
    let mut members = worker.watch_members();
    expect(&mut members, &["joined w0", "joined w1", "complete"]).await?;
    let late = NodeId::new(2, 1);
    Arc::clone(&inbound).admitted(late, "late");
    Arc::clone(&inbound).admitted(late, "late");
    expect(&mut members, &["joined late"]).await?;
    let gone = worker.peer("late")?.gone();
    Arc::clone(&inbound).dismissed(late, Departure::Left);
    Arc::clone(&inbound).dismissed(NodeId::new(1, 1), Departure::Died);
    expect(&mut members, &["left late", "died w1"]).await?;
    assert_eq!(timeout(TEST_TIMEOUT, gone).await??, Departure::Left);
    worker.crash().await;
    expect_end(members, "ended Stopped").await
}

#[tokio::test]
async fn w5_gone_is_about_the_life_that_was_there_when_it_was_asked_for() -> Result<()> {
    let mut cluster = Cluster::start(2).await?;
    let me = cluster.worker(0).clone();
    let peer = me.peer("worker1")?;
    let of_first: Vec<_> = (0..3).map(|_| peer.gone()).collect();
    cluster.crash(1).await;
    cluster.restart(1).await?;
    for gone in of_first {
        // Also for who begins to await it only now.
        assert_eq!(timeout(TEST_TIMEOUT, gone).await??, Departure::Died);
    }
    let mut of_second = pin!(peer.gone());
    let mut context = Context::from_waker(Waker::noop());
    assert!(of_second.as_mut().poll(&mut context).is_pending());
    cluster.worker(1).leave().await?;
    assert_eq!(timeout(TEST_TIMEOUT, of_second).await??, Departure::Left);
    // At once, when it is over.
    assert_eq!(timeout(TEST_TIMEOUT, peer.gone()).await??, Departure::Left);
    let me = me.me();
    let of_myself = me.gone();
    finish(cluster).await?;
    let ended = timeout(TEST_TIMEOUT, of_myself).await?;
    assert!(matches!(ended, Err(Error::NotMember { .. })), "{ended:?}");
    Ok(())
}

#[farref::remote]
async fn number() -> u64 {
    7
}

#[farref::remote]
async fn number_of(peer: String) -> Result<RRef<u64>> {
    let me = Worker::current().context("inside of a remote function")?;
    Ok(number::on(&me.peer(&peer)?).remote())
}

#[tokio::test]
async fn w5_the_owner_of_a_reference_is_gone_with_the_life_that_has_the_value() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let peers = [
        cluster.worker(0).peer("worker1")?,
        cluster.worker(0).peer("worker2")?,
    ];
    let value = number_of::on(&peers[0], "worker2".into()).await?;
    let (middle, owner) = (peers[0].gone(), value.owner_gone());
    value.confirmed().await?;
    cluster.crash(1).await;
    assert_eq!(timeout(TEST_TIMEOUT, middle).await??, Departure::Died);
    assert_eq!(value.to_here().await?, 7, "its owner is there");
    cluster.crash(2).await;
    cluster.restart(2).await?;
    assert_eq!(timeout(TEST_TIMEOUT, owner).await??, Departure::Died);
    assert_eq!(
        timeout(TEST_TIMEOUT, value.owner_gone()).await??,
        Departure::Died
    );
    match value.to_here().await {
        Err(Error::OwnerLost { .. }) => {}
        other => bail!("{other:?}"),
    }
    drop(value);
    finish(cluster).await
}

/// W4 as a program meets it: a task that reads to the end, however the worker ends, comes to an end.
#[tokio::test(flavor = "multi_thread")]
async fn w4_a_task_that_watches_ends_with_a_worker_that_is_dropped() -> Result<()> {
    let cluster = Cluster::start(1).await?;
    let mut members = cluster.worker(0).watch_members();
    let watching = tokio::spawn(async move {
        let mut last = None;
        while let Some(event) = members.next().await {
            last = Some(event);
        }
        last
    });
    drop(cluster);
    let last = timeout(TEST_TIMEOUT, watching).await??;
    assert!(
        matches!(last, Some(MemberEvent::Ended(WorkerEnd::Stopped))),
        "{last:?}"
    );
    Ok(())
}

/// W4: a worker is not told that it has left itself, neither before it has nor then.
#[tokio::test(flavor = "multi_thread")]
async fn w4_a_worker_that_leaves_does_not_hear_so_of_itself() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let leaver = cluster.worker(1).clone();
    let me = leaver.me();
    let leaving = tokio::spawn(async move { leaver.leave().await });
    let mut context = Context::from_waker(Waker::noop());
    loop {
        match pin!(me.gone()).poll(&mut context) {
            Poll::Pending => tokio::task::yield_now().await,
            Poll::Ready(Err(_)) => break,
            Poll::Ready(Ok(departure)) => bail!("{departure:?}"),
        }
    }
    leaving.await??;
    finish(cluster).await
}
