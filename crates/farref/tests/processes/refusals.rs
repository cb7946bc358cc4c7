//! What a worker cannot take in is an error of that call, and of nothing else.

use anyhow::{bail, ensure};
use farref::{Blob, Error, Peer};

use crate::Tests;
use crate::group::{Group, Options, run};
use crate::shared_memory::acquaint;

const MIB: usize = 1 << 20;

pub(crate) fn tests() -> Tests {
    let tests: Tests = vec![
        (
            "a_value_that_there_is_no_memory_for_fails_its_call_alone",
            || no_memory(false, |size| vec![1; size].into()),
        ),
        (
            "a_value_in_the_callers_memory_that_there_is_no_memory_for_fails_its_call_alone",
            || no_memory(true, |size| vec![1; size].into()),
        ),
        (
            "a_value_in_shared_memory_that_there_is_no_memory_for_fails_its_call_alone",
            || no_memory(true, |size| Blob::shared(&vec![1; size])),
        ),
    ];
    if cfg!(target_os = "linux") {
        tests
    } else {
        Vec::new()
    }
}

#[farref::remote(name = "refusals::size")]
async fn size(blob: Blob) -> usize {
    blob.len()
}

#[farref::remote(name = "refusals::make")]
async fn make(size: usize) -> Blob {
    vec![1; size].into()
}

/// How much more memory the process may have than it has, or as much as it likes.
#[farref::remote]
async fn limit_memory(more: Option<u64>) -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};

    let has = std::fs::read_to_string("/proc/self/statm")?;
    let pages: u64 = has.split(' ').next().unwrap_or_default().parse()?;
    let mut limit = getrlimit(Resource::As);
    limit.current = more.map(|more| pages * 4096 + more);
    Ok(setrlimit(Resource::As, limit)?)
}

async fn links(group: &Group) -> Vec<(String, u64)> {
    let peers = group.me.snapshot().peers;
    let links = peers
        .iter()
        .map(|peer| (peer.name.clone(), peer.connections));
    links.collect()
}

/// FR-7: whether it comes through the socket, or is read out of the caller's memory.
fn no_memory(unix_sockets: bool, value: fn(usize) -> Blob) -> anyhow::Result<()> {
    let options = Options {
        unix_sockets,
        ..Options::default()
    };
    run(options, &["a"], async move |group| {
        let peer = group.peer("a")?;
        if unix_sockets {
            acquaint(group, "a").await?;
        }
        // A connection is replaced when a busy machine keeps a process from running. If it is what a
        // refusal leads to, it happens each time.
        for _ in 0..5 {
            if refused_on_one_connection(group, &peer, value).await? {
                return Ok(());
            }
        }
        bail!("a refusal ends the connection")
    })
}

/// Has a value refused. Returns whether the connections are those from before it.
async fn refused_on_one_connection(
    group: &Group,
    peer: &Peer,
    value: fn(usize) -> Blob,
) -> anyhow::Result<bool> {
    ensure!(size::on(peer, vec![0; MIB].into()).await? == MIB);
    let before = links(group).await;
    // Enough for threads that are started meanwhile: one that finds no memory for its stack ends the
    // process.
    limit_memory::on(peer, Some(192 << 20)).await?;
    let refused = size::on(peer, value(320 * MIB)).await;
    ensure!(
        matches!(&refused, Err(Error::Codec { reason, .. }) if reason.to_string().contains("no memory")),
        "{refused:?}"
    );
    for _ in 0..3 {
        ensure!(size::on(peer, vec![0; MIB].into()).await? == MIB);
    }
    limit_memory::on(peer, None).await?;
    ensure!(make::on(peer, 100).await?.len() == 100);
    Ok(links(group).await == before)
}
