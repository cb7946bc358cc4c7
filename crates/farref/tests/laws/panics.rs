//! Functions, constructors, values and their encodings that panic, wherever they can.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use farref::testing::Cluster;
use farref::{Error, RemoteError};
use farref_testkit::{TEST_TIMEOUT, eventually};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::cluster::{finish, pair};

#[track_caller]
fn panicked<T: std::fmt::Debug>(result: farref::Result<T>) -> RemoteError {
    match result {
        Err(Error::Remote(error)) if error.panicked => error,
        other => panic!("expected a panic on the other side, got {other:?}"),
    }
}

#[farref::remote]
async fn fine(n: u64) -> u64 {
    n
}

#[farref::remote]
async fn panic_at_once(text: String) {
    panic!("{text}");
}

#[farref::remote]
async fn panic_later() {
    tokio::time::sleep(Duration::from_millis(5)).await;
    std::panic::panic_any(7_u8);
}

#[farref::remote]
fn panic_on_a_thread() -> u64 {
    panic!("thread");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_function_is_a_typed_error_and_the_worker_lives_on() -> Result<()> {
    let cluster = Cluster::start_with(2, |builder| builder.blocking_threads(2)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    for peer in [&peer, &cluster.worker(0).me()] {
        for round in 0..10 {
            let text = format!("round {round}");
            let error = panicked(panic_at_once::on(peer, text.clone()).await);
            assert_eq!(error.message(), text);
            assert_eq!(
                (&*error.worker, error.function.as_str()),
                (peer.name(), "laws::panics::panic_at_once")
            );
            panicked(panic_later::on(peer).await);
            assert_eq!(
                panicked(panic_on_a_thread::on(peer).await).message(),
                "thread"
            );
        }
        assert_eq!(fine::on(peer, 1).await?, 1);
    }
    finish(cluster).await
}

static MADE: AtomicU64 = AtomicU64::new(0);

/// Panics when it is dropped, in its constructor, or in a method.
pub(crate) struct Grenade(u64);

impl Drop for Grenade {
    fn drop(&mut self) {
        MADE.fetch_sub(1, Ordering::AcqRel);
        panic!("dropped");
    }
}

#[farref::remote]
impl Grenade {
    pub(crate) fn new() -> Self {
        MADE.fetch_add(1, Ordering::AcqRel);
        Self(0)
    }

    pub(crate) async fn make_and_fail() -> Self {
        panic!("constructor");
    }

    pub(crate) fn make_on_a_thread_and_fail() -> Result<Self, String> {
        panic!("constructor");
    }

    pub(crate) async fn touch(&self) -> u64 {
        self.0
    }

    pub(crate) async fn fail_exclusively(&mut self) {
        self.0 += 1;
        panic!("method");
    }

    pub(crate) async fn linger(&self) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panicking_constructor_fails_every_use() -> Result<()> {
    let (cluster, peer) = pair().await?;
    for peer in [&peer, &cluster.worker(0).me()] {
        for grenade in [
            Grenade::make_and_fail_on(peer).remote(),
            Grenade::make_on_a_thread_and_fail_on(peer).remote(),
        ] {
            for _ in 0..2 {
                let error = panicked(grenade.touch().await);
                assert_eq!(error.message(), "constructor");
                assert!(error.function.as_str().contains("Grenade::make"), "{error}");
            }
        }
    }
    finish(cluster).await
}

/// Wherever a value is dropped, it is not by somebody whom its panic could harm.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_panics_when_dropped_harms_nobody() -> Result<()> {
    let cluster = Cluster::start_with(3, |builder| builder.blocking_threads(2)).await?;
    let me = cluster.worker(0);
    let there = me.peer("worker1")?;
    for owner in [&there, &me.me()] {
        for _ in 0..20 {
            // Freed by a message of its holder.
            let grenade = Grenade::new_on(owner).remote();
            assert_eq!(grenade.touch().await?, 0);
            panicked(grenade.fail_exclusively().await);
            // A method that panicked does not keep the next ones out.
            assert_eq!(grenade.touch().await?, 1);
            drop(grenade);
            // Freed before its constructor is done; freed while a method is at it.
            drop(Grenade::new_on(owner).remote());
            let grenade = Grenade::new_on(owner).remote();
            let lingering = grenade.linger().start();
            drop(grenade);
            drop(lingering.await);
        }
        eventually("all are freed", || MADE.load(Ordering::Acquire) == 0).await?;
        assert_eq!(fine::on(owner, 1).await?, 1);
    }
    // The connections that brought the releases stand.
    let broken = me
        .snapshot()
        .peers
        .iter()
        .filter(|peer| peer.connections > 1)
        .count();
    assert_eq!(broken, 0, "a panic broke a connection");
    finish(cluster).await
}

/// What of it panics.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) enum When {
    Written,
    Read,
    Dropped,
    ReadError,
}

pub(crate) struct Trap {
    when: When,
    armed: bool,
}

impl Serialize for Trap {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(self.when != When::Written || !self.armed, "written");
        self.when.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Trap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let when = When::deserialize(deserializer)?;
        assert!(when != When::Read, "read");
        if when == When::ReadError {
            return Err(serde::de::Error::custom("read error"));
        }
        Ok(Self { when, armed: true })
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        let trapped = self.when == When::Dropped && self.armed;
        assert!(!trapped || std::thread::panicking(), "dropped");
    }
}

fn unarmed(when: When) -> Trap {
    Trap { when, armed: false }
}

#[farref::remote]
async fn take(trap: Trap) -> u64 {
    drop(trap);
    1
}

#[farref::remote]
fn take_on_a_thread(_trap: Trap) -> u64 {
    1
}

#[farref::remote]
async fn give(when: When) -> Trap {
    Trap { when, armed: true }
}

#[farref::remote]
fn give_on_a_thread(when: When) -> Trap {
    Trap { when, armed: true }
}

#[tokio::test(flavor = "multi_thread")]
async fn encodings_and_results_that_panic_are_typed_errors() -> Result<()> {
    let cluster = Cluster::start_with(2, |builder| builder.blocking_threads(2)).await?;
    let peer = cluster.worker(0).peer("worker1")?;
    let limit = TEST_TIMEOUT;
    for _ in 0..5 {
        // Arguments.
        for (when, message) in [(When::Read, "read"), (When::Dropped, "dropped")] {
            let error = panicked(take::on(&peer, unarmed(when)).timeout(limit).await);
            assert_eq!(error.message(), message);
            let taken = take_on_a_thread::on(&peer, unarmed(when))
                .timeout(limit)
                .await;
            assert_eq!(panicked(taken).message(), message);
        }
        let refused = take::on(&peer, unarmed(When::ReadError))
            .timeout(limit)
            .await;
        assert!(matches!(refused, Err(Error::Codec { .. })), "{refused:?}");

        // Results.
        for (when, message) in [(When::Written, "written"), (When::Dropped, "dropped")] {
            for call in [give::on(&peer, when), give_on_a_thread::on(&peer, when)] {
                let error = panicked(call.timeout(limit).await.map(std::mem::forget));
                assert_eq!(error.message(), message);
            }
        }
        // Fetched.
        let left_there = give::on(&peer, When::Written).remote();
        let fetched = left_there.to_here().timeout(limit).await;
        assert_eq!(panicked(fetched.map(std::mem::forget)).message(), "written");
        drop(left_there);
        assert_eq!(fine::on(&peer, 1).await?, 1);
    }
    finish(cluster).await
}

/// What the caller's own types do in the caller's own task is the caller's affair: it panics there,
/// and nowhere else.
#[tokio::test(flavor = "multi_thread")]
async fn a_panic_of_the_callers_own_stays_with_the_caller() -> Result<()> {
    let (cluster, peer) = pair().await?;
    let to = peer.clone();
    let writing = tokio::spawn(async move {
        let trap = Trap {
            when: When::Written,
            armed: true,
        };
        take::on(&to, trap).await
    });
    assert!(writing.await.is_err_and(|error| error.is_panic()));
    let to = peer.clone();
    let reading = tokio::spawn(async move { give::on(&to, When::Read).await.map(drop) });
    assert!(reading.await.is_err_and(|error| error.is_panic()));
    assert_eq!(fine::on(&peer, 1).await?, 1);
    finish(cluster).await
}
