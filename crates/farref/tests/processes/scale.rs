//! Many processes on one host.

use std::time::Instant;

use anyhow::ensure;
use farref::PeerSnapshot;
use farref_testkit::{Authority, eventually, eventually_async, run_test};

use crate::functions::{call_everyone, share_with};
use crate::group::{Group, Options};
use crate::{Tests, amount};

pub(crate) fn tests() -> Tests {
    vec![
        (
            "sixty_four_processes_join_call_each_other_share_and_end",
            sixty_four,
        ),
        (
            "processes_over_tls_join_call_each_other_lose_one_and_end",
            over_tls,
        ),
    ]
}

/// Over Unix sockets. Workers with certificates take more of the processor, so that there are as many
/// of them in a thorough run only.
const WORKERS: u32 = 64;

/// S1, S3: all to all, so that every one of the 2,016 links is made.
fn sixty_four() -> anyhow::Result<()> {
    run_test(in_a_crowd(WORKERS, Options::default(), None))
}

/// HS-6: each has a certificate of its own, and there are no Unix sockets. One is killed.
fn over_tls() -> anyhow::Result<()> {
    let workers = amount(20, WORKERS);
    let authority = Authority::new();
    for name in names(workers).chain(["driver".to_owned()]) {
        authority.worker(&name);
    }
    let options = Options {
        unix_sockets: false,
        token: None,
        certificates: Some(authority.folder().to_owned()),
        ..Options::default()
    };
    run_test(in_a_crowd(workers, options, Some("worker-9")))
}

fn names(workers: u32) -> impl Iterator<Item = String> {
    (1..workers).map(|rank| format!("worker-{rank}"))
}

async fn in_a_crowd(workers: u32, options: Options, killed: Option<&str>) -> anyhow::Result<()> {
    let options = Options {
        runtime_threads: 1,
        ..options
    };
    let names: Vec<String> = names(workers).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let transport = if options.unix_sockets { "unix" } else { "tls" };
    let began = Instant::now();
    let mut group = Group::start(options, &names).await?;
    let joined = began.elapsed();

    let members = group.me.peers();
    ensure!(members.len() == workers as usize);
    let calls: Vec<_> = members
        .iter()
        .map(|peer| call_everyone::on(peer).start())
        .collect();
    for call in calls {
        ensure!(call.await? == workers);
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
    let mut links: Vec<PeerSnapshot> = Vec::new();
    eventually("all links are connected", || {
        links = group.me.snapshot().peers;
        links.retain(|link| link.name != "driver");
        links.iter().all(|link| link.transport.is_some())
    })
    .await?;
    let is_other = |link: &&PeerSnapshot| link.transport.as_deref() != Some(transport);
    let others = links.iter().filter(is_other).count();
    // Workers that a busy machine keeps from answering at their Unix sockets are reached over TCP.
    let allowed = match transport {
        "unix" => links.len() / 2,
        _ => 0,
    };
    ensure!(others <= allowed, "{others} links: {links:?}");
    if let Some(killed) = killed {
        group.kill(killed)?;
        for peer in members.iter().filter(|peer| peer.name() != killed) {
            let asked = || async {
                Ok(matches!(call_everyone::on(peer).await, Ok(all) if all == workers - 1))
            };
            eventually_async("all others know", asked).await?;
        }
    }
    let lost = began.elapsed();
    group.finish().await?;
    let ended = began.elapsed();
    eprintln!(
        "{workers} processes over {transport}: joined after {joined:.2?}, all to all {:.2?}, shared {:.2?}, \
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
