//! V1: a `Peer` can be sent, and arrives as the receiver's own peer of the same worker.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use farref::testing::Cluster;
use farref::{Blob, Error, Peer, RRef, Streaming, Worker};
use farref_testkit::TEST_TIMEOUT;
use serde::{Deserialize, Serialize};
use tokio::time::timeout;

use crate::cluster::finish;
use crate::streams::sources::Each;

#[farref::remote]
async fn who() -> String {
    Worker::current().map_or_else(String::new, |me| me.name().to_owned())
}

/// Peers wherever one may be in a value, and something behind them.
#[derive(Clone, Serialize, Deserialize)]
struct Route {
    first: Peer,
    then: Vec<Peer>,
    by_name: BTreeMap<String, Option<Peer>>,
    last: Hop,
    kept: RRef<Peer>,
    length: u32,
}

#[derive(Clone, Serialize, Deserialize)]
#[serde(untagged)]
enum Hop {
    Nowhere { reason: String },
    To { peer: Peer, rest: u32 },
}

/// Calls all of them from here, and sends them on.
#[farref::remote]
async fn walk(route: Route) -> farref::Result<(Vec<String>, Route)> {
    let mut names = vec![who::on(&route.first).await?];
    for peer in &route.then {
        names.push(who::on(peer).await?);
    }
    for peer in route.by_name.values().flatten() {
        names.push(who::on(peer).await?);
    }
    match &route.last {
        Hop::To { peer, rest } => names.push(format!("{} and {rest}", who::on(peer).await?)),
        Hop::Nowhere { reason } => names.push(reason.clone()),
    }
    names.push(who::on(&route.kept.to_here().await?).await?);
    names.push(route.length.to_string());
    Ok((names, route))
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_a_peer_anywhere_in_a_value_arrives_as_the_receivers_own() -> Result<()> {
    let cluster = Cluster::start(3).await?;
    let me = cluster.worker(0);
    let [one, two] = [me.peer("worker1")?, me.peer("worker2")?];
    let route = Route {
        first: two.clone(),
        then: me.peers(),
        by_name: BTreeMap::from([("a".to_owned(), Some(two.clone())), ("b".to_owned(), None)]),
        last: Hop::To {
            peer: me.me(),
            rest: 7,
        },
        kept: me.rref(two.clone())?,
        length: 9,
    };
    let (names, back) = walk::on(&one, route).await?;
    let expected = [
        "worker2",
        "worker0",
        "worker1",
        "worker2",
        "worker2",
        "worker0 and 7",
        "worker2",
        "9",
    ];
    assert_eq!(names, expected);
    // What has come back is this worker's own again.
    assert!(back.then[0].is_me() && !back.first.is_me());
    assert_eq!((back.first.name(), back.first.rank()), ("worker2", 2));
    assert_eq!(who::on(&back.first).await?, "worker2");
    drop(back);
    finish(cluster).await
}

#[farref::remote]
async fn call_myself(me: Peer) -> farref::Result<(bool, String)> {
    Ok((me.is_me(), who::on(&me).await?))
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_a_peer_that_is_the_receiver_reaches_itself() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let there = call_myself::on(&peer, peer.clone()).await?;
    assert_eq!(there, (true, "worker1".to_owned()));
    let here = call_myself::on(&me.me(), me.me()).await?;
    assert_eq!(here, (true, "worker0".to_owned()));
    finish(cluster).await
}

#[farref::remote]
async fn members() -> farref::Result<Streaming<(Peer, u8)>> {
    let me = Worker::current().ok_or(farref::Misuse::NoWorker)?;
    Ok(Streaming::new(Each(me.peers().into_iter().zip(0..))))
}

#[farref::remote]
async fn call_each(mut peers: Streaming<(Peer, u8)>) -> farref::Result<Vec<(String, u8)>> {
    let mut names = Vec::new();
    while let Some(item) = peers.next().await {
        let (peer, number) = item?;
        names.push((who::on(&peer).await?, number));
    }
    Ok(names)
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_items_of_streams_may_have_peers_in_them() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let expected = [("worker0".to_owned(), 0), ("worker1".to_owned(), 1)];

    let mut stream = members::on(&peer).await?;
    for (name, number) in &expected {
        let item = timeout(TEST_TIMEOUT, stream.next())
            .await?
            .context("an item")?;
        let (member, place) = item?;
        assert_eq!((&who::on(&member).await?, place), (name, *number));
        assert_eq!(member.is_me(), place == 0);
    }
    assert!(timeout(TEST_TIMEOUT, stream.next()).await?.is_none());

    let stream = Streaming::new(Each(me.peers().into_iter().zip(0..)));
    assert_eq!(call_each::on(&peer, stream).await?, expected);
    finish(cluster).await
}

/// What would be read as something else where it cannot be read as a peer.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Whom {
    Known(Peer),
    Unknown(u32, Option<u32>, String),
}

#[farref::remote]
async fn whom() -> farref::Result<Streaming<Whom>> {
    let me = Worker::current().ok_or(farref::Misuse::NoWorker)?;
    let items = [
        Whom::Unknown(1, None, "worker1".to_owned()),
        Whom::Known(me.me()),
    ];
    Ok(Streaming::new(Each(items.into_iter())))
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_an_item_with_a_peer_in_it_is_read_as_nothing_else() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let mut stream = whom::on(&cluster.worker(0).peer("worker1")?).await?;
    let mut next = async || {
        timeout(TEST_TIMEOUT, stream.next())
            .await?
            .context("an item")
    };
    assert!(matches!(next().await??, Whom::Unknown(1, None, name) if name == "worker1"));
    assert!(matches!(next().await??, Whom::Known(peer) if peer.name() == "worker1"));
    drop(stream);
    finish(cluster).await
}

/// What calling it says: its name, or whose loss, in what.
#[farref::remote]
async fn try_to_call(peer: Peer) -> farref::Result<String> {
    match who::on(&peer).await {
        Err(Error::PeerLost { peer, function, .. }) => Ok(format!("{peer} lost in {function}")),
        other => other,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_calls_on_a_dead_worker_fail_as_at_home_and_reach_its_next_life() -> Result<()> {
    let mut cluster = Cluster::start(3).await?;
    let me = cluster.worker(0).clone();
    let [one, two] = [me.peer("worker1")?, me.peer("worker2")?];
    cluster.crash(2).await;
    timeout(TEST_TIMEOUT, two.gone()).await??;
    let Err(Error::PeerLost { peer, function, .. }) = who::on(&two).await else {
        bail!("it is dead");
    };
    let there = try_to_call::on(&one, two.clone()).await?;
    assert_eq!(there, format!("{peer} lost in {function}"));
    // F3
    cluster.restart(2).await?;
    let again = me.wait_for_peer("worker2", TEST_TIMEOUT).await?;
    assert_eq!(try_to_call::on(&one, two).await?, "worker2");
    assert_eq!(try_to_call::on(&one, again).await?, "worker2");
    finish(cluster).await
}

#[farref::remote]
async fn call_with_data(peer: Peer, _data: Blob) -> farref::Result<String> {
    who::on(&peer).await
}

/// SP-2
#[tokio::test(flavor = "multi_thread")]
async fn v1_a_newcomer_can_be_called_by_whoever_is_told_of_it() -> Result<()> {
    let mut cluster = Cluster::start(2).await?;
    let me = cluster.worker(0).clone();
    let one = me.peer("worker1")?;
    for round in 0..8 {
        let name = format!("newcomer{round}");
        cluster.join(&name).await?;
        let newcomer = me.wait_for_peer(&name, TEST_TIMEOUT).await?;
        let large = Blob::from(vec![0; 100 << 10]);
        assert_eq!(
            call_with_data::on(&one, newcomer.clone(), large).await?,
            name
        );
        assert_eq!(call_myself::on(&newcomer, one.clone()).await?.1, "worker1");
    }
    finish(cluster).await
}

#[farref::remote]
async fn take(_peer: Peer) {}

#[derive(Debug, Serialize, Deserialize, thiserror::Error)]
#[error("ask somebody else")]
struct AskElsewhere {
    whom: Held,
}

/// A peer in an error, which wants to be printed.
#[derive(Debug, Serialize, Deserialize)]
struct Held(Peer);

#[farref::remote]
async fn refer() -> Result<(), AskElsewhere> {
    match Worker::caller() {
        Some(caller) => Err(AskElsewhere { whom: Held(caller) }),
        None => Ok(()),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_a_peer_travels_in_calls_and_answers_of_its_worker_only() -> Result<()> {
    let cluster = Cluster::start(2).await?;
    let [me, other] = [cluster.worker(0), cluster.worker(1)];
    let peer = me.peer("worker1")?;
    let refused = serde_json::to_string(&peer).unwrap_err().to_string();
    assert!(refused.contains("`Worker::peer`"), "{refused}");
    let refused = serde_json::from_str::<Peer>("[1,1,\"worker1\"]").unwrap_err();
    assert!(refused.to_string().contains("out of a call"), "{refused}");

    let foreign = take::on(&other.peer("worker0")?, peer.clone()).await;
    let Err(Error::ForeignReference {
        held_by, sent_by, ..
    }) = foreign
    else {
        bail!("another worker's: {foreign:?}");
    };
    assert_eq!((&*held_by, &*sent_by), ("worker0", "worker1"));

    let error = refer::on(&peer).await.unwrap_err();
    assert!(error.to_string().contains("ask somebody else"), "{error}");
    let typed = refer::on(&peer).result().await;
    assert!(matches!(typed, Err(Error::Codec { .. })), "{typed:?}");
    finish(cluster).await
}
