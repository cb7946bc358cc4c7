//! Contexts, from outside: which calls belong to them, and when a release is over.

use std::sync::Mutex;
use std::task::Poll;

use farref::context::{ContextId, ContextScope, Message, NodeId, Record, outgoing};
use farref::testing::Cluster;
use farref::{Call, Error};
use farref_testkit::TEST_TIMEOUT;
use serde::{Deserialize, Serialize, Serializer};
use tokio::sync::Notify;

static BEGUN: Notify = Notify::const_new();
static GO_ON: Notify = Notify::const_new();

#[farref::remote]
async fn work_until_told() {
    BEGUN.notify_one();
    GO_ON.notified().await;
}

/// CT-1: whoever releases a context waits until it is released, however many do.
#[tokio::test]
async fn a_release_beside_another_waits_for_the_same_end() -> farref::Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let scope = ContextScope::open(me)?;
    let call = scope.enter(|| work_until_told::on(&peer).start());
    BEGUN.notified().await;

    let mut first = Box::pin(scope.release());
    assert!(poll_once(&mut first).is_pending());
    // Said, and not waited for.
    drop(scope.release());
    let mut others: Vec<_> = (0..3).map(|_| Box::pin(scope.release())).collect();
    for other in &mut others {
        assert!(poll_once(other).is_pending(), "it is still in use");
    }
    assert!(poll_once(&mut first).is_pending(), "it is still in use");
    GO_ON.notify_one();
    call.await?;
    let all = async {
        first.await?;
        for other in others {
            other.await?;
        }
        // And again, when all is over.
        scope.release().await
    };
    tokio::time::timeout(TEST_TIMEOUT, all)
        .await
        .expect("in time")?;
    assert_eq!(me.snapshot().contexts, 0);
    assert_eq!(peer.snapshot().await?.contexts, 0);
    cluster.shutdown().await
}

#[farref::remote]
async fn take_part() {}

/// CT-2: the same when its calls are done and only others have not said yet that they forgot it.
#[tokio::test]
async fn a_release_beside_another_waits_for_all_who_took_part() -> farref::Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let scope = ContextScope::open(me)?;
    scope.run(async { take_part::on(&peer).await }).await?;
    // That the call is done is said in a message of its own; the answer to a later call comes after it.
    take_part::on(&peer).await?;
    cluster.partition(0, 1);
    let mut first = Box::pin(scope.release());
    assert!(poll_once(&mut first).is_pending());
    let mut second = Box::pin(scope.release());
    assert!(
        poll_once(&mut second).is_pending(),
        "the other has not heard of it"
    );
    assert!(
        poll_once(&mut first).is_pending(),
        "nor has anything ended it"
    );
    cluster.heal(0, 1);
    let both = async { tokio::try_join!(first, second).map(drop) };
    tokio::time::timeout(TEST_TIMEOUT, both)
        .await
        .expect("in time")?;
    assert_eq!(peer.snapshot().await?.contexts, 0);
    cluster.shutdown().await
}

#[farref::remote]
async fn which() -> Option<ContextId> {
    ContextScope::current().map(|scope| scope.id())
}

/// A3: a context of another worker of this process is none for this worker's calls.
#[tokio::test]
async fn a_call_that_is_built_late_belongs_to_a_context_of_its_own_worker() -> farref::Result<()> {
    let cluster = Cluster::start(2).await?;
    let (me, other) = (cluster.worker(0), cluster.worker(1));
    let peer = me.peer("worker1")?;
    let [mine, theirs] = [ContextScope::open(me)?, ContextScope::open(other)?];
    let plain = mine.enter(|| which::on(&peer));
    let there = peer.clone();
    let late = mine.enter(|| farref::functions::deferred("late", move || which::on(&there)));
    for call in [plain, late] {
        let seen = theirs.run(call).await?;
        assert_eq!(seen, Some(mine.id()));
    }
    mine.release().await?;
    theirs.release().await?;
    cluster.shutdown().await
}

/// A call belongs to the context that it is made in, in whatever way; built in one and made where there is none, to
/// that one.
#[tokio::test]
async fn a_call_belongs_to_the_context_that_it_is_made_in() -> farref::Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let [one, other] = [ContextScope::open(me)?, ContextScope::open(me)?];
    let places: [(Option<&ContextScope>, Option<&ContextScope>); 5] = [
        (None, None),
        (None, Some(&one)),
        (Some(&one), None),
        (Some(&one), Some(&other)),
        (Some(&one), Some(&one)),
    ];
    for (built_in, made_in) in places {
        let wanted = made_in.or(built_in).map(ContextScope::id);
        let build = || match built_in {
            Some(scope) => scope.enter(|| which::on(&peer)),
            None => which::on(&peer),
        };
        let call = build();
        let awaited = match made_in {
            Some(scope) => scope.run(call).await?,
            None => call.await?,
        };
        assert_eq!(awaited, wanted, "awaited");
        let started = inside(made_in, build(), Call::start).await?;
        assert_eq!(started, wanted, "started");
        let there = inside(made_in, build(), Call::remote);
        assert_eq!(there.to_here().await?, wanted, "left there");
        let (call, scope) = (build(), made_in.cloned());
        let waited = tokio::task::spawn_blocking(move || inside(scope.as_ref(), call, Call::wait));
        assert_eq!(waited.await.expect("no panic")?, wanted, "waited for");
        let task = match made_in {
            Some(scope) => tokio::spawn(scope.run(build())),
            None => continue,
        };
        assert_eq!(task.await.expect("no panic")?, wanted, "in a task");
    }
    one.release().await?;
    other.release().await?;
    cluster.shutdown().await
}

fn inside<T, R>(scope: Option<&ContextScope>, call: Call<T>, make: fn(Call<T>) -> R) -> R {
    match scope {
        Some(scope) => scope.enter(|| make(call)),
        None => make(call),
    }
}

/// CT-3: also one that was built before.
#[tokio::test]
async fn no_call_is_made_in_a_context_that_was_released() -> farref::Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let scope = ContextScope::open(me)?;
    let there = which::on(&peer).remote();
    scope.release().await?;
    let refused = |outcome: farref::Result<_>| matches!(outcome, Err(Error::ContextReleased));
    assert!(refused(scope.run(which::on(&peer)).await));
    assert!(refused(scope.run(there.to_here()).await), "a fetch");
    assert!(refused(scope.enter(|| which::on(&peer)).await));
    // And where it is made counts.
    let live = ContextScope::open(me)?;
    let call = scope.enter(|| which::on(&peer));
    assert_eq!(live.run(call).await?, Some(live.id()));
    live.release().await?;
    drop(there);
    cluster.shutdown().await
}

/// What was told of a message: the context, the receiver, and what was noted.
type Told = (ContextId, NodeId, Vec<u32>);

static TOLD: Mutex<Vec<Told>> = Mutex::new(Vec::new());

#[derive(Default)]
struct Labels(Vec<u32>);

impl Record for Labels {
    fn made(self: Box<Self>, message: &Message) {
        let told = (message.scope.id(), message.peer, self.0);
        TOLD.lock().unwrap().push(told);
    }
}

#[derive(Clone, Deserialize)]
struct Labelled(u32);

impl Serialize for Labelled {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let noted = outgoing(|labels: &mut Labels| {
            labels.0.push(self.0);
            labels.0.len()
        });
        assert!(noted.is_some_and(|(_, count)| count > 0));
        serializer.serialize_newtype_struct("Labelled", &self.0)
    }
}

#[farref::remote]
async fn take_labelled(one: Labelled, other: Labelled) -> Labelled {
    Labelled(one.0 + other.0)
}

/// What values note of their message is told to the context that it is made in, once, and to nobody else.
#[tokio::test]
async fn what_is_noted_of_a_message_is_told_where_it_is_made() -> farref::Result<()> {
    let cluster = Cluster::start(2).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let [one, other] = [ContextScope::open(me)?, ContextScope::open(me)?];
    let call = || take_labelled::on(&peer, Labelled(1), Labelled(2));
    call().await?;
    drop(one.enter(call));
    assert!(TOLD.lock().unwrap().is_empty());

    let call = one.enter(call);
    other.run(call).await?;
    let told = std::mem::take(&mut *TOLD.lock().unwrap());
    let [(context, to, labels), (back_in, back_to, sum)] = &told[..] else {
        panic!("{told:?}");
    };
    assert_eq!((context, labels), (&other.id(), &vec![1, 2]));
    assert_eq!((back_in, sum), (&other.id(), &vec![3]));
    assert_eq!((*to, *back_to), (cluster.worker(1).node(), me.node()));
    one.release().await?;
    other.release().await?;
    cluster.shutdown().await
}

/// Polls once.
fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    std::pin::Pin::new(future).poll(&mut context)
}
