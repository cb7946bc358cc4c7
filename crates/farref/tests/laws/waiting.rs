//! Calls that wait for a value: who can see them, and calls that would wait for themselves.

use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::Result;
use farref::testing::Cluster;
use farref::{Error, RRef, WaitsFor, Worker, WorkerBuilder};
use farref_testkit::{TEST_TIMEOUT, eventually};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, Semaphore};
use tokio::time::timeout;

use crate::cluster::{finish, pair};

/// The functions that a worker says it runs, the oldest first.
fn running(worker: &Worker) -> Vec<String> {
    let snapshot = worker.snapshot();
    snapshot
        .running
        .into_iter()
        .map(|call| call.function.replace("laws::waiting::", ""))
        .collect()
}

mod seen {
    //! What a snapshot says of calls that wait.

    use super::*;

    static GO: Notify = Notify::const_new();
    static MAKE: Notify = Notify::const_new();

    pub(crate) struct Table(u64);

    #[farref::remote]
    impl Table {
        pub(crate) async fn new() -> Self {
            Self(0)
        }

        pub(crate) async fn late() -> Self {
            MAKE.notified().await;
            Self(1)
        }

        pub(crate) async fn fill(&mut self) -> u64 {
            GO.notified().await;
            self.0 += 1;
            self.0
        }

        pub(crate) async fn get(&self) -> u64 {
            self.0
        }
    }

    static MAKE_SLOW: Notify = Notify::const_new();

    pub(crate) struct Slow;

    #[farref::remote]
    impl Slow {
        pub(crate) async fn new() -> Self {
            MAKE_SLOW.notified().await;
            Self
        }

        pub(crate) async fn number(&self) -> u64 {
            1
        }
    }

    pub(crate) struct Holder;

    #[farref::remote]
    impl Holder {
        pub(crate) async fn new() -> Self {
            Self
        }

        pub(crate) async fn ask(&self, slow: RRef<Slow>) -> farref::Result<u64> {
            slow.number().await
        }
    }

    /// Who looks at a call that waits learns which values it keeps from being given back meanwhile.
    #[tokio::test]
    async fn a_call_that_waits_says_which_values_are_used_by_those_who_wait_for_it() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let slow = Slow::new_on(&peer).remote();
        let holder = Holder::new_on(&peer).remote();
        let asking = holder.ask(slow.clone()).start();
        let mut held = Vec::new();
        eventually("the inner call waits", || {
            let waiting = cluster.worker(1).snapshot().waiting;
            let waits = waiting
                .iter()
                .find(|call| call.function.ends_with("number"));
            held = waits.map_or_else(Vec::new, |call| call.held_by_callers.clone());
            waits.is_some()
        })
        .await?;
        assert_eq!(held, [holder.id()?]);
        MAKE_SLOW.notify_one();
        assert_eq!(asking.await?, 1);
        drop((slow, holder));
        finish(cluster).await
    }

    static FETCHING: Semaphore = Semaphore::const_new(0);

    /// Its answers take more than half of what [`narrow`] allows for.
    #[farref::remote]
    async fn fetch_all() -> String {
        let _permit = FETCHING.acquire().await;
        "x".repeat(700 << 10)
    }

    /// A call that is held back because what it brings has no room yet does not run.
    #[tokio::test]
    async fn f4_a_snapshot_lists_calls_that_wait_for_room_apart_from_those_that_run() -> Result<()>
    {
        let narrow = |builder: WorkerBuilder| builder.max_answer_bytes_per_peer(1 << 20);
        let cluster = Cluster::start_with(2, narrow).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        FETCHING.add_permits(1);
        fetch_all::on(&peer).await?;
        let permit = FETCHING.acquire().await.expect("it is open");
        // They begin one by one, seldom enough that most of them wait for a while.
        let calls: Vec<_> = (0..50).map(|_| fetch_all::on(&peer).start()).collect();
        let mut seen = None;
        eventually("some are held back", || {
            let snapshot = cluster.worker(1).snapshot();
            let is_seen = !snapshot.waiting.is_empty();
            seen = is_seen.then_some(snapshot);
            is_seen
        })
        .await?;
        let snapshot = seen.expect("it was seen");
        let served: usize = snapshot.peers.iter().map(|peer| peer.calls_served).sum();
        assert!(snapshot.running.len() + snapshot.waiting.len() <= served);
        for call in snapshot.waiting {
            assert!(call.function.ends_with("fetch_all"), "{call:?}");
            assert_eq!((call.waits_for, call.value), (WaitsFor::Room, None));
        }
        drop(permit);
        FETCHING.add_permits(50);
        for call in calls {
            assert_eq!(call.await?.len(), 700 << 10);
        }
        assert!(cluster.worker(1).snapshot().waiting.is_empty());
        finish(cluster).await
    }

    /// A call in the queue of a value, or on a value that is still being made, does not run: it is listed
    /// with what it waits for, so that a deadlock can be told from work.
    #[tokio::test]
    async fn f4_a_snapshot_lists_calls_that_wait_apart_from_those_that_run() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let there = cluster.worker(1);
        let table = Table::new_on(&peer).remote();
        let late = Table::late_on(&peer).remote();
        let fill = table.fill().start();
        eventually("the method runs", || running(there).len() == 1).await?;
        let get = table.get().start();
        let early = late.get().start();
        let both_wait = || there.snapshot().waiting.len() == 2;
        eventually("both calls have arrived", both_wait).await?;
        assert_eq!(running(there), ["seen::Table::fill"]);
        let waiting = there.snapshot().waiting;
        let waits_for = |function: &str, value: &str, what: WaitsFor| {
            waiting.iter().any(|call| {
                call.function.ends_with(function)
                    && (&*call.caller, call.value.as_deref()) == ("worker0", Some(value))
                    && call.waits_for == what
            })
        };
        assert_eq!(waiting.len(), 2, "{waiting:?}");
        assert!(waits_for("Table::get", &table.id()?, WaitsFor::Turn));
        assert!(waits_for("Table::get", &late.id()?, WaitsFor::Value));
        let turn = waiting.iter().find(|call| !call.used_by.is_empty());
        let used_by = turn.map(|call| call.used_by.join(", ")).unwrap_or_default();
        assert_eq!(used_by, "laws::waiting::seen::Table::fill");
        GO.notify_one();
        MAKE.notify_one();
        assert_eq!((fill.await?, get.await?, early.await?), (1, 1, 1));
        assert!(there.snapshot().waiting.is_empty());
        drop((table, late));
        finish(cluster).await
    }
}

mod cycles {
    //! Calls that would wait for a call that waits for them.
    #![allow(
        clippy::needless_pass_by_ref_mut,
        clippy::use_self,
        reason = "how a method takes its value is what is tested, and references name their type"
    )]

    use super::*;

    static INSIDE: Notify = Notify::const_new();
    static QUEUED: Notify = Notify::const_new();

    #[derive(Serialize, Deserialize)]
    pub(crate) struct Counter {
        count: u64,
    }

    #[farref::remote]
    impl Counter {
        pub(crate) async fn new() -> Self {
            Self { count: 0 }
        }

        pub(crate) async fn add(&mut self, n: u64) -> u64 {
            self.count += n;
            self.count
        }

        pub(crate) async fn get(&self) -> u64 {
            self.count
        }

        /// Reads its own value through its reference, behind a writer.
        pub(crate) async fn get_again(&self, me: RRef<Counter>) -> farref::Result<u64> {
            INSIDE.notify_one();
            QUEUED.notified().await;
            Ok(me.get().timeout(None).await? + me.to_here_count().timeout(None).await?)
        }

        pub(crate) async fn to_here_count(&self) -> u64 {
            self.count
        }

        pub(crate) async fn add_twice(&mut self, me: RRef<Counter>) -> farref::Result<Vec<String>> {
            self.count += 1;
            cycle(me.add(1).timeout(None).await)
        }

        pub(crate) async fn add_after_reading(
            &self,
            me: RRef<Counter>,
        ) -> farref::Result<Vec<String>> {
            cycle(me.add(1).timeout(None).await)
        }

        pub(crate) async fn copy_itself(
            &mut self,
            me: RRef<Counter>,
        ) -> farref::Result<Vec<String>> {
            cycle(me.to_here().timeout(None).await)
        }

        pub(crate) async fn look_at_itself(
            &mut self,
            me: RRef<Counter>,
        ) -> farref::Result<Vec<String>> {
            cycle(me.local().await)
        }

        pub(crate) async fn add_through(
            &mut self,
            me: RRef<Counter>,
            via: String,
        ) -> farref::Result<Vec<String>> {
            self.count += 1;
            let via = here()?.peer(&via)?;
            relay::on(&via, me, 1).timeout(None).await
        }

        pub(crate) fn add_blocking(&mut self, me: RRef<Counter>) -> farref::Result<Vec<String>> {
            self.count += 1;
            cycle(me.add(1).timeout(None).wait())
        }

        /// Calls one value from another one, in both directions but not in a circle.
        pub(crate) async fn add_to(&mut self, other: RRef<Counter>, n: u64) -> farref::Result<u64> {
            self.count += 1;
            other.add(n).timeout(None).await
        }

        /// Begins a call on itself for somebody else to wait for.
        pub(crate) async fn add_later(&mut self, me: RRef<Counter>) -> u64 {
            self.count += 1;
            let later = me.add(10).timeout(None).start();
            tokio::spawn(async move {
                let added = later.await.unwrap_or(0);
                LATER.store(added, Ordering::SeqCst);
            });
            self.count
        }
    }

    static LATER: AtomicU64 = AtomicU64::new(0);

    #[farref::remote]
    async fn relay(counter: RRef<Counter>, n: u64) -> farref::Result<Vec<String>> {
        cycle(counter.add(n).timeout(None).await)
    }

    /// The functions that a call would have waited for in a circle, by their last names.
    fn cycle<T>(refused: farref::Result<T>) -> farref::Result<Vec<String>> {
        match refused {
            Err(Error::Deadlock { cycle, .. }) => Ok(cycle
                .iter()
                .map(|function| function.rsplit("::").next().unwrap_or_default().to_owned())
                .collect()),
            Err(other) => Err(other),
            Ok(_) => Ok(vec!["nothing was wrong".to_owned()]),
        }
    }

    /// VA-1: whoever reads a value already is not kept waiting by those who want to write it.
    #[tokio::test]
    async fn a_reader_that_reads_its_own_value_again_is_not_held_up_by_a_queued_writer()
    -> Result<()> {
        let (cluster, peer) = pair().await?;
        let counter = Counter::new_on(&peer).remote();
        let reads = counter.get_again(counter.clone()).timeout(None).start();
        INSIDE.notified().await;
        let writes = counter.add(5).start();
        let open = || cluster.worker(1).snapshot().open_calls >= 2;
        eventually("the writer is queued", open).await?;
        QUEUED.notify_one();
        assert_eq!(timeout(TEST_TIMEOUT, reads).await??, 0);
        assert_eq!(timeout(TEST_TIMEOUT, writes).await??, 5);
        drop(counter);
        finish(cluster).await
    }

    /// D3 bounds calls that have a time limit; one that has none would wait for ever.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_that_waits_for_its_own_caller_fails_at_once_and_names_the_cycle() -> Result<()>
    {
        let cluster = Cluster::start(3).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        let counter = Counter::new_on(&peer).remote();
        let me = || counter.clone();
        let calls = [
            (counter.add_twice(me()), vec!["add_twice", "add"]),
            (
                counter.add_after_reading(me()),
                vec!["add_after_reading", "add"],
            ),
            (counter.copy_itself(me()), vec!["copy_itself", "to_here"]),
            (
                counter.look_at_itself(me()),
                vec!["look_at_itself", "local"],
            ),
            (
                counter.add_through(me(), "worker2".to_owned()),
                vec!["add_through", "relay", "add"],
            ),
            (counter.add_blocking(me()), vec!["add_blocking", "add"]),
        ];
        for (call, functions) in calls {
            let cycle = timeout(TEST_TIMEOUT, call.timeout(None).into_future()).await??;
            assert_eq!(cycle, functions);
        }
        // What was refused did nothing, and the value is as usable as ever.
        assert_eq!(counter.add(1).await?, 4);
        drop(counter);
        finish(cluster).await
    }

    /// Values that call each other are no cycle, as long as none waits for itself.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_call_from_one_value_to_another_is_no_cycle() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let [one, two] = [(); 2].map(|()| Counter::new_on(&peer).remote());
        for _ in 0..50 {
            let calls = [
                one.add_to(two.clone(), 1).start(),
                one.add(1).start(),
                two.add(1).start(),
            ];
            for call in calls {
                timeout(TEST_TIMEOUT, call).await??;
            }
        }
        assert_eq!((one.get().await?, two.get().await?), (100, 100));
        drop((one, two));
        finish(cluster).await
    }

    /// A method may begin a call on its own value, if it does not wait for it.
    #[tokio::test]
    async fn a_method_may_start_a_call_on_its_own_value() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let counter = Counter::new_on(&peer).remote();
        assert_eq!(counter.add_later(counter.clone()).await?, 1);
        let later = || LATER.load(Ordering::SeqCst) == 11;
        eventually("the call that it began is done", later).await?;
        drop(counter);
        finish(cluster).await
    }
}

fn here() -> farref::Result<Worker> {
    Worker::current().ok_or(Error::Misuse(farref::Misuse::NoWorker))
}
