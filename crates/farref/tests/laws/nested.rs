//! Calls within calls, calls that share a value, and what a function knows of the call that it runs for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use farref::testing::Cluster;
use farref::{Error, Peer, RRef, Worker};
use farref_testkit::{TEST_TIMEOUT, eventually};

use crate::cluster::{finish, pair};

/// The worker that this function runs on.
fn here() -> farref::Result<Worker> {
    Worker::current().ok_or(Error::Misuse(farref::Misuse::NoWorker))
}

/// The next one of the group, in a circle.
fn next() -> farref::Result<Peer> {
    let me = here()?;
    let peers = me.peers();
    let next = (me.rank() as usize + 1) % peers.len();
    Ok(peers[next].clone())
}

/// The time of a call is up everywhere at once. Either the caller notices first, or the function does,
/// whose own call fails; it is the same to the caller.
#[track_caller]
fn ensure_out_of_time(error: &Error) {
    assert!(matches!(error, Error::Timeout { .. }), "{error:?}");
}

mod recursion {
    //! Calls that go back and forth.

    use super::*;

    #[farref::remote]
    fn descend_blocking(depth: u32) -> farref::Result<u32> {
        if depth == 0 {
            return Ok(0);
        }
        Ok(descend_blocking::on(&next()?, depth - 1)
            .timeout(None)
            .wait()?
            + 1)
    }

    /// PyTorch #26362, #44169: as many nested blocking calls as its pool has threads hang for ever.
    #[tokio::test(flavor = "multi_thread")]
    async fn nested_blocking_calls_do_not_use_the_pool_up() -> Result<()> {
        let cluster = Cluster::start_with(2, |builder| builder.blocking_threads(2)).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        let call = || descend_blocking::on(&peer, 500).timeout(TEST_TIMEOUT);
        assert_eq!(call().await?, 500);
        // Several at once, and from a thread that is none of the runtime's.
        let (a, b) = (call().start(), call().start());
        let waiting = call();
        let thread = std::thread::spawn(move || waiting.wait());
        assert_eq!((a.await?, b.await?), (500, 500));
        assert_eq!(
            thread.join().map_err(|_| anyhow::anyhow!("panicked"))??,
            500
        );
        finish(cluster).await
    }

    #[farref::remote]
    fn descend_on_self(depth: u32) -> farref::Result<u32> {
        if depth == 0 {
            return Ok(0);
        }
        Ok(descend_on_self::on(&here()?.me(), depth - 1).wait()? + 1)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_worker_may_block_on_calls_to_itself() -> Result<()> {
        let cluster = Cluster::start_with(1, |builder| builder.blocking_threads(1)).await?;
        let me = cluster.worker(0).me();
        assert_eq!(
            descend_on_self::on(&me, 200).timeout(TEST_TIMEOUT).await?,
            200
        );
        finish(cluster).await
    }

    #[farref::remote]
    async fn descend(depth: u32) -> farref::Result<u32> {
        if depth == 0 {
            return Ok(0);
        }
        Ok(descend::on(&next()?, depth - 1).await? + 1)
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn async_functions_recur_over_workers_as_deep_as_they_like() -> Result<()> {
        for workers in [1, 2, 3] {
            let cluster = Cluster::start(workers).await?;
            let me = cluster.worker(0).me();
            assert_eq!(descend::on(&me, 2_000).timeout(TEST_TIMEOUT).await?, 2_000);
            finish(cluster).await?;
        }
        Ok(())
    }

    /// D3: what is called inside of a call has no more time than the call.
    #[tokio::test(flavor = "multi_thread")]
    async fn nested_calls_end_with_the_outermost_deadline() -> Result<()> {
        let (cluster, peer) = pair().await?;
        let error = outlast::on(&peer, 5)
            .timeout(Duration::from_millis(100))
            .await
            .unwrap_err();
        ensure_out_of_time(&error);
        let quiet = || {
            cluster
                .workers()
                .iter()
                .all(|worker| worker.snapshot().open_calls == 0)
        };
        eventually("all of them have ended", quiet).await?;
        finish(cluster).await
    }

    #[farref::remote]
    async fn outlast(depth: u32) -> farref::Result<u32> {
        if depth == 0 {
            tokio::time::sleep(Duration::from_secs(600)).await;
            return Ok(0);
        }
        outlast::on(&next()?, depth - 1).timeout(None).await
    }
}

mod sharing {
    //! Calls that share a value.

    use super::*;

    pub(crate) struct Log {
        entries: Vec<(u32, u32)>,
        readers: AtomicU64,
        most_readers: AtomicU64,
    }

    #[farref::remote]
    impl Log {
        /// Takes a while, so that the first calls are there before the value.
        pub(crate) async fn new() -> Self {
            tokio::time::sleep(Duration::from_millis(20)).await;
            Self {
                entries: Vec::new(),
                readers: AtomicU64::new(0),
                most_readers: AtomicU64::new(0),
            }
        }

        pub(crate) async fn append(&mut self, caller: u32, number: u32) -> usize {
            let length = self.entries.len();
            if number.is_multiple_of(64) {
                tokio::task::yield_now().await;
            }
            self.entries.push((caller, number));
            assert_eq!(self.entries.len(), length + 1, "somebody else was in here");
            length
        }

        /// The same on a thread.
        pub(crate) fn append_blocking(&mut self, caller: u32, number: u32) -> usize {
            self.entries.push((caller, number));
            self.entries.len()
        }

        pub(crate) fn entries(&self) -> Vec<(u32, u32)> {
            self.entries.clone()
        }

        /// Comes back when so many are in it at once.
        pub(crate) async fn meet(&self, others: u64) -> u64 {
            let now = self.readers.fetch_add(1, Ordering::AcqRel) + 1;
            self.most_readers.fetch_max(now, Ordering::AcqRel);
            while self.most_readers.load(Ordering::Acquire) < others {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            self.readers.fetch_sub(1, Ordering::AcqRel);
            self.most_readers.load(Ordering::Acquire)
        }

        /// Calls a method of its own value while it is in one.
        pub(crate) async fn count_through(
            &self,
            me: RRef<Self>,
            depth: u32,
        ) -> farref::Result<usize> {
            if depth == 0 {
                return Ok(self.entries.len());
            }
            me.count_through(me.clone(), depth - 1).await
        }
    }

    #[farref::remote]
    async fn fill(log: RRef<Log>, caller: u32, calls: u32) -> farref::Result<()> {
        let pending: Vec<_> = (0..calls)
            .map(|number| match number % 3 {
                0 => log.append(caller, number).start(),
                1 => log.append_blocking(caller, number).start(),
                _ => {
                    // A result that stays comes in its turn as well.
                    drop(log.append(caller, number).remote());
                    log.append(caller, number).start()
                }
            })
            .collect();
        for call in pending {
            call.await?;
        }
        Ok(())
    }

    /// VA-1, and FL-3: 10,000 calls of three workers, one of them the owner.
    #[tokio::test(flavor = "multi_thread")]
    async fn exclusive_calls_come_one_at_a_time_in_the_order_of_each_caller() -> Result<()> {
        const CALLS: u32 = 2_500;
        let cluster = Cluster::start(3).await?;
        let me = cluster.worker(0);
        let log = Log::new_on(&me.peer("worker1")?).remote();
        let filling: Vec<_> = me
            .peers()
            .iter()
            .map(|peer| {
                fill::on(peer, log.clone(), peer.rank(), CALLS)
                    .timeout(None)
                    .start()
            })
            .collect();
        for call in filling {
            call.await?;
        }
        let entries = log.entries().await?;
        let in_order = |number| {
            if number % 3 == 2 {
                vec![number; 2]
            } else {
                vec![number]
            }
        };
        let expected: Vec<u32> = (0..CALLS).flat_map(in_order).collect();
        for caller in 0..3 {
            let numbers = entries.iter().filter(|entry| entry.0 == caller);
            let numbers: Vec<u32> = numbers.map(|entry| entry.1).collect();
            assert_eq!(numbers.len(), expected.len());
            let odd = numbers.iter().zip(&expected).position(|(a, b)| a != b);
            assert_eq!(odd, None, "caller {caller} was overtaken by itself");
        }
        drop(log);
        finish(cluster).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn shared_calls_run_in_parallel() -> Result<()> {
        let cluster = Cluster::start(3).await?;
        let me = cluster.worker(0);
        let log = Log::new_on(&me.peer("worker1")?).remote();
        let meeting: Vec<_> = (0..30).map(|_| log.meet(30).start()).collect();
        for call in meeting {
            assert_eq!(call.await?, 30);
        }
        drop(log);
        finish(cluster).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_method_may_call_its_own_value_while_both_only_read() -> Result<()> {
        let (cluster, peer) = pair().await?;
        for owner in [peer, cluster.worker(0).me()] {
            let log = Log::new_on(&owner).remote();
            log.append(0, 0).await?;
            assert_eq!(log.count_through(log.clone(), 50).await?, 1);
            drop(log);
        }
        finish(cluster).await
    }
}

mod context {
    //! What a running function can find out about its call.

    use super::*;

    static SPAWNED: Mutex<Vec<bool>> = Mutex::new(Vec::new());

    fn names() -> (String, String) {
        let worker = Worker::current().map(|worker| worker.name().to_owned());
        let caller = Worker::caller().map(|caller| caller.name().to_owned());
        (worker.unwrap_or_default(), caller.unwrap_or_default())
    }

    #[farref::remote]
    async fn names_of_a_task() -> [(String, String); 3] {
        let before = names();
        tokio::task::yield_now().await;
        let between = names();
        tokio::time::sleep(Duration::from_millis(5)).await;
        [before, between, names()]
    }

    #[farref::remote]
    fn names_on_a_thread() -> (String, String) {
        names()
    }

    #[farref::remote]
    async fn names_after_a_call(via: String) -> farref::Result<[(String, String); 2]> {
        let there = names_of_a_task::on(&here()?.peer(&via)?).await?;
        let [_, _, last] = there;
        Ok([last, names()])
    }

    #[farref::remote]
    async fn spawn() {
        let spawned = tokio::spawn(async { names() });
        let nothing = spawned
            .await
            .is_ok_and(|(worker, caller)| worker.is_empty() && caller.is_empty());
        let thread = std::thread::spawn(names).join();
        let nothing_there =
            thread.is_ok_and(|(worker, caller)| worker.is_empty() && caller.is_empty());
        let mut results = SPAWNED.lock().unwrap_or_else(PoisonError::into_inner);
        results.extend([nothing, nothing_there]);
    }

    fn owned(worker: &str, caller: &str) -> (String, String) {
        (worker.to_owned(), caller.to_owned())
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_function_knows_its_worker_and_its_caller_at_any_time() -> Result<()> {
        let cluster = Cluster::start(3).await?;
        let me = cluster.worker(0);
        let peer = me.peer("worker1")?;
        let expected = owned("worker1", "worker0");
        for _ in 0..20 {
            assert_eq!(
                names_of_a_task::on(&peer).await?,
                [(); 3].map(|()| expected.clone())
            );
            assert_eq!(names_on_a_thread::on(&peer).await?, expected);
            let nested = names_after_a_call::on(&peer, "worker2".into()).await?;
            assert_eq!(nested, [owned("worker2", "worker1"), expected.clone()]);
            let itself = owned("worker0", "worker0");
            assert_eq!(
                names_of_a_task::on(&me.me()).await?,
                [(); 3].map(|()| itself.clone())
            );
            assert_eq!(names_on_a_thread::on(&me.me()).await?, itself);
        }
        assert_eq!(names(), owned("", ""), "this is no remote function");
        finish(cluster).await
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_function_spawns_is_on_its_own() -> Result<()> {
        let (cluster, peer) = pair().await?;
        spawn::on(&peer).await?;
        let results = SPAWNED
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        assert_eq!(results, [true, true]);
        finish(cluster).await
    }
}
