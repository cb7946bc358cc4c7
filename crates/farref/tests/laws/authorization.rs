//! P1 to P3: who may call what.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use farref::testing::Cluster;
use farref::{CallRequest, Error, Peer, RRef, Stream, Streaming, Worker, WorkerBuilder};
use serde::{Deserialize, Deserializer, Serialize};

use crate::cluster::finish;
use crate::streams::sources::Each;

/// What workers have been asked: who, of which life, calls what.
type Asked = Arc<Mutex<Vec<(String, farref::agent::NodeId, &'static str)>>>;

/// Workers that keep a record of what they are asked, and answer it.
async fn cluster(
    workers: u32,
    is_allowed: impl Fn(&CallRequest) -> bool + Clone + Send + Sync + 'static,
) -> Result<(Cluster, Asked)> {
    let asked = Asked::default();
    let keep = Arc::clone(&asked);
    let set_up = move |builder: WorkerBuilder| {
        let (is_allowed, keep) = (is_allowed.clone(), Arc::clone(&keep));
        builder.authorize(move |call| {
            let who = (call.caller().to_owned(), call.node(), call.function());
            keep.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(who);
            is_allowed(call)
        })
    };
    Ok((Cluster::start_with(workers, set_up).await?, asked))
}

/// What was asked since the last time, by name.
fn functions(asked: &Asked) -> Vec<&'static str> {
    let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
    asked.drain(..).map(|(_, _, function)| function).collect()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: farref::Result<T>, expected: &str) {
    match outcome {
        Err(Error::NotAuthorized { peer, function }) => {
            assert_eq!((&*peer, function.as_str()), ("worker1", expected));
        }
        other => panic!("expected a refusal of {expected}, got {other:?}"),
    }
}

#[farref::remote(name = "permitted::secret")]
async fn secret() -> u64 {
    7
}

#[farref::remote(name = "permitted::plain_secret")]
fn plain_secret() -> u64 {
    7
}

#[farref::remote(name = "permitted::secrets")]
async fn secrets() -> impl Stream<Item = u64> {
    Each(1..4_u64)
}

#[farref::remote(name = "permitted::greeting")]
async fn greeting() -> u64 {
    1
}

pub(crate) struct Safe(u64);

#[farref::remote(name = "permitted::Safe")]
impl Safe {
    pub(crate) async fn new(n: u64) -> Self {
        Self(n)
    }

    pub(crate) async fn look(&self) -> u64 {
        self.0
    }

    pub(crate) fn look_plainly(&self) -> u64 {
        self.0
    }

    pub(crate) async fn put(&mut self, n: u64) {
        self.0 = n;
    }

    pub(crate) async fn weigh(&self, _counted: Counted) {
        RUN.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn weigh_plainly(&self, _counted: Counted) {
        RUN.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn list(&self) -> String {
        "x".repeat(MOST_OF_IT)
    }
}

/// P1
#[tokio::test(flavor = "multi_thread")]
async fn each_way_to_call_a_function_is_asked_about_once_and_refused_by_an_error_that_names_it()
-> Result<()> {
    let allowed = ["permitted::greeting", "permitted::Safe::new"];
    let (cluster, asked) = cluster(2, move |call| allowed.contains(&call.function())).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;

    refused(secret::on(&peer).await, "permitted::secret");
    refused(secret::on(&peer).start().await, "permitted::secret");
    let there = peer.clone();
    let waited = tokio::task::spawn_blocking(move || secret::on(&there).wait());
    refused(waited.await?, "permitted::secret");
    assert_eq!(functions(&asked), ["permitted::secret"; 3]);

    refused(plain_secret::on(&peer).await, "permitted::plain_secret");
    let streamed = secrets::on(&peer).await;
    refused(streamed.map(drop), "permitted::secrets");
    let found = peer.lookup::<u64>("name").now().await;
    refused(found.map(drop), "lookup of `name`");
    refused(peer.snapshot().await.map(drop), "farref::snapshot");
    assert_eq!(
        functions(&asked),
        [
            "permitted::plain_secret",
            "permitted::secrets",
            "farref::lookup",
            "farref::snapshot"
        ]
    );

    // What is left there is refused there, and each use of it says so.
    let left: RRef<u64> = secret::on(&peer).remote();
    for _ in 0..2 {
        refused(left.to_here().await, "permitted::secret");
    }
    assert_eq!(functions(&asked), ["permitted::secret"]);

    let safe: RRef<Safe> = Safe::new_on(&peer, 5).remote();
    refused(safe.put(6).await, "permitted::Safe::put");
    refused(safe.look().await, "permitted::Safe::look");
    refused(safe.look_plainly().await, "permitted::Safe::look_plainly");
    let left_too = safe.look().remote();
    refused(left_too.to_here().await, "permitted::Safe::look");
    let names = functions(&asked);
    assert_eq!(names.len(), 5, "{names:?}");

    assert_eq!(greeting::on(&peer).await?, 1, "the worker is well");
    drop((left, safe, left_too));
    finish(cluster).await
}

static READ: AtomicU64 = AtomicU64::new(0);
static RUN: AtomicU64 = AtomicU64::new(0);

/// Counts how often one is read.
#[derive(Serialize)]
pub(crate) struct Counted;

impl<'de> Deserialize<'de> for Counted {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        READ.fetch_add(1, Ordering::Relaxed);
        <()>::deserialize(deserializer).map(|()| Self)
    }
}

#[farref::remote(name = "permitted::count")]
async fn count(_counted: Counted, _safe: Option<RRef<Safe>>) {
    RUN.fetch_add(1, Ordering::Relaxed);
}

#[farref::remote(name = "permitted::count_plainly")]
fn count_plainly(_counted: Counted, _safe: Option<RRef<Safe>>) {
    RUN.fetch_add(1, Ordering::Relaxed);
}

/// P1: and the references in its arguments are let go (R5), which `finish` looks at.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_a_refused_call_is_read_or_run() -> Result<()> {
    let open = Arc::new(AtomicBool::new(false));
    let is_open = Arc::clone(&open);
    let is_allowed = move |call: &CallRequest| {
        is_open.load(Ordering::Relaxed) || call.function() == "permitted::Safe::new"
    };
    let (cluster, _) = cluster(2, is_allowed).await?;
    let me = cluster.worker(0);
    let peer = me.peer("worker1")?;
    let safe = me.rref_to_object(Safe(1))?;
    let there: RRef<Safe> = Safe::new_on(&peer, 1).remote();
    // The shape of the arguments is looked at in the beginning, by reading some.
    let before = READ.load(Ordering::Relaxed);
    let counts = || {
        (
            READ.load(Ordering::Relaxed) - before,
            RUN.load(Ordering::Relaxed),
        )
    };
    for _ in 0..3 {
        let called = count::on(&peer, Counted, Some(safe.clone())).await;
        refused(called, "permitted::count");
        let called = count_plainly::on(&peer, Counted, Some(safe.clone())).await;
        refused(called, "permitted::count_plainly");
        let left = count::on(&peer, Counted, Some(safe.clone())).remote();
        refused(left.to_here().await, "permitted::count");
        refused(there.weigh(Counted).await, "permitted::Safe::weigh");
        let called = there.weigh_plainly(Counted).await;
        refused(called, "permitted::Safe::weigh_plainly");
    }
    assert_eq!(counts(), (0, 0));
    // What it goes by may change.
    open.store(true, Ordering::Relaxed);
    count::on(&peer, Counted, Some(safe.clone())).await?;
    count_plainly::on(&peer, Counted, Some(safe.clone())).await?;
    there.weigh(Counted).await?;
    there.weigh_plainly(Counted).await?;
    assert_eq!(counts(), (4, 4));
    drop((safe, there));
    finish(cluster).await
}

/// Of what a worker keeps in answers for another. Two that are so large are not made at once.
const LIMIT: u64 = 1 << 20;
const MOST_OF_IT: usize = 700 << 10;

#[farref::remote(name = "permitted::list_all")]
fn list_all() -> String {
    "x".repeat(MOST_OF_IT)
}

/// P1: also about those that wait, for their value, for a thread, or for room.
#[tokio::test(flavor = "multi_thread")]
async fn each_call_that_is_let_through_is_asked_about_once() -> Result<()> {
    let asked = Arc::new(AtomicU64::new(0));
    let keep = Arc::clone(&asked);
    let set_up = move |builder: WorkerBuilder| {
        let keep = Arc::clone(&keep);
        let counts = move |_: &CallRequest| keep.fetch_add(1, Ordering::Relaxed) < u64::MAX;
        builder.max_answer_bytes_per_peer(LIMIT).authorize(counts)
    };
    let cluster = Cluster::start_with(2, set_up).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let times = |expected: u64| assert_eq!(asked.swap(0, Ordering::Relaxed), expected);

    assert_eq!(secret::on(&peer).await?, 7);
    assert_eq!(plain_secret::on(&peer).await?, 7);
    times(2);
    let safe: RRef<Safe> = Safe::new_on(&peer, 5).remote();
    safe.put(6).await?;
    assert_eq!(safe.look().await?, 6);
    times(3);
    assert_eq!(safe.look_plainly().await?, 6);
    times(1);

    // From then on it is known how large they are.
    assert_eq!(list_all::on(&peer).await?.len(), MOST_OF_IT);
    assert_eq!(safe.list().await?.len(), MOST_OF_IT);
    times(2);
    let listed: Vec<_> = (0..10).map(|_| list_all::on(&peer).start()).collect();
    let in_safe: Vec<_> = (0..10).map(|_| safe.list().start()).collect();
    for list in listed.into_iter().chain(in_safe) {
        assert_eq!(list.await?.len(), MOST_OF_IT);
    }
    times(20);
    drop(safe);
    finish(cluster).await
}

#[farref::remote(name = "permitted::give")]
async fn give() -> farref::Result<(RRef<u64>, Streaming<u64>)> {
    let me = Worker::current().ok_or(farref::Misuse::NoWorker)?;
    // Calls to oneself.
    let seven = secret::on(&me.me()).await?;
    let kept = secret::on(&me.me()).remote();
    assert_eq!(kept.to_here().await?, seven);
    Ok((me.rref(seven)?, Streaming::new(Each(0..5000))))
}

/// P2
#[tokio::test(flavor = "multi_thread")]
async fn neither_a_workers_own_calls_are_asked_about_nor_what_is_behind_references_and_streams()
-> Result<()> {
    let (cluster, asked) = cluster(3, |call| call.function() == "permitted::give").await?;
    let [me, other] = [cluster.worker(0), cluster.worker(2)];
    let (there, mut stream) = give::on(&me.peer("worker1")?).await?;
    assert_eq!(there.to_here().await?, 7);
    let mut items = 0;
    while let Some(item) = stream.next().await {
        assert_eq!(item?, items);
        items += 1;
    }
    assert_eq!(items, 5000, "several batches");
    assert_eq!(functions(&asked), ["permitted::give"]);
    refused(
        secret::on(&other.peer("worker1")?).await,
        "permitted::secret",
    );
    drop((there, stream));
    finish(cluster).await
}

#[farref::remote(name = "permitted::relay")]
async fn relay(to: Peer) -> farref::Result<u64> {
    secret::on(&to).await
}

/// P3
#[tokio::test(flavor = "multi_thread")]
async fn it_is_said_who_calls_and_that_is_the_last_of_a_chain_of_callers() -> Result<()> {
    let is_allowed =
        |call: &CallRequest| call.caller() != "worker0" || call.function() == "permitted::relay";
    let (cluster, asked) = cluster(3, is_allowed).await?;
    let [first, second] = [cluster.worker(0), cluster.worker(2)];
    let to = first.peer("worker1")?;
    refused(secret::on(&to).await, "permitted::secret");
    assert_eq!(relay::on(&first.peer("worker2")?, to).await?, 7);
    let asked = std::mem::take(&mut *asked.lock().unwrap_or_else(PoisonError::into_inner));
    let expected = [
        (first, "permitted::secret"),
        (first, "permitted::relay"),
        (second, "permitted::secret"),
    ];
    let expected =
        expected.map(|(caller, function)| (caller.name().to_owned(), caller.node(), function));
    assert_eq!(asked, expected);
    finish(cluster).await
}

/// P1
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_one_who_is_asked_refuses_the_call_and_ends_nothing_else() -> Result<()> {
    let (cluster, _) = cluster(2, |call| match call.function() {
        "permitted::greeting" => true,
        other => panic!("nobody has thought of {other}"),
    })
    .await?;
    let peer = cluster.worker(0).peer("worker1")?;
    for _ in 0..3 {
        refused(secret::on(&peer).await, "permitted::secret");
        refused(plain_secret::on(&peer).await, "permitted::plain_secret");
        assert_eq!(greeting::on(&peer).await?, 1);
    }
    finish(cluster).await
}

/// P1: a program may ask what it runs for.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_asked_is_asked_on_behalf_of_the_call() -> Result<()> {
    let (cluster, _) = cluster(2, |call| {
        let current = Worker::current().map(|worker| worker.name().to_owned());
        let caller = Worker::caller().map(|caller| caller.name().to_owned());
        current.as_deref() == Some("worker1") && caller.as_deref() == Some(call.caller())
    })
    .await?;
    let peer = cluster.worker(0).peer("worker1")?;
    assert_eq!(secret::on(&peer).await?, 7);
    assert_eq!(plain_secret::on(&peer).await?, 7);
    let safe = Safe::new_on(&peer, 5).remote();
    assert_eq!(safe.look_plainly().await?, 5);
    drop(safe);
    finish(cluster).await
}
