//! What calls and references cost between two processes, beside bare sockets in the same run.
//!
//! `cargo bench -p farref --bench calls` prints a table of medians and ratios. With `--test` every
//! measurement is made only a few times, to see that it works.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use farref::{Blob, Peer, RRef, Worker};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const ROLE: &str = "FARREF_BENCH_ROLE";

#[farref::remote]
async fn nothing() {}

#[farref::remote(inline)]
async fn nothing_inline() {}

#[farref::remote]
fn nothing_blocking() {}

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

fn main() -> anyhow::Result<()> {
    let role = std::env::var(ROLE).unwrap_or_default();
    match role.as_str() {
        "" => drive(),
        "tcp" | "unix" => worker(&role),
        socket => echo(socket),
    }
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?)
}

/// A worker that serves until the group ends.
fn worker(transport: &str) -> anyhow::Result<()> {
    runtime()?.block_on(async {
        let builder = Worker::from_env().shutdown_timeout(Duration::from_secs(600));
        let me = builder.unix_sockets(transport == "unix").join().await?;
        Ok(me.shutdown().await?)
    })
}

/// The other end of a bare socket: sends everything back, or, told so by the first byte, swallows 64
/// MiB at a time and says so with one byte.
fn echo(socket: &str) -> anyhow::Result<()> {
    if let Some(port) = socket.strip_prefix("bare-tcp:") {
        let port: u16 = port.parse()?;
        return runtime()?.block_on(async {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await?;
            stream.set_nodelay(true)?;
            let mut buffer = [0; 64];
            while stream.read_exact(&mut buffer).await.is_ok() {
                stream.write_all(&buffer).await?;
            }
            Ok(())
        });
    }
    if let Some(path) = socket.strip_prefix("bare-unix:") {
        let mut stream = UnixStream::connect(path)?;
        let mut buffer = [0; 64];
        while stream.read_exact(&mut buffer).is_ok() {
            stream.write_all(&buffer)?;
        }
        return Ok(());
    }
    let port: u16 = socket
        .strip_prefix("bare-sink:")
        .context("an unknown role")?
        .parse()?;
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port))?;
    let mut buffer = vec![0; BULK];
    while stream.read_exact(&mut buffer).is_ok() {
        stream.write_all(&[1])?;
    }
    Ok(())
}

const BULK: usize = 64 << 20;

struct Plan {
    latency: usize,
    pipelined: usize,
    bulk: usize,
}

struct Row {
    what: &'static str,
    value: f64,
    unit: &'static str,
    ratio: String,
}

fn drive() -> anyhow::Result<()> {
    let smoke = std::env::args().any(|argument| argument == "--test");
    let plan = if smoke {
        Plan {
            latency: 50,
            pipelined: 500,
            bulk: 1,
        }
    } else {
        Plan {
            latency: 20_000,
            pipelined: 300_000,
            bulk: 20,
        }
    };
    let bare_tcp = bare_tcp(&plan)?;
    let bare_unix = bare_unix(&plan)?;
    let bare_bulk = bare_bulk(&plan)?;
    let mut rows = vec![
        row(
            "bare tokio TCP ping-pong, p50",
            bare_tcp,
            "us",
            String::new(),
        ),
        row(
            "bare blocking Unix ping-pong, p50",
            bare_unix,
            "us",
            String::new(),
        ),
        row("bare TCP socket, 64 MiB", bare_bulk, "GB/s", String::new()),
    ];
    for transport in ["tcp", "unix"] {
        let measured = measured(transport, &plan)?;
        let (name, bare) = match transport {
            "tcp" => ("bare tokio TCP", bare_tcp),
            _ => ("bare blocking Unix", bare_unix),
        };
        let against = |value: f64| format!("{:.2} x {name}", value / bare);
        let empty = measured.empty;
        let calls = |value: f64| format!("{:.2} x an empty call", value / empty);
        let (tcp, labels) = (transport == "tcp", LABELS);
        let label = |index: usize| {
            if tcp {
                labels[index].0
            } else {
                labels[index].1
            }
        };
        rows.push(row(label(0), empty, "us", against(empty)));
        rows.push(row(
            label(1),
            measured.inline,
            "us",
            against(measured.inline),
        ));
        rows.push(row(
            label(2),
            measured.blocking,
            "us",
            against(measured.blocking),
        ));
        rows.push(row(label(3), measured.pipelined, "calls/s", String::new()));
        rows.push(row(label(4), measured.handed, "us", calls(measured.handed)));
        rows.push(row(
            label(5),
            measured.created,
            "us",
            calls(measured.created),
        ));
        let ratio = format!("{:.2} x a bare TCP socket", measured.bulk / bare_bulk);
        rows.push(row(label(6), measured.bulk, "GB/s", ratio));
    }
    println!("{:<44} {:>12} {:<8} ratio", "what", "measured", "");
    for Row {
        what,
        value,
        unit,
        ratio,
    } in rows
    {
        println!("{what:<44} {value:>12.2} {unit:<8} {ratio}");
    }
    Ok(())
}

const LABELS: [(&str, &str); 7] = [
    ("empty call, tcp, p50", "empty call, unix, p50"),
    (
        "empty inline call, tcp, p50",
        "empty inline call, unix, p50",
    ),
    ("empty plain fn, tcp, p50", "empty plain fn, unix, p50"),
    ("pipelined empty calls, tcp", "pipelined empty calls, unix"),
    (
        "hand a reference over, tcp, p50",
        "hand a reference over, unix, p50",
    ),
    (
        "create, fetch, drop a reference, tcp, p50",
        "create, fetch, drop a reference, unix, p50",
    ),
    ("64 MiB blob, tcp", "64 MiB blob, unix"),
];

fn row(what: &'static str, value: f64, unit: &'static str, ratio: String) -> Row {
    Row {
        what,
        value,
        unit,
        ratio,
    }
}

/// What farref needs, in microseconds, calls per second and GB/s.
struct Measured {
    empty: f64,
    inline: f64,
    blocking: f64,
    pipelined: f64,
    handed: f64,
    created: f64,
    bulk: f64,
}

fn measured(transport: &str, plan: &Plan) -> anyhow::Result<Measured> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?
        .local_addr()?
        .port();
    let child = Command::new(std::env::current_exe()?)
        .env(ROLE, transport)
        .env("FARREF_NAME", "other")
        .env("RANK", "1")
        .env("WORLD_SIZE", "2")
        .env("MASTER_ADDR", "127.0.0.1")
        .env("MASTER_PORT", port.to_string())
        .spawn()?;
    let child = Guard(child);
    let measured = runtime()?.block_on(async {
        let me = Worker::builder("driver")
            .rank(0)
            .world_size(2)
            .rendezvous(&format!("tcp://127.0.0.1:{port}"))
            .unix_sockets(transport == "unix")
            .join()
            .await?;
        let peer = me.peer("other")?;
        // On a task, as a program's calls are.
        let measured = tokio::spawn(measure(me.clone(), peer, Plan { ..*plan })).await??;
        me.shutdown().await?;
        anyhow::Ok(measured)
    })?;
    drop(child);
    Ok(measured)
}

async fn measure(me: Worker, peer: Peer, plan: Plan) -> anyhow::Result<Measured> {
    let empty = p50(plan.latency, || done(nothing::on(&peer))).await?;
    let inline = p50(plan.latency, || done(nothing_inline::on(&peer))).await?;
    let blocking = p50(plan.latency / 4, || done(nothing_blocking::on(&peer))).await?;
    let held = me.rref(1_u64)?;
    let handed = p50(plan.latency, || done(take::on(&peer, held.clone()))).await?;
    drop(held);
    let created = p50(plan.latency, || {
        let call = one::on(&peer);
        async move {
            let far = call.remote();
            ensure!(far.to_here().await? == 1);
            Ok(())
        }
    })
    .await?;

    let began = Instant::now();
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (peer, calls) = (peer.clone(), plan.pipelined / 64);
            tokio::spawn(async move {
                for _ in 0..calls {
                    nothing_inline::on(&peer).await?;
                }
                anyhow::Ok(calls)
            })
        })
        .collect();
    let mut calls = 0;
    for task in tasks {
        calls += task.await??;
    }
    let pipelined = calls as f64 / began.elapsed().as_secs_f64();

    let blob = Blob::from(vec![7; BULK]);
    ensure!(swallow::on(&peer, blob.clone()).await? == BULK);
    let mut times = Vec::new();
    for _ in 0..plan.bulk {
        let began = Instant::now();
        ensure!(swallow::on(&peer, blob.clone()).await? == BULK);
        times.push(began.elapsed());
    }
    Ok(Measured {
        empty,
        inline,
        blocking,
        pipelined,
        handed,
        created,
        bulk: gigabytes(times),
    })
}

async fn done(call: farref::Call<()>) -> anyhow::Result<()> {
    Ok(call.await?)
}

/// The median time of something, in microseconds.
async fn p50<F: Future<Output = anyhow::Result<()>>>(
    times: usize,
    something: impl Fn() -> F,
) -> anyhow::Result<f64> {
    let mut measured = Vec::with_capacity(times);
    for _ in 0..times / 10 {
        something().await?;
    }
    for _ in 0..times {
        let began = Instant::now();
        something().await?;
        measured.push(began.elapsed());
    }
    Ok(median(measured))
}

fn median(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    times[times.len() / 2].as_secs_f64() * 1e6
}

fn gigabytes(mut times: Vec<Duration>) -> f64 {
    times.sort_unstable();
    BULK as f64 / 1e9 / times[times.len() / 2].as_secs_f64()
}

fn bare_tcp(plan: &Plan) -> anyhow::Result<f64> {
    runtime()?.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let _child = child(&format!("bare-tcp:{}", listener.local_addr()?.port()))?;
        let (mut stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        let latency = plan.latency;
        tokio::spawn(async move {
            let mut buffer = [0; 64];
            let mut times = Vec::with_capacity(latency);
            for _ in 0..latency {
                let began = Instant::now();
                stream.write_all(&buffer).await?;
                stream.read_exact(&mut buffer).await?;
                times.push(began.elapsed());
            }
            anyhow::Ok(median(times))
        })
        .await?
    })
}

fn bare_unix(plan: &Plan) -> anyhow::Result<f64> {
    let path = std::env::temp_dir().join(format!("farref-bench-{}", std::process::id()));
    let listener = UnixListener::bind(&path)?;
    let _child = child(&format!("bare-unix:{}", path.display()))?;
    let (mut stream, _) = listener.accept()?;
    std::fs::remove_file(&path)?;
    let mut buffer = [0; 64];
    let mut times = Vec::with_capacity(plan.latency);
    for _ in 0..plan.latency {
        let began = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        times.push(began.elapsed());
    }
    Ok(median(times))
}

fn bare_bulk(plan: &Plan) -> anyhow::Result<f64> {
    let listener = std::net::TcpListener::bind("127.0.0.1:0")?;
    let _child = child(&format!("bare-sink:{}", listener.local_addr()?.port()))?;
    let (mut stream, _) = listener.accept()?;
    let bytes = vec![7; BULK];
    let mut times = Vec::new();
    for _ in 0..=plan.bulk {
        let began = Instant::now();
        stream.write_all(&bytes)?;
        stream.read_exact(&mut [0])?;
        times.push(began.elapsed());
    }
    Ok(gigabytes(times))
}

fn child(role: &str) -> anyhow::Result<Guard> {
    let child = Command::new(std::env::current_exe()?)
        .env(ROLE, role)
        .spawn()?;
    Ok(Guard(child))
}

struct Guard(Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
