//! Calls that carry nothing but their arguments: they take shorter ways through the runtime than others, in tasks that
//! were used before, and nothing of that is to be seen.

use std::future::{pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use anyhow::Result;
use farref::context::{ContextScope, Message, Record};
use farref::{Call, Error, Misuse, Peer};
use farref_testkit::{TEST_TIMEOUT, eventually};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tokio::sync::{Barrier, Notify};
use tokio::time::timeout;

use crate::cluster::pair;

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
            let met = timeout(TEST_TIMEOUT, call).await.expect("all run at once");
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

/// TP-1, TP-2: on several threads a call may find a task idle that has not come to rest yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_that_follow_each_other_on_many_threads_are_all_carried_out() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let mut callers = tokio::task::JoinSet::new();
    for caller in 0..8_u64 {
        let peer = peer.clone();
        callers.spawn(async move {
            for number in 0..200 {
                let half = 100 * (caller + 1) + number;
                let halved = halve::on(&peer, 2 * half).await;
                assert_eq!(halved.expect("an even number"), half);
            }
        });
    }
    timeout(TEST_TIMEOUT, callers.join_all())
        .await
        .expect("all end");
    Ok(cluster.shutdown().await?)
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
    let ended = timeout(TEST_TIMEOUT, call).await.expect("it ends");
    match ended {
        Ok(value) => value.to_string(),
        Err(error) => format!("{error}: {error:?}"),
    }
}

fn calls(peer: &Peer) -> Vec<Call<u64>> {
    // One never ends. All others have the time that a busy machine takes.
    let limit = |number| match number {
        7 => Duration::from_millis(100),
        _ => TEST_TIMEOUT,
    };
    let async_ones =
        [4, 3, 13, 7, 8, 5].map(|number| halve::on(peer, number).timeout(limit(number)));
    let plain_ones = [4, 3].map(|number| halve_plainly::on(peer, number));
    let all = async_ones.into_iter().chain(plain_ones);
    all.map(Call::untyped).collect()
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
static GATE: Notify = Notify::const_new();
static CANCELLED: AtomicU64 = AtomicU64::new(0);

/// Ends when the gate opens, and says which task it ran in.
#[farref::remote]
async fn wait_at_gate() -> String {
    struct Tell;
    impl Drop for Tell {
        fn drop(&mut self) {
            CANCELLED.fetch_add(1, Ordering::SeqCst);
        }
    }
    let tell = Tell;
    *LAST_TASK.lock().unwrap() = tokio::task::id().to_string();
    BEGUN.notify_one();
    GATE.notified().await;
    std::mem::forget(tell);
    tokio::task::id().to_string()
}

static LAST_TASK: Mutex<String> = Mutex::new(String::new());

/// D4: a call that is cancelled is dropped, and the next one of its task is not.
#[tokio::test]
async fn cancelling_one_call_does_not_cancel_the_next_in_its_task() -> Result<()> {
    let (cluster, peer) = pair().await?;
    for cancelled in 1..=3 {
        let call = wait_at_gate::on(&peer).start();
        timeout(TEST_TIMEOUT, BEGUN.notified())
            .await
            .expect("begins");
        let task = LAST_TASK.lock().unwrap().clone();
        drop(call);
        let count = || CANCELLED.load(Ordering::SeqCst);
        eventually("it is dropped", || count() == cancelled).await?;

        let call = wait_at_gate::on(&peer).start();
        timeout(TEST_TIMEOUT, BEGUN.notified())
            .await
            .expect("begins");
        // Whatever of the cancelled call is still on its way comes before these.
        for number in [2, 4, 6, 8] {
            assert_eq!(halve::on(&peer, number).await?, number / 2);
        }
        assert_eq!(count(), cancelled, "the second one is not");
        GATE.notify_one();
        let ended = timeout(TEST_TIMEOUT, call).await.expect("it ends")?;
        assert_eq!(ended, task, "both had one task");
    }
    Ok(cluster.shutdown().await?)
}

/// TP-3: a handle that the program keeps does not keep the worker's tasks.
#[tokio::test]
async fn no_task_outlives_the_worker_though_a_peer_is_kept() -> Result<()> {
    let runtime = tokio::runtime::Handle::current();
    let tasks = || runtime.metrics().num_alive_tasks();
    let before = tasks();
    let (cluster, peer) = pair().await?;
    let [one, other] = [0, 1].map(|rank| cluster.worker(rank).me());
    for to in [&peer, &one, &other] {
        assert_eq!(halve::on(to, 4).await?, 2);
    }
    cluster.shutdown().await?;
    eventually("all tasks have ended", || tasks() <= before).await?;
    drop((peer, one, other));
    Ok(())
}

/// Cannot be read, once it is said so. (What its shape is has to be found out before.)
#[derive(Serialize)]
struct Unreadable;

static UNREADABLE: AtomicBool = AtomicBool::new(false);

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> std::result::Result<Self, D::Error> {
        assert!(!UNREADABLE.load(Ordering::SeqCst), "not to be read");
        <()>::deserialize(reader).map(|()| Self)
    }
}

#[farref::remote]
async fn make_unreadable() -> Unreadable {
    Unreadable
}

/// Polls until it is ready, or panics.
async fn caught<F: Future + Unpin>(future: &mut F) -> std::thread::Result<F::Output> {
    let polled = poll_fn(|context| {
        let poll = || Pin::new(&mut *future).poll(context);
        match catch_unwind(AssertUnwindSafe(poll)) {
            Ok(poll) => poll.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    });
    timeout(TEST_TIMEOUT, polled).await.expect("it ends")
}

/// Whoever polls on after a panic learns that there is nothing more to come.
#[tokio::test]
async fn a_call_whose_result_panicked_when_it_was_read_is_over() -> Result<()> {
    let (cluster, peer) = pair().await?;
    UNREADABLE.store(true, Ordering::SeqCst);
    let mut call = make_unreadable::on(&peer).start();
    assert!(caught(&mut call).await.is_err(), "it panics");
    let again = caught(&mut call).await.expect("once only");
    assert!(
        matches!(again, Err(Error::Misuse(Misuse::AwaitedTwice))),
        "{:?}",
        again.err()
    );
    drop(call);
    Ok(cluster.shutdown().await?)
}

/// Panics when it is told that the message is made.
#[derive(Default)]
struct PanicsWhenMade;

impl Record for PanicsWhenMade {
    fn made(self: Box<Self>, _: &Message) {
        panic!("not to be made");
    }
}

#[derive(Deserialize)]
struct Noted;

impl Serialize for Noted {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        farref::context::outgoing(|_: &mut PanicsWhenMade| ());
        serializer.serialize_unit_struct("Noted")
    }
}

static RAN: AtomicU64 = AtomicU64::new(0);

#[farref::remote]
async fn take_noted(_noted: Noted) {
    RAN.fetch_add(1, Ordering::SeqCst);
}

/// D1: what was to go with it is gone, so it is not made at all.
#[tokio::test]
async fn a_call_that_panicked_when_it_was_made_is_not_made_when_it_is_polled_again() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let scope = ContextScope::open(cluster.worker(0))?;
    let tried = scope.run(async {
        let mut call = take_noted::on(&peer, Noted);
        assert!(caught(&mut call).await.is_err(), "it panics");
        caught(&mut call).await.expect("once only")
    });
    let again = tried.await;
    assert!(
        matches!(again, Err(Error::Misuse(Misuse::AwaitedTwice))),
        "{again:?}"
    );
    assert_eq!(RAN.load(Ordering::SeqCst), 0);
    scope.release().await?;
    Ok(cluster.shutdown().await?)
}
