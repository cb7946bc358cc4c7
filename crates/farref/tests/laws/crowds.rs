//! D5, from the caller's side: more calls than there is room for.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use farref::testing::Cluster;
use farref::{Error, Peer, Result, WorkerBuilder};
use farref_testkit::TEST_TIMEOUT;
use tokio::sync::{Semaphore, oneshot, watch};
use tokio::task::JoinSet;

const OPEN: usize = 64;
const WAITING: usize = 10;

fn narrow(builder: WorkerBuilder) -> WorkerBuilder {
    builder
        .max_calls_per_peer(OPEN as u32)
        .max_waiting_calls_per_peer(WAITING)
}

/// Lets calls of one test end.
static GATES: [Semaphore; 4] = [const { Semaphore::const_new(0) }; 4];

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
            poll_fn(|context| {
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
    tokio::time::timeout(TEST_TIMEOUT, all)
        .await
        .expect("in time")?;
    cluster.shutdown().await
}

/// A call that has been polled once and waits for a place.
async fn waits_for_a_place(call: farref::Call<usize>) -> Pin<Box<farref::Call<usize>>> {
    let mut waits = Box::pin(call.into_future());
    let poll = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await;
    assert!(poll.is_pending(), "{poll:?}");
    waits
}

/// D5, D4: calls that are cancelled where they wait make room for those that wait to be made.
#[tokio::test]
async fn a_place_that_is_given_up_goes_to_who_waits_for_one() -> Result<()> {
    let cluster = Cluster::start_with(2, narrow).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let mut started = fill(&peer, 1);
    let waits = waits_for_a_place(pass::on(&peer, 1, 1000)).await;
    started.truncate(OPEN + 1);
    GATES[1].add_permits(OPEN + 2);
    let all = async {
        for call in started {
            call.await?;
        }
        assert_eq!(waits.await?, 1000);
        Ok::<(), Error>(())
    };
    tokio::time::timeout(TEST_TIMEOUT, all)
        .await
        .expect("in time")?;
    cluster.shutdown().await
}

/// D5, D4: the word that there is a place is not lost on calls that were dropped while they waited for
/// it, be it before or after it came.
#[tokio::test]
async fn who_gives_up_waiting_for_a_place_does_not_use_one_up() -> Result<()> {
    let narrowest = |builder| narrow(builder).max_waiting_calls_per_peer(1);
    let cluster = Cluster::start_with(2, narrowest).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let mut started: Vec<_> = (0..=OPEN).map(|n| pass::on(&peer, 3, n).start()).collect();
    let gives_up = waits_for_a_place(pass::on(&peer, 3, 0)).await;
    let is_told = waits_for_a_place(pass::on(&peer, 3, 0)).await;
    let waits = waits_for_a_place(pass::on(&peer, 3, 1000)).await;
    drop(gives_up);
    // One place, of which the second is told, for it is not polled again.
    drop(started.pop());
    drop(is_told);
    // No call is answered before this one is made, so no other word comes.
    let (made, is_made) = oneshot::channel();
    let mut made = Some(made);
    let worker = cluster.worker(0);
    let mut waits = waits;
    let waits = poll_fn(move |context| {
        let poll = waits.as_mut().poll(context);
        if worker.snapshot().open_calls as usize == OPEN + 1
            && let Some(made) = made.take()
        {
            made.send(()).unwrap_or_default();
        }
        poll
    });
    let all = async {
        let open = async {
            is_made.await.expect("the call is made");
            GATES[3].add_permits(OPEN + 1);
        };
        let (outcome, ()) = tokio::join!(waits, open);
        assert_eq!(outcome?, 1000);
        for call in started {
            call.await?;
        }
        Ok::<(), Error>(())
    };
    tokio::time::timeout(TEST_TIMEOUT, all)
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
    let waits = waits_for_a_place(pass::on(&peer, 2, 0)).await;
    cluster.crash(1).await;
    let lost = tokio::time::timeout(TEST_TIMEOUT, waits)
        .await
        .expect("in time");
    assert!(matches!(lost, Err(Error::PeerLost { .. })), "{lost:?}");
    for call in started {
        assert!(call.await.is_err());
    }
    cluster.shutdown().await
}
