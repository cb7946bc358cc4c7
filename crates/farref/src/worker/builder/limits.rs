//! Settings of calls and of the end: time limits, threads, how much may be under way at once.

use std::time::Duration;

use super::{NEVER, WorkerBuilder};

impl WorkerBuilder {
    /// The time limit of calls that set none. 60 s by default; `None` is unlimited.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn hang() {
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let short = Duration::from_millis(20);
    /// let cluster = Cluster::start_with(2, |builder| builder.call_timeout(short)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert!(matches!(hang::on(&peer).await, Err(Error::Timeout { limit, .. }) if limit == short));
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn call_timeout(mut self, limit: impl Into<Option<Duration>>) -> Self {
        self.settings.call_timeout = limit.into();
        self
    }

    /// How long a graceful shutdown may take once all workers have asked for it or only serve: however long
    /// others work, they are waited for. It is also the limit of [`Worker::leave`](crate::Worker::leave). 60 s by default.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn hang() {
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let short = Duration::from_secs(1);
    /// let cluster = Cluster::start_with(2, |builder| builder.shutdown_timeout(short)).await?;
    /// let [me, other] = [cluster.worker(0), cluster.worker(1)];
    /// let pending = hang::on(&me.peer("worker1")?).timeout(None).start();
    ///
    /// // Both want to end, but a call never returns. Who gives up first is as dead to the other as if it had
    /// // crashed.
    /// let (mine, others) = tokio::join!(me.shutdown(), other.shutdown());
    /// assert!(matches!(mine.and(others), Err(Error::ShutdownTimeout { .. })));
    /// # drop(pending);
    /// # Ok(())
    /// # }
    /// ```
    pub fn shutdown_timeout(mut self, timeout: Duration) -> Self {
        self.settings.shutdown_timeout = timeout.min(NEVER);
        self
    }

    /// How long references may outlive everything else in a shutdown before they are reported and
    /// released. 1 s by default, and the same on all workers. It begins when the names have gone that references are
    /// [published](crate::Worker::publish) under, on all workers: 1 to 2 s after everything else.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let none = Duration::ZERO;
    /// let cluster = Cluster::start_with(1, |builder| builder.leak_grace(none)).await?;
    /// let kept = cluster.worker(0).rref(7)?;
    /// assert!(matches!(cluster.shutdown().await, Err(Error::Leaked(_))));
    /// # drop(kept);
    /// # Ok(())
    /// # }
    /// ```
    pub fn leak_grace(mut self, grace: Duration) -> Self {
        self.settings.leak_grace = grace.min(NEVER);
        self
    }

    /// Makes references that were never dropped an error of the shutdown, instead of a warning.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// // Clusters for tests do; here is one that does not.
    /// let cluster = Cluster::start_with(1, |builder| builder.fail_on_leaks(false)).await?;
    /// let kept = cluster.worker(0).rref(7)?;
    /// cluster.shutdown().await?; // logs a warning
    /// # drop(kept);
    /// # Ok(())
    /// # }
    /// ```
    pub fn fail_on_leaks(mut self, fail: bool) -> Self {
        self.settings.fail_on_leaks = fail;
        self
    }

    /// How many plain functions may run at once. Those that wait for calls of their own do not count.
    /// 64 by default.
    ///
    /// ```
    /// use farref::Worker;
    /// use farref::testing::Cluster;
    ///
    /// // Runs on a thread, and waits for the next one.
    /// #[farref::remote]
    /// fn sum_to(n: u64) -> farref::Result<u64> {
    ///     let me = Worker::current().expect("inside of a remote function").me();
    ///     if n == 0 { Ok(0) } else { Ok(n + sum_to::on(&me, n - 1).wait()?) }
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start_with(2, |builder| builder.blocking_threads(1)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    /// assert_eq!(sum_to::on(&peer, 10).await?, 55);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn blocking_threads(mut self, threads: usize) -> Self {
        self.settings.blocking_threads = threads;
        self
    }

    /// How many calls of one peer are accepted at once; it holds back the others. 16,384 by default, at
    /// least 64.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn square(x: u64) -> u64 {
    ///     x * x
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let cluster = Cluster::start_with(2, |builder| builder.max_calls_per_peer(64)).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// // The caller need not know: the others go out as answers come in.
    /// let pending: Vec<_> = (0..500).map(|x| square::on(&peer, x).start()).collect();
    /// for (x, square) in (0..).zip(pending) {
    ///     assert_eq!(square.await?, x * x);
    /// }
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_calls_per_peer(mut self, calls: u32) -> Self {
        self.settings.max_calls = calls.max(64);
        self
    }

    /// How many calls to one peer may wait on this worker because the peer has as many as it
    /// [accepts](Self::max_calls_per_peer). 262,144 by default, and 1 GiB of arguments.
    ///
    /// A call beyond that which is awaited waits before it is made. One that is started, or whose result
    /// is to stay there, cannot wait and fails with [`Error::TooManyCalls`](crate::Error::TooManyCalls): the program makes calls far
    /// quicker than they are carried out, and is to await some before it makes more.
    ///
    /// ```
    /// use farref::Error;
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn ever() {
    ///     std::future::pending().await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let narrow =
    ///     |builder: farref::WorkerBuilder| builder.max_calls_per_peer(64).max_waiting_calls_per_peer(10);
    /// let cluster = Cluster::start_with(2, narrow).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// let pending: Vec<_> = (0..64 + 10).map(|_| ever::on(&peer).start()).collect();
    /// let refused = ever::on(&peer).start().await;
    /// assert!(matches!(refused, Err(Error::TooManyCalls { .. })));
    /// drop(pending);
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_waiting_calls_per_peer(mut self, calls: usize) -> Self {
        self.settings.max_parked_calls = calls;
        self
    }

    /// How many bytes of answers to one peer may be under way: made, and not yet received by it. 256 MiB
    /// by default.
    ///
    /// A function whose answers are large (over 4 KiB, by what it returned before) starts only when
    /// there is room for one more of them; its calls wait meanwhile, in order, and can be cancelled. So a
    /// caller that reads slowly, or not at all, does not fill this worker's memory. One answer always
    /// passes, however large it is. Raise it where one peer makes many calls at once that take long and
    /// return much.
    ///
    /// ```
    /// use farref::testing::Cluster;
    ///
    /// #[farref::remote]
    /// async fn page(number: u64) -> String {
    ///     format!("{number:08192}")
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> farref::Result<()> {
    /// let narrow = |builder: farref::WorkerBuilder| builder.max_answer_bytes_per_peer(1 << 20);
    /// let cluster = Cluster::start_with(2, narrow).await?;
    /// let peer = cluster.worker(0).peer("worker1")?;
    ///
    /// // The caller need not know: `worker1` makes the pages as they are taken.
    /// let pending: Vec<_> = (0..100).map(|number| page::on(&peer, number).start()).collect();
    /// for (number, page) in (0..).zip(pending) {
    ///     assert_eq!(page.await?.parse(), Ok(number));
    /// }
    /// # cluster.shutdown().await
    /// # }
    /// ```
    pub fn max_answer_bytes_per_peer(mut self, bytes: u64) -> Self {
        self.settings.max_answer_bytes = bytes;
        self
    }
}
