//! What is measured, the same for every system.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::task::JoinHandle;

use crate::results::{Measure, Results};
use crate::samples::Stopwatch;

/// How many tasks call at once.
const IN_FLIGHT: [(usize, Measure); 4] = [
    (1, Measure::Calls1),
    (16, Measure::Calls16),
    (256, Measure::Calls256),
    (4096, Measure::Calls4096),
];
/// How many bytes go over at once.
const PAYLOADS: [(usize, Measure); 2] =
    [(1 << 20, Measure::Send1MiB), (64 << 20, Measure::Send64MiB)];

/// The calling end of a system.
pub trait Caller {
    /// Bytes to send, as the program has them.
    type Payload;

    /// A call without arguments and result.
    async fn call(&self) -> anyhow::Result<()>;

    /// Starts a task that calls until the time is over.
    ///
    /// A method of each system only because the tasks of some may move between threads, which cannot be
    /// said of all.
    fn start(&self, turns: Turns) -> JoinHandle<anyhow::Result<u64>>;

    fn payload(bytes: Vec<u8>) -> Self::Payload;

    /// Sends bytes; the other end says how many came.
    async fn send(&self, payload: &Self::Payload) -> anyhow::Result<usize>;
}

/// For how long a task calls.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    began: Instant,
    time: Duration,
}

impl Turns {
    /// Calls until the time is over, and says how often.
    pub async fn count<F>(self, call: impl Fn() -> F) -> anyhow::Result<u64>
    where
        F: Future<Output = anyhow::Result<()>>,
    {
        let mut calls = 0;
        while calls == 0 || self.began.elapsed() < self.time {
            call().await?;
            calls += 1;
        }
        Ok(calls)
    }
}

/// Measures everything, each for a `time`.
pub async fn all<C: Caller>(caller: C, time: Duration) -> anyhow::Result<Results> {
    let mut results = Results::default();

    let mut watch = Stopwatch::start(time, 10).warm_up();
    while watch.goes_on() {
        let began = Instant::now();
        caller.call().await.context("an empty call failed")?;
        watch.record(began.elapsed());
    }
    let samples = watch.finish();
    results.set(Measure::EmptyP50, samples.percentile(50));
    results.set(Measure::EmptyP99, samples.percentile(99));

    for (tasks, measure) in IN_FLIGHT {
        let rate = pipelined(&caller, tasks, time).await;
        let rate = rate.with_context(|| format!("{tasks} calls in flight failed"))?;
        results.set(measure, rate);
    }

    for (bytes, measure) in PAYLOADS {
        let payload = C::payload(vec![7; bytes]);
        let send = async || -> anyhow::Result<Duration> {
            let began = Instant::now();
            let sent = caller.send(&payload).await;
            let sent = sent.with_context(|| format!("a call with {bytes} bytes failed"))?;
            ensure!(sent == bytes, "{bytes} bytes were sent, and {sent} came");
            Ok(began.elapsed())
        };
        send().await?;
        let mut watch = Stopwatch::start(time, 2);
        while watch.goes_on() {
            watch.record(send().await?);
        }
        let microseconds = watch.finish().percentile(50);
        results.set(measure, bytes as f64 / 1e3 / microseconds);
    }
    Ok(results)
}

/// Calls per second with so many tasks that each call again and again.
async fn pipelined<C: Caller>(caller: &C, tasks: usize, time: Duration) -> anyhow::Result<f64> {
    let turns = Turns {
        began: Instant::now(),
        time,
    };
    let tasks: Vec<_> = (0..tasks).map(|_| caller.start(turns)).collect();
    let mut calls = 0;
    for task in tasks {
        calls += task.await??;
    }
    Ok(calls as f64 / turns.began.elapsed().as_secs_f64())
}
