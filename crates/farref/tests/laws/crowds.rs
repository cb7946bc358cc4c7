//! D5, from the caller's side: more calls than there is room for.

use farref::testing::Cluster;
use farref::{Error, Peer, Result, WorkerBuilder};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

use crate::PATIENCE;

const OPEN: usize = 64;
const WAITING: usize = 10;

fn narrow(builder: WorkerBuilder) -> WorkerBuilder {
    builder
        .max_calls_per_peer(OPEN as u32)
        .max_waiting_calls_per_peer(WAITING)
}

/// Lets calls of one test end.
static GATES: [Semaphore; 3] = [const { Semaphore::const_new(0) }; 3];

#[farref::remote]
async fn pass(gate: usize, number: usize) -> usize {
    GATES[gate].acquire().await.expect("it is open").forget();
    number
}

/// As many calls as are carried out and may wait.
fn fill(peer: &Peer, gate: usize) -> Vec<farref::Pending<usize>> {
    let calls = (0..OPEN + WAITING).map(|n| pass::on(peer, gate, n).start());
    calls.collect()
}

/// D5
#[tokio::test]
async fn calls_that_are_awaited_wait_for_a_place_and_others_are_refused() -> Result<()> {
    let cluster = Cluster::start_with(2, narrow).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let started = fill(&peer, 0);
    let refused = pass::on(&peer, 0, 0).start().await;
    assert!(
        matches!(refused, Err(Error::TooManyCalls { .. })),
        "{refused:?}"
    );
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("worker1") && text.contains("pass"), "{text}");
    let refused = pass::on(&peer, 0, 0).remote().to_here().await;
    assert!(
        matches!(refused, Err(Error::TooManyCalls { .. })),
        "{refused:?}"
    );
    assert_eq!(cluster.worker(0).snapshot().references.len(), 0, "R5");

    let (polled, mut all_polled) = watch::channel(0);
    let mut awaited = JoinSet::new();
    for n in 0..100 {
        let (peer, polled) = (peer.clone(), polled.clone());
        awaited.spawn(async move {
            let mut call = std::pin::pin!(pass::on(&peer, 0, n).into_future());
            let mut first = true;
            std::future::poll_fn(|context| {
                let poll = call.as_mut().poll(context);
                if std::mem::take(&mut first) {
                    assert!(poll.is_pending());
                    polled.send_modify(|polled| *polled += 1);
                }
                poll
            })
            .await
        });
    }
    let _ = all_polled.wait_for(|&polled| polled == 100).await;
    let open = cluster.worker(0).snapshot().open_calls;
    assert_eq!(open as usize, OPEN + WAITING, "the others are not made");
    GATES[0].add_permits(OPEN + WAITING + 100);
    let all = async {
        for (n, call) in started.into_iter().enumerate() {
            assert_eq!(call.await?, n);
        }
        while let Some(call) = awaited.join_next().await {
            assert!(call.expect("no panic")? < 100);
        }
        Ok::<(), Error>(())
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("in time")?;
    cluster.shutdown().await
}

/// D5, D4: calls that are cancelled where they wait make room for those that wait to be made.
#[tokio::test]
async fn a_place_that_is_given_up_goes_to_who_waits_for_one() -> Result<()> {
    let cluster = Cluster::start_with(2, narrow).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let mut started = fill(&peer, 1);
    let waits = tokio::spawn(pass::on(&peer, 1, 1000).into_future());
    let gives_up = pass::on(&peer, 1, 0).into_future();
    drop(gives_up);
    started.truncate(OPEN + 1);
    GATES[1].add_permits(OPEN + 2);
    let all = async {
        for call in started {
            call.await?;
        }
        assert_eq!(waits.await.expect("no panic")?, 1000);
        Ok::<(), Error>(())
    };
    tokio::time::timeout(PATIENCE, all)
        .await
        .expect("in time")?;
    cluster.shutdown().await
}

/// D3, F1: who waits for a place does not wait longer than it may, nor for a worker that is gone.
#[tokio::test]
async fn time_limits_and_losses_end_the_wait_for_a_place() -> Result<()> {
    let cluster = Cluster::start_with(2, narrow).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let started = fill(&peer, 2);
    let limit = std::time::Duration::from_millis(50);
    let late = pass::on(&peer, 2, 0).timeout(limit).await;
    assert!(
        matches!(&late, Err(Error::Timeout { limit: given, .. }) if *given == limit),
        "{late:?}"
    );
    let mut waits = Box::pin(pass::on(&peer, 2, 0).into_future());
    let poll = std::future::poll_fn(|context| std::task::Poll::Ready(waits.as_mut().poll(context)));
    assert!(poll.await.is_pending());
    cluster.crash(1).await;
    let lost = tokio::time::timeout(PATIENCE, waits)
        .await
        .expect("in time");
    assert!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
    for call in started {
        assert!(call.await.is_err());
    }
    cluster.shutdown().await
}
