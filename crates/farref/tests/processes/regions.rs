//! Values that are kept in shared memory are read in place by other processes: on Linux, over Unix sockets.

use std::fs::File;
use std::sync::Mutex;

use anyhow::{Context as _, ensure};
use farref::{Blob, Buffer, RRef};
use farref_testkit::eventually_async;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::group::{Group, Options, run};
use crate::{Tests, patterns};

const MIB: usize = 1 << 20;

pub(crate) fn tests() -> Tests {
    let tests: Tests = vec![
        (
            "a_value_kept_in_shared_memory_is_read_in_place_and_never_copied",
            read_in_place,
        ),
        (
            "what_is_in_shared_memory_outlives_the_process_that_made_it",
            outlives_its_owner,
        ),
        (
            "no_more_regions_are_open_than_allowed_and_the_rest_is_copied",
            too_many,
        ),
        (
            "a_process_without_descriptors_left_takes_values_through_the_socket",
            no_descriptors,
        ),
    ];
    if cfg!(target_os = "linux") {
        tests
    } else {
        Vec::new()
    }
}

#[farref::remote]
fn keep(size: usize, seed: u64) -> Blob {
    Blob::shared(&patterns::bytes(size, seed))
}

#[farref::remote]
fn keep_numbers(count: usize, seed: u64) -> Buffer {
    Buffer::shared(&patterns::words(count, seed))
}

/// What came, and whether it is where its maker has put it.
#[farref::remote]
fn look_at(blob: Blob, seed: u64) -> (bool, bool) {
    (patterns::check_bytes(&blob, seed), blob.is_shared())
}

/// How many bytes the driver reads in a worker's memory, and that one in the driver's.
async fn in_place(group: &Group, name: &str) -> anyhow::Result<[u64; 2]> {
    group.both_ends(name, |link| link.bytes_in_place).await
}

/// Sends values until both ends read each other's in place.
async fn acquaint(group: &Group, name: &str) -> anyhow::Result<()> {
    let peer = group.peer(name)?;
    let sent = Blob::shared(&patterns::bytes(MIB, 1));
    eventually_async("values are read in place", async || {
        ensure!(look_at::on(&peer, sent.clone(), 1).await?.0);
        ensure!(keep::on(&peer, MIB, 2).await?[..] == patterns::bytes(MIB, 2));
        let read = in_place(group, name).await?;
        Ok(read.iter().all(|bytes| *bytes > 0))
    })
    .await
}

/// The mappings of shared memory in this process that an address is in.
fn mapping_of(address: usize) -> anyhow::Result<Option<String>> {
    for line in std::fs::read_to_string("/proc/self/maps")?.lines() {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let (from, to) = range.context("a range")?;
        let range = usize::from_str_radix(from, 16)?..usize::from_str_radix(to, 16)?;
        if range.contains(&address) {
            return Ok(line.contains("/memfd:farref").then(|| line.to_owned()));
        }
    }
    Ok(None)
}

fn read_in_place() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        acquaint(group, "a").await?;
        acquaint(group, "b").await?;
        const SIZE: usize = 16 * MIB;
        let owner = group.peer("a")?;
        let kept: RRef<Blob> = keep::on(&owner, SIZE, 7).remote();
        let before = in_place(group, "a").await?;
        let first = kept.to_here().await?;
        let after = in_place(group, "a").await?;
        ensure!(after[0] == before[0] + SIZE as u64, "{before:?} {after:?}");
        ensure!(first.is_shared() && first[..] == patterns::bytes(SIZE, 7));
        // It is the owner's memory that is read, by way of a mapping; all of it.
        let at = first.as_ptr().addr();
        let mapping = mapping_of(at)?.context("it is elsewhere")?;
        ensure!(mapping_of(at + SIZE - 1)? == Some(mapping));
        // However often it is asked for, it is there once.
        let again = kept.to_here().await?;
        ensure!(again.as_ptr().addr() == at);
        // It is handed on as what it is.
        let before = in_place(group, "b").await?;
        let other = group.peer("b")?;
        ensure!(look_at::on(&other, again, 7).await? == (true, true));
        let after = in_place(group, "b").await?;
        ensure!(after[1] == before[1] + SIZE as u64, "{before:?} {after:?}");
        drop((first, kept));
        eventually_async("it is unmapped", async || Ok(mapping_of(at)?.is_none())).await?;
        // Numbers are read in place, too.
        let buffer = keep_numbers::on(&owner, MIB, 3).await?;
        ensure!(buffer.is_shared() && buffer.as_slice() == Some(&patterns::words(MIB, 3)[..]));
        Ok(())
    })
}

fn outlives_its_owner() -> anyhow::Result<()> {
    run(Options::default(), &["a", "b"], async |group| {
        acquaint(group, "a").await?;
        acquaint(group, "b").await?;
        let blob = keep::on(&group.peer("a")?, 8 * MIB, 5).await?;
        ensure!(blob.is_shared());
        group.kill("a")?;
        ensure!(look_at::on(&group.peer("b")?, blob.clone(), 5).await? == (true, true));
        ensure!(blob[..] == patterns::bytes(8 * MIB, 5));
        Ok(())
    })
}

fn too_many() -> anyhow::Result<()> {
    const SIZE: usize = 128 << 10;
    run(Options::default(), &["a", "b"], async |group| {
        let mut kept = Vec::new();
        for name in ["a", "b"] {
            acquaint(group, name).await?;
            let peer = group.peer(name)?;
            for seed in 0..200 {
                kept.push((seed, keep::on(&peer, SIZE, seed).await?));
            }
        }
        let (shared, copied): (Vec<_>, Vec<_>) =
            kept.iter().partition(|(_, blob)| blob.is_shared());
        ensure!(shared.len() <= 256 && copied.len() >= 400 - 256);
        ensure!(shared.len() > 200, "{} are", shared.len());
        for (seed, blob) in &kept {
            ensure!(blob[..] == patterns::bytes(SIZE, *seed), "{seed}");
        }
        // There is room again for others.
        kept.clear();
        eventually_async("there is room", async || {
            Ok(keep::on(&group.peer("a")?, SIZE, 1).await?.is_shared())
        })
        .await
    })
}

/// What uses descriptors up.
static OPEN: Mutex<Vec<File>> = Mutex::new(Vec::new());

fn set_most_descriptors(most: u64) -> anyhow::Result<()> {
    let limit = Rlimit {
        current: Some(most),
        ..getrlimit(Resource::Nofile)
    };
    Ok(setrlimit(Resource::Nofile, limit)?)
}

/// Allows no more files than are open.
#[farref::remote]
fn limit_descriptors() -> Result<(), String> {
    let limit = || -> anyhow::Result<()> {
        let mut most = 0;
        for entry in std::fs::read_dir("/proc/self/fd")? {
            let number = entry?.file_name().to_string_lossy().parse()?;
            most = most.max(number);
        }
        set_most_descriptors(most + 1)
    };
    limit().map_err(|error| error.to_string())
}

/// Opens files until no more can be opened.
#[farref::remote]
fn use_up_descriptors() {
    let mut open = OPEN.lock().expect("nobody panics");
    while let Ok(file) = File::open("/dev/null") {
        open.push(file);
    }
}

#[farref::remote]
fn give_descriptors_back() -> Result<(), String> {
    OPEN.lock().expect("nobody panics").clear();
    set_most_descriptors(1024).map_err(|error| error.to_string())
}

fn no_descriptors() -> anyhow::Result<()> {
    run(Options::default(), &["a"], async |group| {
        acquaint(group, "a").await?;
        let peer = group.peer("a")?;
        let before = in_place(group, "a").await?[1];
        limit_descriptors::on(&peer).await?;
        let (mut through_socket, mut in_memory) = (0, 0);
        // A new region each: one that it has already takes no descriptor for long.
        for seed in 10.. {
            // A value that was sent earlier is closed when its reader has said that it is done with it: until then there
            // may be one descriptor more than it seems.
            use_up_descriptors::on(&peer).await?;
            let blob = Blob::shared(&patterns::bytes(MIB, seed));
            let (is_right, is_shared) = look_at::on(&peer, blob, seed).await?;
            ensure!(is_right, "{seed}");
            *(if is_shared {
                &mut in_memory
            } else {
                &mut through_socket
            }) += 1;
            ensure!(in_memory < 5, "it has descriptors");
            if through_socket == 10 {
                break;
            }
        }
        give_descriptors_back::on(&peer).await?;
        let read = in_place(group, "a").await?[1] - before;
        ensure!(read == in_memory * MIB as u64, "{read} {in_memory}");
        // The other direction is as it was.
        eventually_async("values are read in place", async || {
            Ok(keep::on(&peer, MIB, 2).await?.is_shared())
        })
        .await
    })
}
