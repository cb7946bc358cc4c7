//! Laws about workers that tell of others who do not exist.

use std::sync::Arc;

use farref_proto::{Control, Incarnation, NodeId, Standing, Status, WorkerId};
use farref_testkit::{TEST_TIMEOUT, thorough};
use tokio::time::timeout;

use crate::agent::Message;
use crate::runtime::WorkerStage;
use crate::runtime::core::Core;
use crate::testing::Cluster;

/// How many changes a leader takes from one peer where `max_members` is small.
const MOST: usize = 2048;

#[farref_macros::remote]
async fn answer_of_the_honest() -> u64 {
    7
}

/// One worker tells another of a million lives that do not exist, as fast as it can. A tenth of them
/// is far beyond the limit, too.
fn make_up_a_million(liar: &Core, to: NodeId, status: Status) {
    let standing = Standing {
        incarnation: Incarnation(1),
        status,
    };
    let count = if thorough() { 1_000_000 } else { 100_000 };
    for first in (1_000..1_000 + count).step_by(1_000) {
        let made_up = (first..first + 1_000).map(|worker| (WorkerId(worker), standing));
        let entries = made_up.collect();
        let view = Control::View { entries, ask: None };
        liar.agent().enqueue(to, Message::Control(view));
        liar.agent().flush(to);
    }
}

async fn is_cut_off(liar: &Core) {
    let mut stage = liar.stage.subscribe();
    let evicted = stage.wait_for(|stage| *stage == WorkerStage::Evicted);
    let evicted = timeout(TEST_TIMEOUT, evicted).await;
    assert!(evicted.is_ok_and(|stage| stage.is_ok()), "it is cut off");
}

fn known(core: &Core) -> usize {
    core.look(|node| node.membership().view().standings().count())
}

/// D5, ME-10: whoever makes up that others have died is cut off, and the others go on to their end.
#[tokio::test]
async fn who_tells_of_a_million_dead_is_cut_off_and_the_others_go_on() -> crate::Result<()> {
    let cluster = Cluster::start_with(3, |builder| builder.max_members(8)).await?;
    let [leader, other, liar] = [0, 1, 2].map(|n| Arc::clone(&cluster.worker(n).core));
    make_up_a_million(&liar, leader.me, Status::Dead);
    is_cut_off(&liar).await;
    for honest in [&leader, &other] {
        let count = known(honest);
        assert!(count <= 3 + MOST, "{count} are known");
    }
    let peer = cluster.worker(0).peer("worker1")?;
    assert_eq!(answer_of_the_honest::on(&peer).await?, 7);
    // All that was told is settled, and nothing is left of the liar.
    cluster.crash(2).await;
    cluster.shutdown().await
}

/// D5, ME-10, ME-11: the same of lives that are said to go on: they cost no more than a link each, and hold nobody up who
/// exists.
#[tokio::test]
async fn who_tells_of_a_million_others_is_cut_off_and_the_others_go_on() -> crate::Result<()> {
    let cluster = Cluster::start_with(3, |builder| builder.max_members(8)).await?;
    let [leader, other, liar] = [0, 1, 2].map(|n| Arc::clone(&cluster.worker(n).core));
    make_up_a_million(&liar, leader.me, Status::Alive);
    is_cut_off(&liar).await;
    for honest in [&leader, &other] {
        let count = known(honest);
        assert!(count <= 3 + MOST, "{count} are known");
        let links = honest.agent().links().len();
        assert!(links <= 3 + MOST, "{links} links");
    }
    let peer = cluster.worker(0).peer("worker1")?;
    assert_eq!(answer_of_the_honest::on(&peer).await?, 7);
    // It takes as long as `peer_timeout` to find out that there is nobody.
    for n in 0..3 {
        cluster.crash(n).await;
    }
    Ok(())
}
