//! The peer: a Rust worker in a PyTorch group. What it serves is told in `../python/README.md`.

mod autograd;
mod calls;
mod generic;
mod objects;
mod references;
mod values;

use std::time::Duration;

use anyhow::{Context, Result};
use farref::Worker;
use farref_torch::{TorchGroup, py_call};
use serde_json::json;
use tokio::sync::watch;

/// How the peer is to leave, once somebody has told it to.
static STOPPING: std::sync::LazyLock<watch::Sender<Option<Stop>>> =
    std::sync::LazyLock::new(|| watch::Sender::new(None));

#[derive(Clone)]
struct Stop {
    graceful: bool,
    /// Who dies meanwhile.
    dead: Option<String>,
}

#[derive(Clone)]
struct Options {
    name: String,
    rank: u16,
    world: Option<u16>,
    master: (String, u16),
    prefix: u32,
    first_barrier: u64,
    start_when: Option<String>,
    /// Written when it begins to join.
    then: Option<String>,
    /// It is not told to stop, but ends a moment after this file is there.
    end_when: Option<String>,
    /// Written when it begins to end.
    end_then: Option<String>,
    /// How often it joins and leaves, each time as somebody else.
    lives: u16,
    /// It is a worker of a program of `../tutorials`: nobody tells it to stop, it ends when all others do.
    of_program: bool,
    max_calls: Option<u32>,
    /// Written when it has waited for the others at the end and given up, before it begins again.
    impatient: Option<String>,
}

fn options() -> Result<Options> {
    let mut options = Options {
        name: "rust".to_owned(),
        rank: 0,
        world: None,
        master: ("127.0.0.1".to_owned(), 29500),
        prefix: 0,
        first_barrier: 1,
        start_when: None,
        then: None,
        end_when: None,
        end_then: None,
        lives: 0,
        of_program: false,
        max_calls: None,
        impatient: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments
            .next()
            .with_context(|| format!("{argument} needs a value"))?;
        match &argument[..] {
            "--name" => options.name = value,
            "--rank" => options.rank = value.parse()?,
            "--world" => options.world = value.parse().ok(),
            "--master" => {
                let (host, port) = value.rsplit_once(':').context("host:port")?;
                let host = host.trim_start_matches('[').trim_end_matches(']');
                options.master = (host.to_owned(), port.parse()?);
            }
            "--prefix" => options.prefix = value.parse()?,
            "--first-barrier" => options.first_barrier = value.parse()?,
            "--max-calls" => options.max_calls = Some(value.parse()?),
            "--impatient" => options.impatient = Some(value),
            "--start-when" => options.start_when = Some(value),
            "--then" => options.then = Some(value),
            "--end-when" => options.end_when = Some(value),
            "--end-then" => options.end_then = Some(value),
            "--lives" => options.lives = value.parse()?,
            "--program" => options.of_program = true,
            "--transports" => {}
            other => anyhow::bail!("{other} is no argument of the peer"),
        }
    }
    Ok(options)
}

/// What a process does that is a peer.
pub(crate) fn run() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let options = options()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let name = options.name.clone();
    let outcome = runtime.block_on(async {
        let lived = tokio::time::timeout(LIFETIME, live(options)).await;
        lived.context("the peer hangs")?
    });
    let line = match &outcome {
        Ok(debug) => json!({"peer": name, "ok": true, "debug": debug}),
        Err(error) => json!({"peer": name, "ok": false, "error": format!("{error:#}")}),
    };
    println!("{line}");
    outcome.map(drop)
}

async fn live(options: Options) -> Result<serde_json::Value> {
    if options.lives == 0 {
        return live_once(options).await;
    }
    for life in 0..options.lives {
        STOPPING.send_replace(None);
        let with_number = |text: &String| format!("{text}_{life}");
        let options = Options {
            name: with_number(&options.name),
            rank: options.rank + life,
            start_when: options.start_when.as_ref().map(with_number),
            ..options.clone()
        };
        let name = options.name.clone();
        live_once(options).await.with_context(|| name)?;
    }
    Ok(serde_json::Value::Null)
}

async fn live_once(options: Options) -> Result<serde_json::Value> {
    wait_for_file(options.start_when.as_deref()).await;
    if options.then.is_some() && options.start_when.is_some() {
        tokio::time::sleep(MOMENT).await;
    }
    let_go(options.then.as_deref())?;
    let (host, port) = options.master;
    let mut group = TorchGroup::new(&options.name)
        .master(host, port)
        .rank(options.rank)
        .groups_before(options.prefix)
        .rounds_before(options.first_barrier - 1);
    group = match options.world {
        Some(world) => group.world_size(world),
        None => group.dynamic(),
    };
    if let Some(calls) = options.max_calls {
        group = group.worker(|worker| worker.max_calls_per_peer(calls));
    }
    let worker = group.join().await.context("joining")?;
    if options.of_program {
        worker.serve().await.context("serving")?;
        return Ok(serde_json::Value::Null);
    }
    let mut dead = None;
    if options.end_when.is_some() {
        wait_for_file(options.end_when.as_deref()).await;
        tokio::time::sleep(MOMENT).await;
        for peer in worker.peers().iter().filter(|peer| !peer.is_me()) {
            let name = worker.name().to_owned();
            let back: String = py_call(peer, "worker_api.echo", (name.clone(),)).await?;
            anyhow::ensure!(back == name, "{} answers {back}", peer.name());
        }
        let_go(options.end_then.as_deref())?;
    } else {
        let mut stopping = STOPPING.subscribe();
        let stop = stopping.wait_for(Option::is_some).await?.clone();
        let stop = stop.context("nobody has said how")?;
        // The one who asked gets the answer first.
        tokio::time::sleep(Duration::from_millis(100)).await;
        if !stop.graceful {
            worker.crash().await;
            return Ok(serde_json::Value::Null);
        }
        dead = stop.dead;
    }
    references::drop_all();
    let mut debug = serde_json::to_value(calls::snapshot_of(&worker))?;
    let peers = worker.snapshot().peers;
    let from_memory: u64 = peers.iter().map(|peer| peer.bytes_from_memory).sum();
    debug["bytes_from_memory"] = from_memory.into();
    if options.world.is_none() && options.rank == 0 {
        while worker.peers().len() > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    if options.impatient.is_some() {
        // The others do not leave before it has given up, so it does in any case.
        let given_up = tokio::time::timeout(MOMENT, worker.shutdown()).await;
        anyhow::ensure!(given_up.is_err(), "nobody was to be waited for");
        let_go(options.impatient.as_deref())?;
        let (serving, ended) = tokio::join!(worker.serve(), worker.shutdown());
        serving.context("serving")?;
        ended.context("shutting down, at the same time")?;
        return Ok(debug);
    }
    let ended = worker.shutdown().await;
    let Some(dead) = dead else {
        ended.context("shutting down")?;
        return Ok(debug);
    };
    let error = ended
        .err()
        .context("a graceful end without one that died")?;
    let named = format!("worker `{dead}` is gone");
    anyhow::ensure!(error.to_string().contains(&named), "not {named:?}: {error}");
    Ok(debug)
}

/// No peer lives longer. The scripts have the same limit.
const LIFETIME: Duration = Duration::from_secs(5 * farref_testkit::TEST_TIMEOUT.as_secs());

/// How long after the one before it a worker comes that has its turn, so that the other waits
/// already; no event shows that it does. A worker that comes too early makes another order of it,
/// which ends in the same way.
const MOMENT: Duration = Duration::from_millis(500);

async fn wait_for_file(path: Option<&str>) {
    while path.is_some_and(|path| !std::path::Path::new(path).exists()) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// It is another one's turn.
fn let_go(path: Option<&str>) -> Result<()> {
    path.map_or(Ok(()), |path| Ok(std::fs::write(path, "")?))
}

/// The worker that a remote function runs on.
fn me() -> Worker {
    Worker::current().expect("only remote functions ask")
}

/// The peer begins to leave.
#[farref::remote(python = "peer_api.stop")]
async fn stop(graceful: Option<bool>, dead: Option<String>) {
    let graceful = graceful.unwrap_or(true);
    STOPPING.send_replace(Some(Stop { graceful, dead }));
}
