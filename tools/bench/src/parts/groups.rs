//! How long a group takes to come together and to end, by its size.
//!
//! All processes are running and wait for a signal: the time is from the signal to the last one's word that it has
//! joined, and from the first one's wish to end to the last one's word that the group has ended. The limit is such a
//! signal and such a word, without a group.

use std::time::{Duration, Instant};

use anyhow::Context as _;
use farref::StoreServer;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::super::plan::Plan;
use super::super::report::{Measurement, Recorder};
use super::super::role::{PATIENCE, Place, Role, Seat};
use super::super::samples::Times;
use super::super::transport::Transport;

pub(super) async fn measure(
    transport: Transport,
    plan: &Plan,
    recorder: &mut Recorder<'_>,
) -> anyhow::Result<()> {
    for &workers in &plan.groups {
        recorder.say(&format!("a group of {workers}"));
        let mut lives = Vec::new();
        for _ in 0..plan.lives {
            lives.push(live(transport, workers).await?);
        }
        let of = |part: fn(&Life) -> Duration| Times::of(lives.iter().map(part).collect());
        let (signal, join, shutdown) = (
            of(|life| life.signal),
            of(|life| life.join),
            of(|life| life.shutdown),
        );
        recorder.add(Measurement::times("signal", signal).workers(workers));
        for (name, times) in [("join", join), ("shutdown", shutdown)] {
            let measured = Measurement::times(name, times).workers(workers);
            recorder.add(measured.at_most("signal", signal.p50, None));
        }
    }
    Ok(())
}

struct Life {
    signal: Duration,
    join: Duration,
    shutdown: Duration,
}

/// One group, from its beginning to its end.
async fn live(transport: Transport, workers: u32) -> anyhow::Result<Life> {
    let store = StoreServer::bind("127.0.0.1:0").await?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let place = Place::Tcp(listener.local_addr()?.port());
    let seat = |rank| Seat {
        transport,
        port: store.local_addr().port(),
        rank,
        workers,
    };
    let (mut members, mut lines) = (Vec::new(), Vec::new());
    for rank in 1..workers {
        members.push(Role::Member(seat(rank), place.clone()).start()?);
    }
    for _ in 1..workers {
        let accepted = timeout(PATIENCE, listener.accept()).await;
        let (line, _) = accepted.context("a member's process did not connect")??;
        line.set_nodelay(true)?;
        lines.push(line);
    }

    let began = Instant::now();
    tell_all(&mut lines).await?;
    hear_all(&mut lines).await?;
    let signal = began.elapsed();

    let began = Instant::now();
    tell_all(&mut lines).await?;
    let me = seat(0).join().await?;
    hear_all(&mut lines).await?;
    let join = began.elapsed();

    let began = Instant::now();
    me.shutdown().await?;
    hear_all(&mut lines).await?;
    let shutdown = began.elapsed();
    drop(members);
    store.close().await;
    Ok(Life {
        signal,
        join,
        shutdown,
    })
}

async fn tell_all(lines: &mut [TcpStream]) -> anyhow::Result<()> {
    for line in lines {
        line.write_all(&[1]).await?;
    }
    Ok(())
}

async fn hear_all(lines: &mut [TcpStream]) -> anyhow::Result<()> {
    for line in lines {
        let heard = timeout(PATIENCE, line.read_exact(&mut [0])).await;
        heard
            .context("a member does not answer")?
            .context("a member has failed")?;
    }
    Ok(())
}
