//! Large values are read out of the memory of the process that sends them: on Linux, between processes of one user.

use std::time::{Duration, Instant};

use anyhow::ensure;
use farref::{Blob, Buffer, Error, Peer};
use farref_testkit::{TEST_TIMEOUT, eventually_async, within};

use crate::group::{Group, Options, run};
use crate::{Tests, patterns};

const MIB: usize = 1 << 20;

pub(crate) fn tests() -> Tests {
    let tests: Tests = vec![
        (
            "large_values_are_read_out_of_the_memory_of_another_process",
            are_read,
        ),
        (
            "large_values_go_through_the_socket_if_one_side_does_not_share_its_memory",
            one_keeps_its_memory,
        ),
        ("large_values_go_through_the_socket_over_tcp", over_tcp),
        (
            "f2_a_process_that_is_killed_while_its_memory_is_read_is_lost_and_harms_nobody",
            killed_while_read,
        ),
        (
            "a_process_that_is_stopped_while_its_memory_is_read_loses_nothing",
            stopped_while_read,
        ),
    ];
    if cfg!(target_os = "linux") {
        tests
    } else {
        Vec::new()
    }
}

#[farref::remote]
async fn blob(size: usize, seed: u64) -> Blob {
    patterns::bytes(size, seed).into()
}

#[farref::remote]
async fn blobs(count: usize, size: usize) -> Vec<Blob> {
    let blob = Blob::from(patterns::bytes(size, 1));
    vec![blob; count]
}

#[farref::remote]
async fn echo(blob: Blob) -> Blob {
    blob
}

#[farref::remote]
async fn sums(buffer: Buffer) -> Result<(f32, Buffer), farref::CodecError> {
    let values = buffer.into_vec::<f32>()?;
    Ok((values.iter().sum(), Buffer::from_vec(values)))
}

/// How many bytes the driver has read out of a worker's memory, and that one out of the driver's.
async fn read(group: &Group, name: &str) -> anyhow::Result<[u64; 2]> {
    group.both_ends(name, |link| link.bytes_from_memory).await
}

/// Sends large values to and fro until both ends read each other's memory.
pub(crate) async fn acquaint(group: &Group, name: &str) -> anyhow::Result<()> {
    let peer = group.peer(name)?;
    eventually_async("memory is read", async || {
        let sent = Blob::from(patterns::bytes(MIB, 1));
        ensure!(echo::on(&peer, sent.clone()).await? == sent);
        Ok(read(group, name).await?.iter().all(|bytes| *bytes > 0))
    })
    .await
}

fn are_read() -> anyhow::Result<()> {
    run(Options::default(), &["a"], async |group| {
        acquaint(group, "a").await?;
        let peer = group.peer("a")?;
        for size in [128 << 10, MIB + 1, 5 * MIB, 64 * MIB] {
            let before = read(group, "a").await?;
            let sent = Blob::from(patterns::bytes(size, 3));
            ensure!(echo::on(&peer, sent.clone()).await? == sent, "{size} bytes");
            let after = read(group, "a").await?;
            let size = size as u64;
            ensure!(
                after == [before[0] + size, before[1] + size],
                "{before:?} {after:?}"
            );
        }
        // Numbers too, there and back.
        let before = read(group, "a").await?;
        let floats = vec![0.5_f32; MIB];
        let (sum, back) = sums::on(&peer, Buffer::from_vec(floats.clone())).await?;
        ensure!(sum == 0.5 * MIB as f32 && back.into_vec::<f32>()? == floats);
        let after = read(group, "a").await?;
        let size = 4 * MIB as u64;
        ensure!(
            after == [before[0] + size, before[1] + size],
            "{before:?} {after:?}"
        );
        // What is small goes through the socket.
        let small = Blob::from(patterns::bytes(100 << 10, 3));
        ensure!(echo::on(&peer, small.clone()).await? == small);
        ensure!(read(group, "a").await? == after);
        Ok(())
    })
}

async fn use_the_socket(group: &mut Group) -> anyhow::Result<()> {
    let peer = group.peer("a")?;
    for _ in 0..20 {
        let sent = Blob::from(patterns::bytes(3 * MIB, 3));
        ensure!(echo::on(&peer, sent.clone()).await? == sent);
    }
    ensure!(read(group, "a").await? == [0, 0]);
    Ok(())
}

fn one_keeps_its_memory() -> anyhow::Result<()> {
    for who in ["a", "driver"] {
        let options = Options {
            keeps_memory: vec![who.to_owned()],
            ..Options::default()
        };
        run(options, &["a"], use_the_socket)?;
    }
    Ok(())
}

fn over_tcp() -> anyhow::Result<()> {
    let options = Options {
        unix_sockets: false,
        ..Options::default()
    };
    run(options, &["a"], use_the_socket)
}

/// How many pieces are sent: so many that a process is killed before all of them are read.
const PIECES: usize = 64;

/// Has a worker send many pieces, and returns when some of them have been read.
async fn begin_to_read(group: &Group, peer: &Peer) -> anyhow::Result<farref::Pending<Vec<Blob>>> {
    let read = || {
        let snapshot = group.me.snapshot();
        let link = snapshot
            .peers
            .iter()
            .find(|known| known.name == peer.name());
        link.map_or(0, |link| link.bytes_from_memory)
    };
    loop {
        let before = read();
        let mut pending = blobs::on(peer, PIECES, 16 * MIB).timeout(None).start();
        loop {
            if read() > before {
                return Ok(pending);
            }
            tokio::select! {
                biased;
                blobs = &mut pending => break drop(blobs?),
                () = tokio::task::yield_now() => {}
            }
        }
        // A busy machine has the connection replaced, and the new one has not agreed to it yet.
        acquaint(group, peer.name()).await?;
    }
}

fn killed_while_read() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        acquaint(group, "a").await?;
        acquaint(group, "b").await?;
        let began = Instant::now();
        loop {
            let peer = group.peer("a")?;
            let pending = begin_to_read(group, &peer).await?;
            let gone = peer.gone();
            group.kill("a")?;
            match pending.await {
                Err(Error::PeerLost { peer, .. }) => {
                    ensure!(&*peer == "a");
                    break;
                }
                // All of it was read before this process got to kill it.
                Ok(_) if began.elapsed() < TEST_TIMEOUT => {}
                other => {
                    anyhow::bail!("not the loss of `a`: {:?}", other.map(|blobs| blobs.len()))
                }
            }
            within("the death of `a`", gone).await??;
            group.restart("a").await?;
            group.me.wait_for_peer("a", TEST_TIMEOUT).await?;
            acquaint(group, "a").await?;
        }
        let before = read(group, "b").await?[0];
        ensure!(blob::on(&group.peer("b")?, MIB, 7).await? == Blob::from(patterns::bytes(MIB, 7)));
        ensure!(read(group, "b").await?[0] == before + MIB as u64);
        Ok(())
    })
}

fn stopped_while_read() -> anyhow::Result<()> {
    run(Options::default(), &["a"], async |group| {
        acquaint(group, "a").await?;
        let pending = begin_to_read(group, &group.peer("a")?).await?;
        group.stop("a")?;
        // What it has named can be read all the same.
        tokio::time::sleep(Duration::from_millis(300)).await;
        group.resume("a")?;
        let expected = Blob::from(patterns::bytes(16 * MIB, 1));
        let blobs = pending.await?;
        ensure!(blobs.len() == PIECES && blobs.iter().all(|blob| *blob == expected));
        Ok(())
    })
}
