//! What goes on as long as a worker runs: its clock, and the group's store.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::hosting::HostedStore;
use crate::rendezvous::RendezvousError;
use crate::runtime::{Core, WorkerStage};

/// When the store is gone, or a worker that may have been its host: hosts the store if this worker may, and
/// tells the new one what the group knows, so that others, the former host among them, can join again (S3).
///
/// On the thread that no program can keep from running: newcomers do not wait for long, the store that is taken
/// over is served where this runs, and who looks others up waits for whoever watches the store to let go of it.
pub(super) async fn keep_store(core: Weak<Core>, hosted: Weak<HostedStore>) {
    const RETRY: Duration = Duration::from_millis(250);
    // The store says once that it was lost; who is joining then writes itself down when it is a member.
    let mut is_lost = false;
    loop {
        let Some(strong) = core.upgrade() else {
            return;
        };
        let Some(directory) = strong.names.directory() else {
            return;
        };
        let mut stage = strong.stage.subscribe();
        let out = async { drop(stage.wait_for(|stage| is_out(*stage)).await) };
        if is_lost {
            drop(tokio::time::timeout(RETRY, out).await);
        } else {
            tokio::select! {
                biased;
                () = strong.store_lost.notified() => {}
                () = directory.store_lost() => {}
                () = out => {}
            }
            is_lost = true;
        }
        if strong.is_over() {
            let stage = *strong.stage.borrow();
            if is_out(stage)
                && let Some(hosted) = hosted.upgrade()
            {
                // Whatever the program does: the group is not to be taken for one that has this member.
                hosted.leave().await;
            }
            return;
        }
        while strong.is_member() {
            if let Some(hosted) = hosted.upgrade() {
                hosted.take_over().await;
            }
            match directory.republish().await {
                Ok(()) => {
                    is_lost = false;
                    break;
                }
                Err(error) if is_replaced(&error) => {
                    tracing::warn!(worker = %strong.name, %error, "nobody can join this group any more");
                    is_lost = false;
                    break;
                }
                Err(error) => tracing::debug!(%error, "the group's store is not back yet"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Whether the group goes on without this worker.
fn is_out(stage: WorkerStage) -> bool {
    matches!(stage, WorkerStage::Departed | WorkerStage::Evicted)
}

/// Whether another group meets where this one did.
fn is_replaced(error: &RendezvousError) -> bool {
    error.is_ended() || matches!(error, RendezvousError::OtherGroup { .. })
}

/// Ends the worker if its runtime goes first: nobody would answer any more, and no clock would run.
pub(super) async fn watch_runtime(core: Weak<Core>) {
    struct Watch(Weak<Core>);

    impl Drop for Watch {
        fn drop(&mut self) {
            if let Some(core) = self.0.upgrade()
                && !core.is_over()
            {
                core.stranded();
            }
        }
    }

    let Some(mut stage) = core.upgrade().map(|core| core.stage.subscribe()) else {
        return;
    };
    let watch = Watch(core);
    // An error: the worker is gone with all its handles.
    drop(stage.wait_for(|stage| *stage > WorkerStage::Member).await);
    drop(watch);
}

/// So long releases wait for others, or for something else that leaves and takes them along.
const GATHER: Duration = Duration::from_millis(1);

/// Does what the clock says and sends what has gathered, until the worker is gone. On the thread that no
/// program can keep from running.
pub(super) async fn run_clock(core: Weak<Core>) {
    let interval = Duration::from_secs(1);
    let mut measured = None;
    loop {
        let Some(strong) = core.upgrade() else {
            return;
        };
        strong.tick();
        // Dropped references wake the clock as often as they come; the instruments look once in a while.
        if measured.is_none_or(|at: Instant| at.elapsed() >= interval) {
            strong.measure();
            measured = Some(Instant::now());
        }
        let due = strong.next_tick();
        // Borrowed from `strong`, which must not be kept while waiting for long.
        let woken = strong.wake_clock.notified();
        match due {
            Some(at) => drop(tokio::time::timeout_at(at.into(), woken).await),
            None => drop(tokio::time::timeout(interval, woken).await),
        }
        if strong.gathers() {
            tokio::time::sleep(GATHER).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::{Context, Poll, Waker};

    use bytes::Bytes;
    use farref_proto::Membership;

    use super::*;
    use crate::rendezvous::{
        self, Card, Liveness, LivenessProbe, MemoryStore, Plan, Store, StoreFuture, StorePresence,
    };
    use crate::runtime::registry::Registry;
    use crate::support::io_thread::IoThread;
    use crate::tables::names::Names;
    use crate::worker::Worker;

    /// Its server is gone, as often as one asks, unless it is steady. It notices when it is left.
    #[derive(Debug, Default)]
    struct Gone {
        memory: MemoryStore,
        looks: AtomicUsize,
        writes: AtomicUsize,
        is_steady: AtomicBool,
        is_left: AtomicBool,
    }

    impl StorePresence for Gone {
        fn compare_set_while_here<'a>(
            &'a self,
            key: &'a str,
            expected: &'a [u8],
            desired: &'a [u8],
        ) -> StoreFuture<'a, Bytes> {
            self.compare_set(key, expected, desired)
        }

        fn settle(&self) -> StoreFuture<'_, ()> {
            Box::pin(async { Ok(()) })
        }

        fn over(&self) -> StoreFuture<'_, ()> {
            Box::pin(std::future::pending())
        }

        fn leave(&self) -> StoreFuture<'_, ()> {
            self.is_left.store(true, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        }
    }

    impl Store for Gone {
        fn lost(&self) -> StoreFuture<'_, ()> {
            let looks = self.looks.fetch_add(1, Ordering::Relaxed);
            Box::pin(async move {
                if looks > 100 || self.is_steady.load(Ordering::Relaxed) {
                    // It has been seen: do not hang.
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
        }

        fn presence(&self) -> Option<&dyn StorePresence> {
            Some(self)
        }

        fn set<'a>(&'a self, key: &'a str, value: &'a [u8]) -> StoreFuture<'a, ()> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.memory.set(key, value)
        }

        fn try_get<'a>(&'a self, key: &'a str) -> StoreFuture<'a, Option<Bytes>> {
            self.memory.try_get(key)
        }

        fn add<'a>(&'a self, key: &'a str, delta: i64) -> StoreFuture<'a, i64> {
            self.memory.add(key, delta)
        }

        fn compare_set<'a>(
            &'a self,
            key: &'a str,
            expected: &'a [u8],
            desired: &'a [u8],
        ) -> StoreFuture<'a, Bytes> {
            self.writes.fetch_add(1, Ordering::Relaxed);
            self.memory.compare_set(key, expected, desired)
        }

        fn delete<'a>(&'a self, key: &'a str) -> StoreFuture<'a, bool> {
            self.memory.delete(key)
        }

        fn wait<'a>(&'a self, keys: &'a [String], deadline: Duration) -> StoreFuture<'a, ()> {
            self.memory.wait(keys, deadline)
        }
    }

    #[derive(Debug)]
    struct Nobody;

    impl LivenessProbe for Nobody {
        fn probe<'a>(
            &'a self,
            _: &'a Card,
            _: Duration,
        ) -> Pin<Box<dyn Future<Output = Result<Liveness, RendezvousError>> + Send + 'a>> {
            Box::pin(async { Ok(Liveness::Gone) })
        }
    }

    /// A worker that still joins, and its store.
    async fn joining() -> (Arc<Core>, Arc<Gone>) {
        let store = Arc::<Gone>::default();
        let plan = Plan {
            name: "w".to_owned(),
            rank: None,
            world_size: None,
            addresses: Vec::new(),
            host: "here".to_owned(),
            timeout: Duration::from_secs(60),
            grace: Duration::ZERO,
            prefix: "group".to_owned(),
            wire: 1,
            token: None,
            certificate: None,
            probe: Arc::new(Nobody),
        };
        let entry = rendezvous::enter(store.clone(), plan)
            .await
            .expect("an entry");
        let core = Core::new(
            "w".into(),
            Worker::builder("w").settings,
            Membership::joining(entry.me.node),
            IoThread::get().expect("a thread"),
            Registry::of_program().expect("functions"),
            Names::new(Some(entry.directory)),
            1,
        );
        (core, store)
    }

    fn poll_once(task: impl Future<Output = ()>) -> Poll<()> {
        pin!(task).poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn a_worker_that_has_not_joined_looks_for_its_store_once_in_a_while() {
        let (core, store) = joining().await;
        let ended = poll_once(keep_store(Arc::downgrade(&core), Weak::new()));
        assert!(ended.is_pending(), "it may yet be a member");
        assert_eq!(store.looks.load(Ordering::Relaxed), 1);
    }

    /// S3: the store says it once.
    #[tokio::test]
    async fn a_store_that_was_lost_while_a_worker_joined_is_told_of_the_group_when_it_is_a_member()
    {
        let (core, store) = joining().await;
        let mut keeping = pin!(keep_store(Arc::downgrade(&core), Weak::new()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(keeping.as_mut().poll(&mut context).is_pending());
        assert_eq!(store.looks.load(Ordering::Relaxed), 1, "it has heard of it");
        store.is_steady.store(true, Ordering::Relaxed);
        store.writes.store(0, Ordering::Relaxed);
        core.stage.send_replace(WorkerStage::Member);
        let told = async {
            while store.writes.load(Ordering::Relaxed) == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let told = tokio::time::timeout(farref_testkit::TEST_TIMEOUT, told);
        tokio::select! {
            biased;
            () = keeping => panic!("the worker is a member"),
            told = told => told.expect("the new store knows the group"),
        }
    }

    #[tokio::test]
    async fn a_worker_that_is_out_of_its_group_keeps_no_store() {
        let (core, store) = joining().await;
        core.stage.send_replace(WorkerStage::Evicted);
        let ended = poll_once(keep_store(Arc::downgrade(&core), Weak::new()));
        assert!(ended.is_ready());
        assert!(store.looks.load(Ordering::Relaxed) <= 1);
    }

    #[tokio::test]
    async fn a_worker_that_is_out_of_its_group_leaves_the_store_whatever_its_program_does() {
        for out in [WorkerStage::Departed, WorkerStage::Evicted] {
            let (core, store) = joining().await;
            store.is_steady.store(true, Ordering::Relaxed);
            core.stage.send_replace(WorkerStage::Member);
            let directory = core.names.directory().cloned();
            let hosted = Arc::new(HostedStore::new(None, None, directory));
            let keeping = keep_store(Arc::downgrade(&core), Arc::downgrade(&hosted));
            let mut keeping = pin!(keeping);
            let mut context = Context::from_waker(Waker::noop());
            assert!(keeping.as_mut().poll(&mut context).is_pending());
            assert!(!store.is_left.load(Ordering::Relaxed));
            core.stage.send_replace(out);
            assert!(keeping.as_mut().poll(&mut context).is_ready());
            assert!(store.is_left.load(Ordering::Relaxed), "{out:?}");
        }
    }
}
