//! 64 processes on one host.

use std::path::Path;
use std::time::Instant;

use anyhow::ensure;

use crate::Tests;
use crate::certificates::Authority;
use crate::functions::{call_everyone, share_with};
use crate::group::{Group, Options};
use crate::launch;

pub(crate) fn tests() -> Tests {
    vec![
        (
            "sixty_four_processes_join_call_each_other_share_and_end",
            sixty_four,
        ),
        (
            "sixty_four_processes_over_tls_join_call_each_other_lose_one_and_end",
            sixty_four_over_tls,
        ),
    ]
}

const WORKERS: u32 = 64;

/// S1, S3: all to all, so that every one of the 2,016 links is made.
fn sixty_four() -> anyhow::Result<()> {
    launch::run(async || in_a_crowd(Options::default(), None).await)
}

/// HS-6: each has a certificate of its own, and there are no Unix sockets. One is killed.
fn sixty_four_over_tls() -> anyhow::Result<()> {
    let authority = Authority::new();
    for name in names().chain(["driver".to_owned()]) {
        authority.worker(&name);
    }
    let options = Options {
        unix_sockets: false,
        token: None,
        certificates: authority.file("ca.pem").parent().map(Path::to_owned),
        ..Options::default()
    };
    launch::run(async || in_a_crowd(options, Some("worker-9")).await)
}

fn names() -> impl Iterator<Item = String> {
    (1..WORKERS).map(|rank| format!("worker-{rank}"))
}

async fn in_a_crowd(options: Options, killed: Option<&str>) -> anyhow::Result<()> {
    let names: Vec<String> = names().collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let transport = if options.unix_sockets { "unix" } else { "tls" };
    let began = Instant::now();
    let mut group = Group::start(options, &names).await?;
    let joined = began.elapsed();

    let members = group.me.peers();
    ensure!(members.len() == WORKERS as usize);
    let calls: Vec<_> = members
        .iter()
        .map(|peer| call_everyone::on(peer).start())
        .collect();
    for call in calls {
        ensure!(call.await? == WORKERS);
    }
    let called = began.elapsed();

    let calls: Vec<_> = members
        .iter()
        .zip(members.iter().cycle().skip(1))
        .map(|(peer, neighbour)| {
            let value = u64::from(peer.rank()) * 3;
            let call = share_with::on(peer, neighbour.name().to_owned(), value);
            (value, call.start())
        })
        .collect();
    for (value, call) in calls {
        ensure!(call.await? == value);
    }
    let shared = began.elapsed();
    let memory = resident(&group);
    for link in group.me.snapshot().peers {
        let through = link.transport.as_deref();
        ensure!(
            link.name == "driver" || through == Some(transport),
            "{link:?}"
        );
    }
    if let Some(killed) = killed {
        group.kill(killed)?;
        for peer in members.iter().filter(|peer| peer.name() != killed) {
            let asked = || async {
                Ok(matches!(call_everyone::on(peer).await, Ok(all) if all == WORKERS - 1))
            };
            group.eventually("all others know", asked).await?;
        }
    }
    let lost = began.elapsed();
    group.finish().await?;
    let ended = began.elapsed();
    eprintln!(
        "{WORKERS} processes over {transport}: joined after {joined:.2?}, all to all {:.2?}, shared {:.2?}, \
         lost one {:.2?}, shut down {:.2?}; {} MiB resident each",
        called - joined,
        shared - called,
        lost - shared,
        ended - lost,
        memory >> 10
    );
    Ok(())
}

/// Kilobytes that a process of the group has in memory, on average.
fn resident(group: &Group) -> usize {
    let resident = |pid: u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.trim().trim_end_matches(" kB").parse::<usize>().ok()
    };
    let resident: Vec<usize> = group.pids().into_iter().filter_map(resident).collect();
    resident.iter().sum::<usize>() / resident.len().max(1)
}
