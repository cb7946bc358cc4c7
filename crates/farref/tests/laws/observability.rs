//! What can be seen of a running group: spans, metrics, snapshots, leak reports.
//!
//! All workers of a test run on its own thread, so that a subscriber and a recorder that hold for one
//! thread see all of them and nothing of other tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use farref::testing::Cluster;
use farref::{Blob, Error, PeerSnapshot, RRef, Snapshot, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually};
use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};

#[farref::remote]
async fn fine(n: u64) -> u64 {
    n
}

#[farref::remote]
async fn fail() -> Result<(), String> {
    Err("failed".to_owned())
}

#[farref::remote]
async fn forbidden() {}

#[farref::remote]
async fn panic() {
    panic!("panicked");
}

#[farref::remote]
async fn never() {
    std::future::pending().await
}

/// Where [`block`] waits: one gate for each test that calls it.
static GATES: [Gate; 2] = [const { Gate::new() }; 2];

struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    const fn new() -> Self {
        Self {
            is_open: Mutex::new(false),
            opened: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self) {
        *self.lock() = true;
        self.opened.notify_all();
    }

    fn wait(&self) {
        let closed = self.lock();
        let opened = self
            .opened
            .wait_timeout_while(closed, TEST_TIMEOUT, |open| !*open);
        drop(opened);
    }
}

#[farref::remote]
fn block(gate: usize) {
    GATES[gate].wait();
}

#[farref::remote]
async fn size(blob: Blob) -> usize {
    blob.len()
}

struct Thing(u64);

#[farref::remote]
impl Thing {
    pub(crate) async fn new(n: u64) -> Self {
        Self(n)
    }

    pub(crate) async fn number(&self) -> u64 {
        self.0
    }
}

mod spans {
    //! `farref.serve`: one span for each call that is served, tied to those of its callers.

    use super::*;

    /// The fields of all `farref.serve` spans, in the order in which they began, and which of them an
    /// event was in.
    #[derive(Clone, Default)]
    struct Spans(Arc<Mutex<Vec<Span>>>);

    /// The subscriber's id of a span, and its fields.
    type Span = (u64, BTreeMap<String, String>);

    impl Spans {
        fn lock(&self) -> MutexGuard<'_, Vec<Span>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn of(&self, function: &str) -> Vec<BTreeMap<String, String>> {
            let spans = self.lock();
            let wanted = spans
                .iter()
                .filter(|(_, fields)| fields["function"] == function);
            wanted.map(|(_, fields)| fields.clone()).collect()
        }

        fn one(&self, function: &str) -> Result<BTreeMap<String, String>> {
            let mut spans = self.of(function);
            ensure!(spans.len() == 1, "{function}: {spans:?}");
            spans.pop().context("no span")
        }
    }

    struct Fields<'a>(&'a mut BTreeMap<String, String>);

    impl Visit for Fields<'_> {
        fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
            self.0.insert(field.name().to_owned(), format!("{value:?}"));
        }

        fn record_str(&mut self, field: &Field, value: &str) {
            self.0.insert(field.name().to_owned(), value.to_owned());
        }
    }

    impl<S> Layer<S> for Spans
    where
        S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
    {
        // With the default, `always`, spans would be made in the threads of other tests, too.
        fn register_callsite(&self, _: &'static tracing::Metadata<'static>) -> Interest {
            Interest::sometimes()
        }

        fn on_new_span(
            &self,
            attributes: &tracing::span::Attributes<'_>,
            id: &tracing::span::Id,
            _: Context<'_, S>,
        ) {
            if attributes.metadata().name() == "farref.serve" {
                let mut fields = BTreeMap::new();
                attributes.record(&mut Fields(&mut fields));
                self.lock().push((id.into_u64(), fields));
            }
        }

        fn on_record(
            &self,
            id: &tracing::span::Id,
            values: &tracing::span::Record<'_>,
            _: Context<'_, S>,
        ) {
            let mut spans = self.lock();
            // Ids are used again: the latest is meant.
            let span = spans
                .iter_mut()
                .rev()
                .find(|(known, _)| *known == id.into_u64());
            if let Some((_, fields)) = span {
                values.record(&mut Fields(fields));
            }
        }

        fn on_event(&self, event: &tracing::Event<'_>, context: Context<'_, S>) {
            let mut fields = BTreeMap::new();
            event.record(&mut Fields(&mut fields));
            if fields
                .get("message")
                .is_none_or(|message| message != "said inside")
            {
                return;
            }
            let scope = context.event_scope(event).into_iter().flatten();
            let mut spans = self.lock();
            for span in scope.filter(|span| span.name() == "farref.serve") {
                let id = span.id().into_u64();
                if let Some((_, fields)) = spans.iter_mut().rev().find(|(known, _)| *known == id) {
                    fields.insert("said".to_owned(), "inside".to_owned());
                }
            }
        }
    }

    #[farref::remote]
    async fn outer(next: String) -> farref::Result<u64> {
        tracing::info!("said inside");
        let me = Worker::current().ok_or(Error::Misuse(farref::Misuse::NoWorker))?;
        let next = me.peer(&next)?;
        let left_there = middle::on(&next, 1).remote();
        let sum = middle::on(&next, 2).await? + left_there.to_here().await?;
        let blocking = outer_blocking::on(&next).await?;
        Ok(sum + blocking)
    }

    #[farref::remote]
    async fn middle(n: u64) -> farref::Result<u64> {
        tokio::task::yield_now().await;
        let me = Worker::current().ok_or(Error::Misuse(farref::Misuse::NoWorker))?;
        innermost::on(&me.me(), n).await
    }

    #[farref::remote]
    async fn innermost(n: u64) -> u64 {
        n
    }

    #[farref::remote]
    fn outer_blocking() -> farref::Result<u64> {
        let me = Worker::current().ok_or(Error::Misuse(farref::Misuse::NoWorker))?;
        from_a_thread::on(&me.peer("worker0")?).wait()
    }

    #[farref::remote]
    async fn from_a_thread() -> u64 {
        4
    }

    #[tokio::test]
    async fn the_spans_of_nested_calls_form_one_tree_over_all_workers() -> Result<()> {
        let cluster = Cluster::start(3).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        // Once before anybody listens: whether a place in the code is listened to is found out when it is first come by, and
        // a subscriber that is new just then, in another test's thread, may be overlooked.
        assert_eq!(outer::on(&peer, "worker2".into()).await?, 7);

        let spans = Spans::default();
        let subscriber = tracing_subscriber::registry().with(spans.clone());
        let _subscribed = tracing::subscriber::set_default(subscriber);
        // Another test's thread may have come by such a place at the same time, and have looked for listeners just before.
        tracing::callsite::rebuild_interest_cache();
        assert_eq!(outer::on(&peer, "worker2".into()).await?, 7);

        let outer = spans.one("laws::observability::spans::outer")?;
        assert_eq!(
            (&*outer["worker"], &*outer["caller"]),
            ("worker1", "worker0")
        );
        assert_eq!(
            outer["parent"], outer["trace"],
            "the trace begins with this call"
        );
        assert_eq!(
            outer["said"], "inside",
            "what the function says is said in its span"
        );

        let middle = spans.of("laws::observability::spans::middle");
        assert_eq!(middle.len(), 2);
        let blocking = spans.one("laws::observability::spans::outer_blocking")?;
        for span in middle.iter().chain([&blocking]) {
            assert_eq!((&*span["worker"], &*span["caller"]), ("worker2", "worker1"));
            assert_eq!(span["trace"], outer["trace"]);
            assert_eq!(span["parent"], outer["span"]);
        }
        let innermost = spans.of("laws::observability::spans::innermost");
        let parents: BTreeSet<_> = innermost.iter().map(|span| &span["parent"]).collect();
        assert_eq!(parents, middle.iter().map(|span| &span["span"]).collect());
        let last = spans.one("laws::observability::spans::from_a_thread")?;
        assert_eq!((&*last["worker"], &*last["caller"]), ("worker0", "worker2"));
        assert_eq!(
            (&last["trace"], &last["parent"]),
            (&outer["trace"], &blocking["span"])
        );

        let all: Vec<_> = spans
            .lock()
            .iter()
            .map(|(_, fields)| fields["span"].clone())
            .collect();
        assert_eq!(
            all.iter().collect::<BTreeSet<_>>().len(),
            all.len(),
            "each has its own"
        );

        assert_eq!(fine::on(&peer, 1).await?, 1);
        let other = spans.one("laws::observability::fine")?;
        assert_ne!(
            other["trace"], outer["trace"],
            "another call, another trace"
        );
        Ok(cluster.shutdown().await?)
    }
}

mod numbers {
    //! Metrics.

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata,
        Recorder, SharedString, Unit,
    };

    use super::*;

    /// Every metric there is.
    const NAMES: [&str; 24] = [
        "farref_blocking_queue",
        "farref_bytes_received_total",
        "farref_bytes_sent_total",
        "farref_call_seconds",
        "farref_calls_cancelled_total",
        "farref_calls_failed_total",
        "farref_calls_total",
        "farref_connections_total",
        "farref_contexts",
        "farref_destructor_queue",
        "farref_misbehaved_total",
        "farref_open_calls",
        "farref_queued_bytes",
        "farref_reconnects_total",
        "farref_references",
        "farref_references_created_total",
        "farref_references_shared_total",
        "farref_refused_connections_total",
        "farref_serve_seconds",
        "farref_served_failed_total",
        "farref_served_refused_total",
        "farref_served_total",
        "farref_starvations_total",
        "farref_values_freed_total",
    ];

    /// Everything that was recorded.
    #[derive(Clone, Default)]
    struct Recorded(Arc<Mutex<BTreeMap<Labels, Arc<Value>>>>);

    /// Name, worker and function of a metric, with empty text for a label that it lacks.
    type Labels = (String, String, String);

    /// A count, a level, or the number of samples in a histogram.
    #[derive(Default)]
    struct Value(Mutex<f64>);

    impl Value {
        fn update(&self, update: impl FnOnce(f64) -> f64) {
            let mut value = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            *value = update(*value);
        }

        fn get(&self) -> f64 {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }

    impl CounterFn for Value {
        fn increment(&self, by: u64) {
            self.update(|count| count + by as f64);
        }

        fn absolute(&self, count: u64) {
            self.update(|_| count as f64);
        }
    }

    impl GaugeFn for Value {
        fn increment(&self, by: f64) {
            self.update(|level| level + by);
        }

        fn decrement(&self, by: f64) {
            self.update(|level| level - by);
        }

        fn set(&self, level: f64) {
            self.update(|_| level);
        }
    }

    impl HistogramFn for Value {
        fn record(&self, _sample: f64) {
            self.update(|samples| samples + 1.0);
        }
    }

    impl Recorder for Recorded {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.value(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.value(key))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.value(key))
        }
    }

    impl Recorded {
        fn lock(&self) -> MutexGuard<'_, BTreeMap<Labels, Arc<Value>>> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }

        fn value(&self, key: &Key) -> Arc<Value> {
            let label = |name| {
                let label = key.labels().find(|label| label.key() == name);
                label.map_or("", |label| label.value()).to_owned()
            };
            let labels = (key.name().to_owned(), label("worker"), label("function"));
            Arc::clone(self.lock().entry(labels).or_default())
        }

        /// The sum of those with these labels, or `NaN` if there are none.
        fn sum(&self, is_wanted: impl Fn(&Labels) -> bool) -> f64 {
            let values = self.lock();
            let wanted = values.iter().filter(|(labels, _)| is_wanted(labels));
            let sum = wanted.map(|(_, value)| value.get()).reduce(|a, b| a + b);
            sum.unwrap_or(f64::NAN)
        }

        fn of(&self, name: &str, worker: &str) -> f64 {
            self.sum(|labels| labels.0 == name && labels.1 == worker)
        }

        fn of_function(&self, name: &str, function: &str) -> f64 {
            self.sum(|labels| labels.0 == name && labels.2 == function)
        }

        /// Waits until these are the values of one metric at workers.
        async fn reach(&self, name: &str, expected: &[(&str, f64)]) -> Result<()> {
            let is = |(worker, value): &(&str, f64)| self.of(name, worker) == *value;
            let reached = eventually(name, || expected.iter().all(is)).await;
            reached.with_context(|| {
                let values = expected.iter().map(|(worker, _)| self.of(name, worker));
                format!("{name}: {:?}, not {expected:?}", values.collect::<Vec<_>>())
            })
        }
    }

    #[tokio::test]
    async fn metrics_count_what_happened() -> Result<()> {
        let recorded = Recorded::default();
        let _recording = metrics::set_default_local_recorder(&recorded);
        let set_up = |builder: farref::WorkerBuilder| {
            builder
                .blocking_threads(1)
                .authorize(|call| call.function() != "laws::observability::forbidden")
        };
        let cluster = Cluster::start_with(2, set_up).await?;
        let me = cluster.worker(0);
        let peer = me.peer("worker1")?;

        for _ in 0..3 {
            forbidden::on(&peer).await.unwrap_err();
        }
        for n in 0..5 {
            assert_eq!(fine::on(&peer, n).await?, n);
        }
        for _ in 0..2 {
            fail::on(&peer).await.unwrap_err();
        }
        panic::on(&peer).await.unwrap_err();
        // Long enough for the call to arrive before it is given up.
        never::on(&peer)
            .timeout(Duration::from_secs(2))
            .await
            .unwrap_err();
        let nothing = [("worker0", 0.0), ("worker1", 0.0)];
        recorded.reach("farref_open_calls", &nothing).await?;
        let cancelled = never::on(&peer).start();
        let one_each = [("worker0", 1.0), ("worker1", 1.0)];
        recorded.reach("farref_open_calls", &one_each).await?;
        drop(cancelled);
        let things: Vec<_> = (0..3).map(|n| Thing::new_on(&peer, n).remote()).collect();
        let mine = me.rref(7_u64)?;
        assert_eq!(things[2].number().await?, 2);
        let held = [("worker0", 4.0), ("worker1", 3.0)];
        recorded.reach("farref_references", &held).await?;
        drop((things, mine));
        recorded.reach("farref_references", &nothing).await?;
        recorded.reach("farref_open_calls", &nothing).await?;

        // 3 refused, 5 fine, 2 failed, 1 panicked, 1 timed out, 1 cancelled, 3 left there, 1 method.
        for (name, worker, count) in [
            ("farref_calls_total", "worker0", 17.0),
            ("farref_calls_total", "worker1", 0.0),
            ("farref_calls_failed_total", "worker0", 7.0),
            ("farref_calls_cancelled_total", "worker0", 1.0),
            ("farref_call_seconds", "worker0", 13.0),
            ("farref_served_total", "worker1", 17.0),
            ("farref_served_failed_total", "worker1", 8.0),
            ("farref_serve_seconds", "worker1", 17.0),
            ("farref_served_refused_total", "worker1", 3.0),
            ("farref_served_refused_total", "worker0", 0.0),
            ("farref_references_created_total", "worker0", 4.0),
            ("farref_references_created_total", "worker1", 0.0),
            ("farref_values_freed_total", "worker0", 1.0),
            ("farref_values_freed_total", "worker1", 3.0),
            ("farref_misbehaved_total", "worker0", 0.0),
            ("farref_contexts", "worker0", 0.0),
        ] {
            recorded.reach(name, &[(worker, count)]).await?;
        }

        for (name, function, count) in [
            ("farref_served_total", "laws::observability::fine", 5.0),
            ("farref_serve_seconds", "laws::observability::fine", 5.0),
            (
                "farref_served_failed_total",
                "laws::observability::fine",
                0.0,
            ),
            (
                "farref_served_failed_total",
                "laws::observability::fail",
                2.0,
            ),
            (
                "farref_served_total",
                "laws::observability::Thing::number",
                1.0,
            ),
        ] {
            let counted = recorded.of_function(name, function);
            assert_eq!(counted, count, "{name} of {function}");
        }

        let blocked: Vec<_> = (0..3).map(|_| block::on(&peer, 0).start()).collect();
        recorded
            .reach("farref_blocking_queue", &[("worker1", 2.0)])
            .await?;
        GATES[0].open();
        for call in blocked {
            call.await?;
        }

        let ways = [
            ("farref_bytes_sent_total", "worker0"),
            ("farref_bytes_received_total", "worker1"),
        ];
        let before = ways.map(|(name, worker)| recorded.of(name, worker));
        assert_eq!(size::on(&peer, vec![1; 1 << 20].into()).await?, 1 << 20);
        for ((name, worker), before) in ways.into_iter().zip(before) {
            let moved = || recorded.of(name, worker) - before;
            // The answer may arrive before the sender has counted the last bytes.
            eventually(name, || moved() >= 1048576.0).await?;
            assert!(moved() < 1148576.0, "{name}: {}", moved());
        }

        assert_eq!(recorded.of("farref_reconnects_total", "worker0"), 0.0);
        let connections = recorded.of("farref_connections_total", "worker0");
        cluster.cut(0, 1);
        fine::on(&peer, 1).await?;
        assert!(recorded.of("farref_reconnects_total", "worker0") > 0.0);
        assert!(recorded.of("farref_connections_total", "worker0") > connections);

        let labels: Vec<Labels> = recorded.lock().keys().cloned().collect();
        let anonymous = labels.iter().find(|(_, worker, _)| worker.is_empty());
        assert_eq!(anonymous, None, "nobody knows whose that is");

        let seen: BTreeSet<_> = labels.iter().map(|(name, ..)| name.as_str()).collect();
        let unlisted: Vec<_> = seen.difference(&BTreeSet::from(NAMES)).copied().collect();
        assert!(unlisted.is_empty(), "{unlisted:?} is not in the list above");
        // Only whoever refuses a connection has the counter for it.
        let unseen = NAMES.iter().filter(|name| !seen.contains(*name));
        let unseen: Vec<_> = unseen.filter(|name| !name.contains("refused")).collect();
        assert!(unseen.is_empty(), "{unseen:?} does not exist");
        Ok(cluster.shutdown().await?)
    }
}

mod snapshots {
    //! What a worker says it has.

    use super::*;

    static KEPT: Mutex<Option<RRef<Thing>>> = Mutex::new(None);

    fn kept() -> MutexGuard<'static, Option<RRef<Thing>>> {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[farref::remote]
    async fn keep(thing: Option<RRef<Thing>>) {
        let before = std::mem::replace(&mut *kept(), thing);
        drop(before);
    }

    fn peer_of<'a>(snapshot: &'a Snapshot, name: &str) -> Result<&'a PeerSnapshot> {
        let mut peers = snapshot.peers.iter();
        peers.find(|peer| peer.name == name).context("no such peer")
    }

    #[tokio::test]
    async fn a_snapshot_of_any_worker_shows_what_it_has() -> Result<()> {
        let cluster = Cluster::start_with(3, |builder| {
            builder.blocking_threads(1).max_calls_per_peer(64)
        })
        .await?;
        let me = cluster.worker(0);
        let (owner, holder) = (me.peer("worker1")?, me.peer("worker2")?);
        let line = line!() + 1;
        let thing = Thing::new_on(&owner, 1).remote();
        keep::on(&holder, Some(thing.clone())).await?;
        eventually("the owner knows of it", || {
            let owned = cluster.worker(1).references();
            owned.0.iter().any(|it| it.holders.len() == 2)
        })
        .await?;

        // Seen from the owner: who holds it.
        let there = owner.snapshot().await?;
        assert_eq!((&*there.worker, there.rank), ("worker1", 1));
        assert_eq!(there.references.len(), 1, "{:?}", there.references);
        let seen = &there.references[0];
        assert_eq!(seen.id, thing.id()?);
        assert!(seen.type_name.ends_with("Thing"), "{seen}");
        assert_eq!(seen.owner, "worker1");
        let holders: BTreeSet<_> = seen.holders.iter().map(String::as_str).collect();
        assert_eq!(holders, BTreeSet::from(["worker0", "worker2"]));
        assert!(there.open_calls >= 1, "the question itself is one");
        assert!(there.functions > 10);

        // Seen from the holders: where it was made, what it is, and for how long it has been there.
        let here = me.snapshot();
        let seen = here.references.first().context("it is held here")?;
        assert_eq!(
            (&*seen.owner, &*seen.holders),
            ("worker1", &["worker0".to_owned()][..])
        );
        let location = seen.location.clone().context("it was made here")?;
        assert!(
            location.contains(&format!("observability.rs:{line}:")),
            "{location}"
        );
        assert!(seen.age.is_some_and(|age| age > Duration::ZERO));
        let received = holder.snapshot().await?.references;
        assert_eq!(received.len(), 1, "{received:?}");
        assert!(received[0].type_name.ends_with("Thing") && received[0].age.is_some());
        assert_eq!(received[0].holders, ["worker2"]);

        // The group and the links.
        for name in ["worker0", "worker1", "worker2"] {
            assert_eq!(peer_of(&there, name)?.status, "alive");
        }
        let link = peer_of(&there, "worker0")?;
        assert_eq!(link.transport.as_deref(), Some("memory"));
        assert_eq!((link.rank, link.connections), (0, 1));
        assert!(link.bytes_sent > 0 && link.bytes_received > 0);
        assert_eq!(
            peer_of(&there, "worker1")?.transport,
            None,
            "no link to itself"
        );

        // Queues.
        let waiting: Vec<_> = (0..100).map(|_| never::on(&owner).start()).collect();
        // One of the 64 places is still taken by the thing: those of results that stay come back in lots.
        assert_eq!(peer_of(&me.snapshot(), "worker1")?.calls_held_back, 37);
        assert_eq!(me.snapshot().open_calls, 100);
        drop(waiting);
        let blocked: Vec<_> = (0..3).map(|_| block::on(&owner, 1).start()).collect();
        eventually("two wait for the thread", || {
            cluster.worker(1).snapshot().blocking_queue == 2
        })
        .await?;
        GATES[1].open();
        for call in blocked {
            call.await?;
        }
        cluster.partition(0, 1);
        let blob = Blob::from(vec![0; 1 << 20]);
        let stuck = size::on(&owner, blob).start();
        let queued = peer_of(&me.snapshot(), "worker1")?.queued_bytes;
        assert!(queued >= 1 << 20, "{queued}");
        cluster.heal(0, 1);
        stuck.await?;

        // It can be stored and read again.
        let json = serde_json::to_string(&there)?;
        let read: Snapshot = serde_json::from_str(&json)?;
        assert_eq!(read.references, there.references);

        keep::on(&holder, None).await?;
        drop(thing);
        eventually("nothing is left", || {
            cluster
                .workers()
                .iter()
                .all(|worker| worker.snapshot().references.is_empty())
        })
        .await?;
        Ok(cluster.shutdown().await?)
    }

    #[tokio::test]
    async fn a_lost_worker_is_shown_as_such() -> Result<()> {
        let mut cluster = Cluster::start(3).await?;
        let peer = cluster.worker(0).peer("worker2")?;
        fine::on(&peer, 1).await?;
        cluster.crash(2).await;
        eventually("it is dead", || {
            let seen = cluster.worker(0).snapshot();
            peer_of(&seen, "worker2").is_ok_and(|peer| peer.status == "dead")
        })
        .await?;
        assert!(matches!(peer.snapshot().await, Err(Error::PeerLost { .. })));
        cluster.restart(2).await?;
        let back = cluster
            .worker(0)
            .wait_for_peer("worker2", TEST_TIMEOUT)
            .await?;
        let snapshot = back.snapshot().await?;
        assert_eq!((&*snapshot.worker, snapshot.rank), ("worker2", 2));
        assert!(snapshot.incarnation > cluster.worker(0).snapshot().incarnation);
        Ok(cluster.shutdown().await?)
    }
}

mod leaks {
    //! References that were never dropped.

    use super::*;

    #[tokio::test]
    async fn a_leak_is_reported_with_type_owner_holder_line_and_age() -> Result<()> {
        let cluster = Cluster::start(2).await?;
        let (me, other) = (cluster.worker(0).clone(), cluster.worker(1).clone());
        let line = line!() + 1;
        let leaked = Thing::new_on(&me.peer("worker1")?, 1).remote();
        let mine = me.rref("mine".to_owned())?;
        leaked.number().await?;

        let (here, there) = tokio::join!(me.shutdown(), other.shutdown());
        let Err(Error::Leaked(report)) = here else {
            panic!("the leak was not reported: {here:?}");
        };
        let text = report.to_string();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        let thing = lines
            .iter()
            .find(|line| line.contains("Thing"))
            .context("the thing")?;
        let place = format!("observability.rs:{line}:");
        for part in [
            "observability::Thing on `worker1`",
            "held by worker0",
            "made at",
            &place,
            " s old",
        ] {
            assert!(thing.contains(part), "`{part}` is missing in: {thing}");
        }
        let string = lines
            .iter()
            .find(|line| line.contains("String"))
            .context("the string")?;
        assert!(
            string.contains("on `worker0`, held by worker0, made at"),
            "{string}"
        );

        // The owner's view of the same.
        let Err(Error::Leaked(report)) = there else {
            panic!("the leak was not reported: {there:?}");
        };
        let text = report.to_string();
        assert!(
            text.contains("Thing on `worker1`, held by worker0"),
            "{text}"
        );

        // A leak is no reason not to end; what is left can be dropped.
        assert!(me.references().is_empty() && other.references().is_empty());
        drop((leaked, mine));
        drop(cluster);
        Ok(())
    }

    #[tokio::test]
    async fn without_fail_on_leaks_a_leak_is_only_a_warning() -> Result<()> {
        let cluster = Cluster::start_with(2, |builder| builder.fail_on_leaks(false)).await?;
        let leaked = Thing::new_on(&cluster.worker(0).peer("worker1")?, 1).remote();
        leaked.confirmed().await?;
        cluster.shutdown().await?;
        let used = leaked.number().await;
        assert!(matches!(used, Err(Error::NotMember { .. })), "{used:?}");
        Ok(())
    }
}
