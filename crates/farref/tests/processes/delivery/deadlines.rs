//! D3: a deadline starts when the call is made, covers all that follows, and is handed down.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use farref::{Blob, Error, Worker};
use farref_testkit::eventually_async;

use crate::counts::{count, counted, has_counted, never_end};
use crate::functions::{add, open, until_waiting, wait_at};
use crate::group::{self, proxied};
use crate::{Options, Tests};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "a_deadline_covers_the_wait_for_room",
            a_deadline_covers_the_wait_for_room,
        ),
        (
            "a_deadline_covers_the_way_there",
            a_deadline_covers_the_way_there,
        ),
        (
            "a_deadline_covers_the_execution",
            a_deadline_covers_the_execution,
        ),
        (
            "a_deadline_covers_the_way_back",
            a_deadline_covers_the_way_back,
        ),
        (
            "nested_calls_inherit_the_time_that_is_left",
            nested_calls_inherit_the_time_that_is_left,
        ),
        (
            "the_shortest_deadline_is_a_deadline",
            the_shortest_deadline_is_a_deadline,
        ),
        ("no_deadline_is_unlimited", no_deadline_is_unlimited),
    ]
}

/// A limit of calls that are to run out of it.
const LIMIT: Duration = Duration::from_secs(1);

/// Limits of calls that are to be under way when they run out of it: the first is long enough, unless
/// the machine is busy.
fn growing_limits() -> impl Iterator<Item = Duration> {
    (0..6).map(|doublings| LIMIT * (1 << doublings))
}

/// Whether a call on `a` ran out of the time that it was given.
fn timed_out<T>(outcome: farref::Result<T>, called: &str, given: Duration) -> anyhow::Result<()> {
    match outcome {
        Err(Error::Timeout {
            peer,
            function,
            limit,
        }) => {
            ensure!(
                &*peer == "a" && function.as_str().ends_with(called),
                "{peer} {function}"
            );
            ensure!(limit == given, "{limit:?} instead of {given:?}");
            Ok(())
        }
        Ok(_) => bail!("{called} was answered"),
        Err(error) => Err(error.into()),
    }
}

/// D3: the queue.
fn a_deadline_covers_the_wait_for_room() -> anyhow::Result<()> {
    let options = Options {
        max_calls: 64,
        ..Options::default()
    };
    group::run(options, &["a"], async |group| {
        let a = group.peer("a")?;
        // After this it is known how much `a` accepts.
        add::on(&a, 1, 1).await?;
        let mut full: Vec<_> = (0..64)
            .map(|_| wait_at::on(&a, "room".to_owned()).timeout(None).start())
            .collect();
        let parked = never_end::on(&a, "parked".to_owned())
            .timeout(LIMIT)
            .start();
        let held_back = || -> usize {
            let snapshot = group.me.snapshot();
            snapshot.peers.iter().map(|peer| peer.calls_held_back).sum()
        };
        ensure!(held_back() == 1);
        timed_out(parked.await, "never_end", LIMIT)?;
        ensure!(held_back() == 0);

        full.pop();
        open::on(&a, "room".to_owned()).await?;
        for call in full {
            call.await?;
        }
        ensure!(counted::on(&a, "parked began".to_owned()).await? == 0);
        Ok(())
    })
}

#[farref::remote]
async fn measure(blob: Blob) -> usize {
    blob.len()
}

/// D3: the write.
fn a_deadline_covers_the_way_there() -> anyhow::Result<()> {
    let (proxy, options) = proxied(&["driver", "a"])?;
    group::run(options, &["a"], async |group| {
        let a = group.peer("a")?;
        add::on(&a, 1, 1).await?;
        proxy.stall();
        let small = never_end::on(&a, "stalled".to_owned())
            .timeout(LIMIT)
            .start();
        let large = measure::on(&a, vec![0; 20 << 20].into())
            .timeout(LIMIT)
            .start();
        timed_out(small.await, "never_end", LIMIT)?;
        timed_out(large.await, "measure", LIMIT)?;
        proxy.pass();
        // What was on its way has not been started, or has been stopped again.
        add::on(&a, 1, 1).await?;
        eventually_async("what began has ended", async || {
            let began = counted::on(&a, "stalled began".to_owned()).await?;
            has_counted(&a, "stalled dropped", began).await
        })
        .await
    })
}

/// D3: the execution.
fn a_deadline_covers_the_execution() -> anyhow::Result<()> {
    group::run(Options::default(), &["a"], async |group| {
        let a = group.peer("a")?;
        // The connection is made before the clock runs.
        add::on(&a, 1, 1).await?;
        let mut began = false;
        for limit in growing_limits() {
            let outcome = never_end::on(&a, "slow".to_owned()).timeout(limit).await;
            timed_out(outcome, "never_end", limit)?;
            began = has_counted(&a, "slow began", 1).await?;
            if began {
                break;
            }
        }
        ensure!(began, "it never began");
        eventually_async("it is dropped", async || {
            has_counted(&a, "slow dropped", 1).await
        })
        .await?;

        // The callee looks at its own clock: nobody cancels this one, because nobody polls it.
        for limit in growing_limits() {
            let key = format!("unwatched for {limit:?}");
            let [began, dropped] = ["began", "dropped"].map(|what| format!("{key} {what}"));
            let made = Instant::now();
            let unwatched = never_end::on(&a, key).timeout(limit).start();
            eventually_async("it is dropped", async || {
                let is_late = made.elapsed() > limit && has_counted(&a, &began, 0).await?;
                Ok(is_late || has_counted(&a, &dropped, 1).await?)
            })
            .await?;
            let is_dropped = has_counted(&a, &dropped, 1).await?;
            timed_out(unwatched.await, "never_end", limit)?;
            if is_dropped {
                return Ok(());
            }
        }
        bail!("it never began")
    })
}

#[farref::remote]
async fn blob_of(size: usize) -> Blob {
    count("blobs");
    vec![7; size].into()
}

/// D3: the answer.
fn a_deadline_covers_the_way_back() -> anyhow::Result<()> {
    let (proxy, options) = proxied(&["driver", "a"])?;
    group::run(options, &["a"], async |group| {
        let a = group.peer("a")?;
        add::on(&a, 1, 1).await?;
        proxy.stall_after(1 << 20);
        let mut ended = false;
        for limit in growing_limits() {
            let answer = blob_of::on(&a, 20 << 20).timeout(limit).await;
            timed_out(answer, "blob_of", limit)?;
            ended = counted::on(&a, "blobs".to_owned()).await? > 0;
            if ended {
                break;
            }
        }
        ensure!(ended, "the function did not end");
        proxy.pass();
        ensure!(blob_of::on(&a, 1 << 20).await?.len() == 1 << 20);
        Ok(())
    })
}

/// What nested calls were given, by key.
static LIMITS: Mutex<BTreeMap<String, Duration>> = Mutex::new(BTreeMap::new());

fn limits() -> MutexGuard<'static, BTreeMap<String, Duration>> {
    LIMITS.lock().unwrap_or_else(PoisonError::into_inner)
}

#[farref::remote]
async fn limit_of(key: String) -> Option<Duration> {
    limits().get(&key).copied()
}

/// Makes a call without a limit of its own that never ends, and returns. Notes what limit it had in
/// the end, and opens the gate of this name.
#[farref::remote]
async fn note_limit(to: String, key: String, delay: Duration) -> anyhow::Result<()> {
    let me = Worker::current().context("no worker")?;
    tokio::time::sleep(delay).await;
    let nested = never_end::on(&me.peer(&to)?, key.clone())
        .timeout(None)
        .start();
    // Outlives the function, and with it any cancellation by its caller.
    tokio::spawn(async move {
        if let Err(Error::Timeout { limit, .. }) = nested.await {
            limits().insert(key.clone(), limit);
            open(key).await;
        }
    });
    Ok(())
}

/// Has another worker note, so that time passes on two.
#[farref::remote]
async fn have_noted(by: String, to: String, key: String, delay: Duration) -> anyhow::Result<()> {
    let me = Worker::current().context("no worker")?;
    tokio::time::sleep(delay).await;
    Ok(note_limit::on(&me.peer(&by)?, to, key, delay)
        .timeout(None)
        .await?)
}

/// D3: what is left travels.
fn nested_calls_inherit_the_time_that_is_left() -> anyhow::Result<()> {
    group::run(Options::default(), &["a", "b"], async |group| {
        let (a, b) = (group.peer("a")?, group.peer("b")?);
        let (limit, delay) = (Duration::from_secs(15), Duration::from_millis(400));
        let key = |text: &str| text.to_owned();

        note_limit::on(&a, key("b"), key("once"), delay)
            .timeout(limit)
            .await?;
        have_noted::on(&b, key("a"), key("driver"), key("twice"), delay)
            .timeout(limit)
            .await?;
        for (noted, delays) in [("once", 1), ("twice", 2)] {
            wait_at::on(&a, key(noted)).await?;
            let seen = limit_of::on(&a, key(noted)).await?;
            let most = limit - delays * delay;
            ensure!(
                seen.is_some_and(|seen| seen > Duration::ZERO && seen <= most),
                "{noted}: {seen:?} of {most:?}"
            );
        }

        // Without a limit there is none to inherit: the nested call lives until its caller dies.
        note_limit::on(&a, key("b"), key("free"), Duration::ZERO)
            .timeout(None)
            .await?;
        eventually_async("it has begun", async || {
            has_counted(&b, "free began", 1).await
        })
        .await?;
        // `b` has a clock of its own.
        eventually_async("the limited one has ended", async || {
            has_counted(&b, "once dropped", 1).await
        })
        .await?;
        ensure!(has_counted(&b, "free dropped", 0).await?);
        group.kill("a")?;
        eventually_async("it ends with its caller", async || {
            has_counted(&b, "free dropped", 1).await
        })
        .await
    })
}

/// D3: 100 µs means 100 µs, and nothing at all is not for ever (E7).
fn the_shortest_deadline_is_a_deadline() -> anyhow::Result<()> {
    group::run(Options::default(), &["a"], async |group| {
        let a = group.peer("a")?;
        add::on(&a, 1, 1).await?;
        let brief = [
            Duration::from_micros(100),
            Duration::from_micros(1),
            Duration::from_nanos(1),
            Duration::ZERO,
        ];
        for limit in brief {
            let outcome = never_end::on(&a, "brief".to_owned()).timeout(limit).await;
            timed_out(outcome, "never_end", limit)?;
            // Nobody polls it, so it is the callee that ends it.
            let unwatched = never_end::on(&a, "brief".to_owned()).timeout(limit).start();
            eventually_async("the callee is done", async || {
                // The one call is that which asks.
                Ok(a.snapshot().await?.open_calls == 1)
            })
            .await?;
            timed_out(unwatched.await, "never_end", limit)?;
        }
        // What is cancelled is dropped a moment later.
        eventually_async("what began has ended", async || {
            let began = counted::on(&a, "brief began".to_owned()).await?;
            has_counted(&a, "brief dropped", began).await
        })
        .await
    })
}

#[farref::remote(timeout = "50ms")]
async fn wait_briefly_at(gate: String) -> u64 {
    wait_at(gate).await;
    7
}

/// D3: `None` is unlimited.
fn no_deadline_is_unlimited() -> anyhow::Result<()> {
    group::run(Options::default(), &["a"], async |group| {
        let a = group.peer("a")?;
        let gate = || "unlimited".to_owned();
        let unlimited = wait_briefly_at::on(&a, gate()).timeout(None).start();
        until_waiting::on(&a, gate(), 1).await?;
        // Two limits of the function's own pass meanwhile.
        for _ in 0..2 {
            let limited = wait_briefly_at::on(&a, gate()).await;
            timed_out(limited, "wait_briefly_at", Duration::from_millis(50))?;
        }
        open::on(&a, gate()).await?;
        ensure!(unlimited.await? == 7);
        Ok(())
    })
}
