//! What bare sockets do: the baseline.
//!
//! TCP is measured with tokio at both ends, as an asynchronous program would use it; Unix sockets with
//! blocking calls, which is the fastest that two processes can talk through a socket.

use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::timeout;

use super::report::progress;
use super::role::{Guard, PATIENCE, PING, Role};
use super::samples::{BULK, Samples, Stopwatch};
use super::transport::Transport;

pub(super) async fn tcp_ping_pong(time: Duration) -> anyhow::Result<Samples> {
    progress("a bare tcp socket: ping-pong");
    let (mut stream, _peer) = tcp(Role::TcpEcho).await?;
    stream.set_nodelay(true)?;
    // On a task, as a program's calls are.
    let measured = tokio::spawn(async move {
        let mut buffer = [0; PING];
        let mut watch = Stopwatch::start(time, 10).warm_up();
        while watch.goes_on() {
            let began = Instant::now();
            stream.write_all(&buffer).await?;
            stream.read_exact(&mut buffer).await?;
            watch.record(began.elapsed());
        }
        anyhow::Ok(watch.finish())
    });
    measured.await?
}

pub(super) async fn unix_ping_pong(time: Duration) -> anyhow::Result<Samples> {
    progress("a bare unix socket: ping-pong");
    let (mut stream, _peer) = unix(Role::UnixEcho).await?;
    let mut buffer = [0; PING];
    let mut watch = Stopwatch::start(time, 10).warm_up();
    while watch.goes_on() {
        let began = Instant::now();
        stream.write_all(&buffer)?;
        stream.read_exact(&mut buffer)?;
        watch.record(began.elapsed());
    }
    Ok(watch.finish())
}

/// Large messages, each confirmed by one byte.
pub(super) async fn bulk(transport: Transport, time: Duration) -> anyhow::Result<Samples> {
    progress(&format!("a bare {} socket: 64 MiB", transport.name()));
    match transport {
        Transport::Tcp => {
            let (stream, _peer) = tcp(Role::TcpSink).await?;
            let stream = stream.into_std()?;
            stream.set_nonblocking(false)?;
            send(stream, time)
        }
        Transport::Unix => {
            let (stream, _peer) = unix(Role::UnixSink).await?;
            send(stream, time)
        }
    }
}

fn send(mut stream: impl Read + Write, time: Duration) -> anyhow::Result<Samples> {
    let bytes = vec![7; BULK];
    let mut once = || -> anyhow::Result<Duration> {
        let began = Instant::now();
        stream.write_all(&bytes)?;
        stream.read_exact(&mut [0])?;
        Ok(began.elapsed())
    };
    once()?;
    let mut watch = Stopwatch::start(time, 2);
    while watch.goes_on() {
        watch.record(once()?);
    }
    Ok(watch.finish())
}

async fn tcp(role: impl FnOnce(u16) -> Role) -> anyhow::Result<(TcpStream, Guard)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let peer = role(listener.local_addr()?.port()).start()?;
    let accepted = timeout(PATIENCE, listener.accept()).await;
    let (stream, _) = accepted.context("the other process did not connect")??;
    Ok((stream, peer))
}

async fn unix(
    role: impl FnOnce(PathBuf) -> Role,
) -> anyhow::Result<(std::os::unix::net::UnixStream, Guard)> {
    let name = format!(
        "farref-bench-{}-{:08x}",
        std::process::id(),
        fastrand::u32(..)
    );
    let path = std::env::temp_dir().join(name);
    let listener = UnixListener::bind(&path)?;
    let accepted = async {
        let peer = role(path.clone()).start()?;
        let accepted = timeout(PATIENCE, listener.accept()).await;
        let (stream, _) = accepted.context("the other process did not connect")??;
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        anyhow::Ok((stream, peer))
    };
    let accepted = accepted.await;
    let _ = std::fs::remove_file(&path);
    accepted
}
