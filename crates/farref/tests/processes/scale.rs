//! 64 processes on one host.

use std::time::Instant;

use anyhow::ensure;

use crate::Tests;
use crate::functions::{call_everyone, share_with};
use crate::group::{Group, Options};
use crate::launch;

pub(crate) fn tests() -> Tests {
    vec![(
        "sixty_four_processes_join_call_each_other_share_and_end",
        sixty_four,
    )]
}

/// S1, S3: all to all, so that every one of the 2,016 links is made.
fn sixty_four() -> anyhow::Result<()> {
    const WORKERS: u32 = 64;
    launch::run(async || {
        let names: Vec<String> = (1..WORKERS).map(|rank| format!("worker-{rank}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let began = Instant::now();
        let group = Group::start(Options::default(), &names).await?;
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
        group.finish().await?;
        let ended = began.elapsed();
        eprintln!(
            "{WORKERS} processes: joined after {joined:.2?}, all to all {:.2?}, shared {:.2?}, \
             shut down {:.2?}; {} MiB resident each",
            called - joined,
            shared - called,
            ended - shared,
            memory >> 10
        );
        Ok(())
    })
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
