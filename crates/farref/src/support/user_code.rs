//! Keeping code of the program off the threads and tasks that must not wait for it.
//!
//! Serde, destructors, callbacks and functions are the program's. They may take long, block, panic, or
//! come back into this crate. What reads connections, keeps time or gives signs of life runs inside of
//! [`forbid_during`]; whatever may run code of the program asks for the place, and goes there.
//!
//! # Invariants
//!
//! - **UC-1** Inside of [`forbid_during`], and on a thread that is [reserved](reserve_thread), no code of the
//!   program runs.
//! - **UC-2** What was deferred is done in the order in which it came up, also if the worker is gone by then,
//!   and a panic in it ends nothing but itself.
//! - **UC-3** While much is deferred, peers get no credit for values that they have made here, and no answers
//!   with references to values that are here, until what was deferred by then has been begun: who has values made
//!   faster than they are dropped has to wait (D5). A destructor that waits for a call is begun, and holds up
//!   nobody behind it, be it of a value that was freed together with its own.

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;

use crate::support::blocking_pool::{BlockingPool, PoolJob};

/// What may be deferred before peers have to wait (UC-3).
pub(crate) const ENOUGH: usize = 256;

thread_local! {
    static BARRED: Cell<bool> = const { Cell::new(false) };
}

/// Does something during which this thread runs no code of the program (UC-1).
pub(crate) fn forbid_during<T>(f: impl FnOnce() -> T) -> T {
    struct Restore(bool);

    impl Drop for Restore {
        fn drop(&mut self) {
            BARRED.set(self.0);
        }
    }

    let _restore = Restore(BARRED.replace(true));
    f()
}

/// From now on this thread runs no code of the program.
pub(crate) fn reserve_thread() {
    BARRED.set(true);
}

/// Whether code of the program has to go elsewhere.
pub(crate) fn is_barred() -> bool {
    BARRED.get()
}

/// Where code of the program runs that came up in the wrong place: one thread, started when it is first
/// needed.
pub(crate) struct UserCode {
    thread: BlockingPool,
    runtime: Handle,
    /// What is put off and not begun: values one by one, also if they came together.
    waiting: Arc<AtomicUsize>,
}

impl UserCode {
    pub(crate) fn new(runtime: Handle) -> Self {
        Self {
            thread: BlockingPool::finishing(1),
            runtime,
            waiting: Arc::default(),
        }
    }

    /// How much is deferred and not begun.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Runs code of the program: here, or on the thread for it if this is not the place.
    pub(crate) fn run(&self, f: impl FnOnce() + Send + 'static) {
        if is_barred() {
            self.defer(f);
        } else {
            guarded(f);
        }
    }

    /// Runs something of which somebody says that it takes no time, also where code of the program must not run.
    pub(crate) fn run_here(&self, f: impl FnOnce()) {
        guarded(f);
    }

    /// Runs code of the program, but not now.
    pub(crate) fn defer(&self, f: impl FnOnce() + Send + 'static) {
        self.submit([f]);
    }

    /// Drops values of the program: here, or on the thread for it if this is not the place.
    pub(crate) fn drop_values<T: Send + 'static>(&self, values: Vec<T>) {
        if is_barred() {
            self.drop_later(values);
        } else {
            values.into_iter().for_each(|value| guarded(|| drop(value)));
        }
    }

    /// Drops values of the program, but not now.
    pub(crate) fn drop_later<T: Send + 'static>(&self, values: Vec<T>) {
        if !values.is_empty() {
            self.submit(values.into_iter().map(|value| move || drop(value)));
        }
    }

    /// Defers all of these together, which wakes the thread once.
    fn submit<I>(&self, all: I)
    where
        I: IntoIterator<Item: FnOnce() + Send + 'static, IntoIter: ExactSizeIterator>,
    {
        let all = all.into_iter();
        self.waiting.fetch_add(all.len(), Ordering::Relaxed);
        // A job for each: one that waits for a call holds up none of the others (UC-3).
        self.thread.submit_all(all.map(|f| -> PoolJob {
            let runtime = self.runtime.clone();
            let waiting = Arc::clone(&self.waiting);
            Box::new(move || {
                waiting.fetch_sub(1, Ordering::Relaxed);
                // Destructors may well spawn something.
                let _runtime = runtime.enter();
                guarded(f);
            })
        }));
    }
}

/// What a panic says, if it says anything.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> Option<&str> {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str))
}

/// UC-2
fn guarded(f: impl FnOnce()) {
    if catch_unwind(AssertUnwindSafe(f)).is_err() {
        tracing::error!("a destructor or a callback of the program panicked");
    }
}

impl fmt::Debug for UserCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UserCode")
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::task::JoinSet;

    use farref_testkit::{TEST_TIMEOUT, eventually};

    use super::*;
    use crate::testing::Cluster;

    #[tokio::test]
    async fn nothing_of_the_program_runs_where_it_is_barred() {
        // UC-1
        let user_code = UserCode::new(Handle::current());
        let here = std::thread::current().id();
        let (said, heard) = mpsc::channel();
        let say = |said: mpsc::Sender<_>| move || said.send(std::thread::current().id()).unwrap();
        user_code.run(say(said.clone()));
        assert_eq!(heard.recv_timeout(TEST_TIMEOUT), Ok(here));
        forbid_during(|| {
            forbid_during(|| ());
            user_code.run(say(said.clone()));
        });
        assert_ne!(heard.recv_timeout(TEST_TIMEOUT), Ok(here));
        user_code.run(say(said));
        assert_eq!(heard.recv_timeout(TEST_TIMEOUT), Ok(here), "it is over");
    }

    #[tokio::test]
    async fn what_was_deferred_keeps_its_order_and_outlives_panics() {
        // UC-2
        let user_code = UserCode::new(Handle::current());
        let (said, heard) = mpsc::channel();
        for number in 0..100 {
            let said = said.clone();
            user_code.defer(move || {
                said.send(number).unwrap();
                assert!(number % 3 > 0, "one of three panics");
            });
        }
        for number in 0..100 {
            assert_eq!(heard.recv_timeout(TEST_TIMEOUT), Ok(number));
        }
    }

    static DROPPED: AtomicUsize = AtomicUsize::new(0);

    /// Takes longer to be dropped than to be made.
    struct Sluggish;

    impl Drop for Sluggish {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(1));
            DROPPED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[farref_macros::remote]
    impl Sluggish {
        pub(crate) async fn new() -> Self {
            Self
        }
    }

    /// Makes values, several at once, and drops the references to them when they are there.
    async fn make_and_drop<T: 'static>(
        all: usize,
        make: impl Fn() -> crate::RRef<T> + Clone + Send + 'static,
    ) -> crate::Result<()> {
        const AT_ONCE: usize = 64;
        let mut makers = JoinSet::<crate::Result<()>>::new();
        for _ in 0..AT_ONCE {
            let make = make.clone();
            makers.spawn(async move {
                for _ in 0..all / AT_ONCE {
                    make().confirmed().await?;
                }
                Ok(())
            });
        }
        while let Some(made) = makers.join_next().await {
            made.expect("no panic")?;
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_peer_that_makes_values_faster_than_they_are_dropped_waits() -> crate::Result<()> {
        // UC-3
        const ALL: usize = 50 * 64;
        const WINDOW: u32 = 64;
        let cluster = Cluster::start_with(2, |it| it.max_calls_per_peer(WINDOW)).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        let makers = tokio::spawn(make_and_drop(ALL, move || Sluggish::new_on(&peer).remote()));
        let user_code = &cluster.worker(1).core.user_code;
        let mut most = 0;
        let are_dropped = || {
            most = most.max(user_code.waiting());
            DROPPED.load(Ordering::Relaxed) == ALL
        };
        eventually("all are dropped", are_dropped).await.unwrap();
        makers.await.expect("no panic")?;
        // What made it too much, and what the peer could still make.
        assert!(most <= ENOUGH + 2 * WINDOW as usize, "{most} at once");
        cluster.shutdown().await
    }

    #[farref_macros::remote]
    async fn number() -> u64 {
        7
    }

    /// Nobody has to be woken for what runs no code of the program.
    #[tokio::test]
    async fn values_without_destructors_are_dropped_where_they_are() -> crate::Result<()> {
        let cluster = Cluster::start(2).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        make_and_drop(640, move || number::on(&peer).remote()).await?;
        let owner = cluster.worker(1);
        let has_none = || owner.references().is_empty();
        eventually("all are dropped", has_none).await.unwrap();
        assert_eq!(owner.core.user_code.thread.threads(), 0);
        cluster.shutdown().await
    }

    static CLOSED: AtomicUsize = AtomicUsize::new(0);

    #[derive(serde::Serialize)]
    struct Session;

    impl Drop for Session {
        fn drop(&mut self) {
            std::thread::sleep(Duration::from_millis(1));
            CLOSED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[farref_macros::remote]
    async fn open_session() -> crate::Result<crate::RRef<Session>> {
        crate::Worker::current().expect("a worker").rref(Session)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_peer_that_is_given_references_faster_than_values_are_dropped_waits()
    -> crate::Result<()> {
        // UC-3
        const ALL: usize = 50 * 64;
        const WINDOW: u32 = 64;
        let cluster = Cluster::start_with(2, |it| it.max_calls_per_peer(WINDOW)).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        let mut askers = JoinSet::<crate::Result<()>>::new();
        for _ in 0..WINDOW {
            let peer = peer.clone();
            askers.spawn(async move {
                for _ in 0..ALL / WINDOW as usize {
                    drop(open_session::on(&peer).timeout(None).await?);
                }
                Ok(())
            });
        }
        let user_code = &cluster.worker(1).core.user_code;
        let mut most = 0;
        let are_closed = || {
            most = most.max(user_code.waiting());
            CLOSED.load(Ordering::Relaxed) == ALL
        };
        eventually("all are closed", are_closed).await.unwrap();
        while let Some(asked) = askers.join_next().await {
            asked.expect("no panic")?;
        }
        // What made it too much, and what the peer could still ask for.
        assert!(most <= ENOUGH + 3 * WINDOW as usize, "{most} at once");
        cluster.shutdown().await
    }

    #[tokio::test]
    async fn a_destructor_that_waits_holds_up_none_of_those_that_were_freed_with_it() {
        // UC-3
        enum Freed {
            Waits(mpsc::Receiver<()>, mpsc::Sender<bool>),
            IsWaitedFor(Option<mpsc::Sender<()>>),
        }

        impl Drop for Freed {
            fn drop(&mut self) {
                match self {
                    Self::Waits(other, came) => {
                        let _waiting = crate::support::blocking_pool::BlockedThread::begin();
                        let in_time = other.recv_timeout(TEST_TIMEOUT / 4).is_ok();
                        came.send(in_time).expect("somebody listens");
                    }
                    Self::IsWaitedFor(other) => {
                        other.take().expect("once").send(()).expect("it waits");
                    }
                }
            }
        }

        let user_code = UserCode::new(Handle::current());
        let (says, other) = mpsc::channel();
        let (came, result) = mpsc::channel();
        let freed = vec![Freed::Waits(other, came), Freed::IsWaitedFor(Some(says))];
        forbid_during(|| user_code.drop_values(freed));
        assert_eq!(result.recv_timeout(TEST_TIMEOUT), Ok(true));
    }

    static ASKED: AtomicUsize = AtomicUsize::new(0);

    /// Its destructor asks the worker that made it, which has to make something here for an answer.
    struct Inquisitive(crate::Peer);

    impl Drop for Inquisitive {
        fn drop(&mut self) {
            // It may also be a task that lets go of it last.
            let ask = || ask_back::on(&self.0).timeout(TEST_TIMEOUT).wait();
            let answer = tokio::task::block_in_place(ask);
            assert_eq!(answer.expect("an answer"), 7);
            ASKED.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[farref_macros::remote]
    impl Inquisitive {
        pub(crate) async fn new() -> Self {
            Self(crate::Worker::caller().expect("a caller"))
        }
    }

    #[farref_macros::remote]
    async fn seven() -> u64 {
        7
    }

    #[farref_macros::remote]
    async fn ask_back() -> crate::Result<u64> {
        let asker = crate::Worker::caller().expect("a caller");
        seven::on(&asker).remote().to_here().await
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn destructors_that_wait_for_calls_are_not_what_they_wait_for() -> crate::Result<()> {
        // UC-3
        const ALL: usize = 3 * ENOUGH;
        let cluster = Cluster::start_with(2, |it| it.max_calls_per_peer(64)).await?;
        let peer = cluster.worker(0).peer("worker1")?;
        make_and_drop(ALL, move || Inquisitive::new_on(&peer).remote()).await?;
        let have_asked = || ASKED.load(Ordering::Relaxed) == ALL;
        eventually("all have asked", have_asked).await.unwrap();
        cluster.shutdown().await
    }
}
