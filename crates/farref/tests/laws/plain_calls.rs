//! Calls that carry nothing but their arguments: they take shorter ways through the runtime than others, in tasks that
//! were used before, and nothing of that is to be seen.

use std::future::pending;
use std::time::Duration;

use anyhow::Result;
use farref::context::ContextScope;
use farref::{Call, Peer};
use tokio::sync::{Barrier, Notify};
use tokio::time::timeout;

use crate::PATIENCE;
use crate::cluster::{eventually, pair};

const AT_ONCE: usize = 8;

static MEETING: tokio::sync::OnceCell<Barrier> = tokio::sync::OnceCell::const_new();

/// Ends when there are as many as it takes.
#[farref::remote]
async fn meet(number: usize) -> usize {
    let meeting = MEETING.get_or_init(async || Barrier::new(AT_ONCE)).await;
    meeting.wait().await;
    number
}

/// TP-1: no call waits for the end of another, whichever task it is given.
#[tokio::test]
async fn calls_that_are_made_at_once_run_at_once_also_in_tasks_that_had_others_before() -> Result<()>
{
    let (cluster, peer) = pair().await?;
    for _ in 0..5 {
        let calls: Vec<_> = (0..AT_ONCE).map(|n| meet::on(&peer, n).start()).collect();
        for (number, call) in calls.into_iter().enumerate() {
            let met = timeout(PATIENCE, call).await.expect("all run at once");
            assert_eq!(met?, number);
        }
    }
    Ok(cluster.shutdown().await?)
}

#[farref::remote]
async fn halve(number: u64) -> std::result::Result<u64, String> {
    match number {
        13 => panic!("unlucky"),
        7 => pending().await,
        odd if odd % 2 == 1 => Err(format!("{odd} is odd")),
        even => Ok(even / 2),
    }
}

#[farref::remote]
fn halve_plainly(number: u64) -> std::result::Result<u64, String> {
    match number % 2 {
        0 => Ok(number / 2),
        _ => Err(format!("{number} is odd")),
    }
}

/// What becomes of a call, in words.
async fn outcome(call: Call<u64>) -> String {
    let call = call.timeout(Duration::from_millis(100));
    let ended = timeout(PATIENCE, call).await.expect("it ends");
    match ended {
        Ok(value) => value.to_string(),
        Err(error) => format!("{error}: {error:?}"),
    }
}

fn calls(peer: &Peer) -> Vec<Call<u64>> {
    let async_ones = [4, 3, 13, 7, 8, 5].map(|number| halve::on(peer, number));
    let plain_ones = [4, 3].map(|number| halve_plainly::on(peer, number));
    async_ones.into_iter().chain(plain_ones).collect()
}

/// D1, D3: a call in a context goes the long way. Both end alike, and leave nothing behind.
#[tokio::test]
async fn calls_that_carry_nothing_end_as_those_in_a_context_do() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let me = cluster.worker(0);
    for to in [peer.clone(), me.me()] {
        let mut plain = Vec::new();
        for call in calls(&to) {
            plain.push(outcome(call).await);
        }
        let scope = ContextScope::open(me)?;
        let in_context = scope.run(async {
            let mut ended = Vec::new();
            for call in calls(&to) {
                ended.push(outcome(call).await);
            }
            ended
        });
        assert_eq!(plain, in_context.await);
        assert_eq!(plain.first().map(String::as_str), Some("2"));
        scope.release().await?;
    }
    let is_over = || me.snapshot().running.is_empty();
    eventually("nothing runs", is_over).await?;
    Ok(cluster.shutdown().await?)
}

static BEGUN: Notify = Notify::const_new();
static DROPPED: Notify = Notify::const_new();

#[farref::remote]
async fn wait_for_ever() {
    struct Tell;
    impl Drop for Tell {
        fn drop(&mut self) {
            DROPPED.notify_one();
        }
    }
    let _tell = Tell;
    BEGUN.notify_one();
    pending().await
}

/// D4: a call that is cancelled is dropped, and the next one of its task is not.
#[tokio::test]
async fn cancelling_one_call_does_not_cancel_the_next_in_its_task() -> Result<()> {
    let (cluster, peer) = pair().await?;
    for _ in 0..3 {
        let call = wait_for_ever::on(&peer).start();
        timeout(PATIENCE, BEGUN.notified()).await.expect("begins");
        drop(call);
        timeout(PATIENCE, DROPPED.notified())
            .await
            .expect("is dropped");
    }
    Ok(cluster.shutdown().await?)
}
