//! Laws about workers that have others keep more than they may.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::runtime::WorkerStage;
use crate::testing::Cluster;

const PATIENCE: Duration = Duration::from_secs(60);

/// Far less than callers believe.
const LIMIT: u64 = 1 << 20;

static GATE: Semaphore = Semaphore::const_new(0);

#[farref_macros::remote]
async fn length_behind_the_gate(bytes: Vec<u8>) -> usize {
    let _permit = GATE.acquire().await;
    bytes.len()
}

#[farref_macros::remote]
async fn length(bytes: Vec<u8>) -> usize {
    bytes.len()
}

struct Measured(usize);

#[farref_macros::remote]
impl Measured {
    pub(crate) async fn new(bytes: Vec<u8>) -> Self {
        Self(bytes.len())
    }

    pub(crate) async fn length(&self) -> usize {
        self.0
    }
}

/// OA-1, D5: whoever has more arguments open than it may is cut off, and the others go on. What is answered, and what was
/// made, is not open.
#[tokio::test]
async fn who_has_too_many_bytes_of_arguments_open_is_cut_off() -> crate::Result<()> {
    let cluster = Cluster::start_with(3, |builder| builder.max_open_bytes(LIMIT)).await?;
    let (victim, greedy) = (cluster.worker(0), cluster.worker(2));
    let peer = greedy.peer("worker0")?;
    let most = LIMIT as usize * 2 / 3;
    // One after the other they may be as many as one likes, and one by itself as large.
    for _ in 0..5 {
        assert_eq!(length::on(&peer, vec![1; most]).await?, most);
        let made = Measured::new_on(&peer, vec![1; most]).remote();
        assert_eq!(made.length().await?, most);
    }
    assert_eq!(length::on(&peer, vec![1; 5 * most]).await?, 5 * most);

    let open = [(); 2].map(|()| length_behind_the_gate::on(&peer, vec![1; most]).start());
    let mut stage = Arc::clone(&greedy.core).stage.subscribe();
    let evicted = stage.wait_for(|stage| *stage == WorkerStage::Evicted);
    let evicted = timeout(PATIENCE, evicted).await;
    assert!(evicted.is_ok_and(|stage| stage.is_ok()), "it is cut off");
    for call in open {
        assert!(call.await.is_err());
    }
    GATE.add_permits(1);
    let other = cluster.worker(1).peer("worker0")?;
    assert_eq!(length::on(&other, vec![1; most]).await?, most);
    assert!(!victim.peer("worker2")?.is_alive());
    cluster.crash(2).await;
    cluster.shutdown().await
}
