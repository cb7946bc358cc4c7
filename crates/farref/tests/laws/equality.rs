//! References are equal if they lead to the same value, however they got there.

#![allow(
    clippy::mutable_key_type,
    reason = "what is compared of a reference never changes"
)]

use std::collections::HashSet;

use anyhow::Result;
use farref::{Error, RRef};
use farref_testkit::TEST_TIMEOUT;
use tokio::time::timeout;

use crate::cluster::{finish, pair};

#[farref::remote]
async fn text(content: String) -> String {
    content
}

#[farref::remote]
async fn hand_back(all: Vec<RRef<String>>) -> Vec<RRef<String>> {
    all.into_iter().rev().collect()
}

#[farref::remote]
async fn distinct(all: Vec<RRef<String>>) -> usize {
    all.into_iter().collect::<HashSet<_>>().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn references_of_one_worker_are_equal_if_they_lead_to_the_same_value() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let [one, other] = ["same"; 2].map(|content| text::on(&peer, content.to_owned()).remote());
    let here = cluster.worker(0).rref("same".to_owned())?;
    assert!(one == one.clone() && one != other && other != here);
    let sent = vec![one.clone(), other.clone(), one.clone(), here.clone()];
    assert_eq!(distinct::on(&peer, sent.clone()).await?, 3);
    // They come back by another way than they went.
    let back = hand_back::on(&peer, sent).await?;
    assert_eq!(
        back,
        [here.clone(), one.clone(), other.clone(), one.clone()]
    );
    let known = HashSet::from([one, here]);
    let found: Vec<_> = back.iter().map(|one| known.contains(one)).collect();
    assert_eq!(found, [true, true, false, true]);
    drop((back, known, other));
    finish(cluster).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reference_that_leads_nowhere_is_equal_to_its_clones_only() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let alive = text::on(&peer, String::new()).remote();
    let gone = peer.gone();
    cluster.crash(1).await;
    // Until that is known, a call is made, and its value is the owner's.
    timeout(TEST_TIMEOUT, gone).await??;
    let lost = [(); 2].map(|()| text::on(&peer, String::new()).remote());
    assert!(matches!(
        lost[0].to_here().await,
        Err(Error::PeerLost { .. })
    ));
    assert!(lost[0] == lost[0].clone() && lost[0] != lost[1] && lost[0] != alive);
    let known = HashSet::from([lost[0].clone(), alive.clone()]);
    assert!(known.contains(&lost[0]) && known.contains(&alive) && !known.contains(&lost[1]));
    drop((alive, lost, known));
    finish(cluster).await
}
