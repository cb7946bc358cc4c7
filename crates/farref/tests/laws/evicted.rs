//! What a program is told whose worker was declared dead by the others.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use farref::agent::NodeId;
use farref::context::ContextScope;
use farref::{Error, WorkerBuilder};
use farref_testkit::TEST_TIMEOUT;

use crate::channels;

#[farref::remote]
async fn number() -> u64 {
    7
}

/// The other member, which never says anything.
const PEER: NodeId = NodeId::new(1, 1);

/// F2: whoever waits for something that only the group could give is told that this worker is out of
/// it: the confirmation of a reference, the release of a context, the answer to a call.
#[tokio::test]
async fn f2_on_an_evicted_worker_every_wait_ends_with_an_error_that_says_so() -> anyhow::Result<()>
{
    let (worker, inbound) = channels::alone(|builder| builder).await?;
    let there = worker.peer("w1")?;

    let reference = number::on(&there).remote();
    let scope = ContextScope::open(&worker)?;
    let call = scope.run(async { number::on(&there).await });
    let waits = async {
        tokio::join!(call, reference.confirmed(), async {
            // Only now: the call is made in the context and holds its release up.
            scope.release().await
        })
    };
    let evicted = async {
        tokio::task::yield_now().await;
        inbound.refused(PEER);
    };
    let (outcomes, ()) =
        tokio::time::timeout(TEST_TIMEOUT, async { tokio::join!(waits, evicted) }).await?;
    let (answer, confirmed, released) = outcomes;
    for outcome in [answer.map(drop), confirmed, released] {
        assert!(matches!(outcome, Err(Error::Evicted { .. })), "{outcome:?}");
    }
    // And whoever comes later need not wait at all.
    let late = reference.confirmed().await;
    assert!(matches!(late, Err(Error::Evicted { .. })), "{late:?}");
    assert!(matches!(
        worker.shutdown().await,
        Err(Error::Evicted { .. })
    ));
    Ok(())
}

/// F2, D5: so is who waits for a place among the calls that wait for a peer.
#[tokio::test]
async fn f2_on_an_evicted_worker_the_wait_for_a_place_ends_too() -> anyhow::Result<()> {
    let narrow = |builder: WorkerBuilder| builder.max_waiting_calls_per_peer(1);
    let (worker, inbound) = channels::alone(narrow).await?;
    let there = worker.peer("w1")?;

    let mut made = Vec::new();
    loop {
        let mut call = number::on(&there).start();
        match poll_fn(|context| Poll::Ready(Pin::new(&mut call).poll(context))).await {
            Poll::Pending => made.push(call),
            Poll::Ready(refused) => {
                assert!(matches!(refused, Err(Error::TooManyCalls { .. })));
                break;
            }
        }
    }
    let mut waits = Box::pin(number::on(&there).into_future());
    let poll = poll_fn(|context| Poll::Ready(waits.as_mut().poll(context))).await;
    assert!(poll.is_pending());
    inbound.refused(PEER);
    for call in made {
        let outcome = call.await;
        assert!(matches!(outcome, Err(Error::Evicted { .. })), "{outcome:?}");
    }
    let outcome = tokio::time::timeout(TEST_TIMEOUT, waits).await?;
    assert!(matches!(outcome, Err(Error::Evicted { .. })), "{outcome:?}");
    Ok(())
}
