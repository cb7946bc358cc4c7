//! What farref does: calls and references between two workers.

use std::time::{Duration, Instant};

use anyhow::ensure;
use farref::{Blob, Call, Peer, RRef, StoreServer, Worker, WorkerBuilder};

use super::report::progress;
use super::role::{PATIENCE, Role};
use super::samples::{BULK, Samples, Stopwatch};
use super::transport::Transport;

/// How many tasks call at once.
const TASKS: usize = 64;

#[farref::remote]
async fn nothing() {}

/// Not `async`: runs on a thread for blocking calls.
#[farref::remote]
fn nothing_plain() {}

#[farref::remote]
async fn swallow(blob: Blob) -> usize {
    blob.len()
}

#[farref::remote]
async fn one() -> u64 {
    1
}

#[farref::remote]
async fn take(_: RRef<u64>) {}

/// What was measured over one transport.
#[derive(Debug)]
pub(super) struct Measured {
    pub(super) empty: Samples,
    pub(super) plain: Samples,
    pub(super) handed_on: Samples,
    pub(super) created: Samples,
    /// Calls per second.
    pub(super) pipelined: f64,
    pub(super) bulk: Samples,
}

fn worker(name: &str, rank: u32, transport: Transport, port: u16) -> WorkerBuilder {
    Worker::builder(name)
        .rank(rank)
        .world_size(2)
        .rendezvous(&format!("tcp://127.0.0.1:{port}"))
        .store_is_hosted_elsewhere()
        .join_timeout(PATIENCE)
        .unix_sockets(transport == Transport::Unix)
}

/// The other worker: serves until the group ends.
pub(super) async fn serve(transport: Transport, port: u16) -> anyhow::Result<()> {
    let me = worker("other", 1, transport, port).join().await?;
    Ok(me.serve().await?)
}

pub(super) async fn measure(transport: Transport, time: Duration) -> anyhow::Result<Measured> {
    let store = StoreServer::bind("127.0.0.1:0").await?;
    let port = store.local_addr().port();
    let other = Role::Worker(transport, port).start()?;
    let me = worker("driver", 0, transport, port).join().await?;
    let peer = me.peer("other")?;
    // On a task, as a program's calls are.
    let measured = tokio::spawn(measure_all(me.clone(), peer, transport, time)).await??;
    me.shutdown().await?;
    drop(other);
    store.close().await;
    Ok(measured)
}

async fn measure_all(
    me: Worker,
    peer: Peer,
    transport: Transport,
    time: Duration,
) -> anyhow::Result<Measured> {
    let say = |what: &str| progress(&format!("farref over {}: {what}", transport.name()));
    say("empty calls");
    let empty = repeat(time, || done(nothing::on(&peer))).await?;
    say("empty calls of a plain fn");
    let plain = repeat(time, || done(nothing_plain::on(&peer))).await?;
    say("a reference handed on");
    let held = me.rref(1_u64)?;
    let handed_on = repeat(time, || done(take::on(&peer, held.clone()))).await?;
    drop(held);
    say("a reference created, fetched and dropped");
    let created = repeat(time, || {
        let call = one::on(&peer);
        async move {
            let far = call.remote();
            ensure!(far.to_here().await? == 1);
            Ok(())
        }
    })
    .await?;
    say("many calls at once");
    let pipelined = pipelined(&peer, time).await?;
    say("64 MiB");
    let blob = Blob::from(vec![7; BULK]);
    let send = async || -> anyhow::Result<Duration> {
        let began = Instant::now();
        ensure!(swallow::on(&peer, blob.clone()).await? == BULK);
        Ok(began.elapsed())
    };
    send().await?;
    let mut watch = Stopwatch::start(time, 2);
    while watch.goes_on() {
        watch.record(send().await?);
    }
    Ok(Measured {
        empty,
        plain,
        handed_on,
        created,
        pipelined,
        bulk: watch.finish(),
    })
}

async fn done(call: Call<()>) -> anyhow::Result<()> {
    Ok(call.await?)
}

async fn repeat<F: Future<Output = anyhow::Result<()>>>(
    time: Duration,
    something: impl Fn() -> F,
) -> anyhow::Result<Samples> {
    let mut watch = Stopwatch::start(time, 10).warm_up();
    while watch.goes_on() {
        let began = Instant::now();
        something().await?;
        watch.record(began.elapsed());
    }
    Ok(watch.finish())
}

async fn pipelined(peer: &Peer, time: Duration) -> anyhow::Result<f64> {
    let began = Instant::now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let peer = peer.clone();
            tokio::spawn(async move {
                let mut calls = 0_u64;
                while calls == 0 || began.elapsed() < time {
                    nothing::on(&peer).await?;
                    calls += 1;
                }
                anyhow::Ok(calls)
            })
        })
        .collect();
    let mut calls = 0;
    for task in tasks {
        calls += task.await??;
    }
    Ok(calls as f64 / began.elapsed().as_secs_f64())
}
