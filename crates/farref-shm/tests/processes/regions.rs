//! Regions that other processes have made.

use std::io::{IoSlice, Read as _, Write as _};
use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, ensure};
use farref_shm::{
    DescriptorQueue, MAX_DESCRIPTORS, MappedRegions, Quota, ReceiveError, RefusedDescriptor,
    RegionError, RegionWriter, SealedFile, receive, send,
};

use crate::peer::{LENGTH, Peer, descriptors, mappings, pattern};

type Tests = &'static [(&'static str, fn() -> Result<()>)];

pub(crate) const TESTS: Tests = &[
    ("a_region_is_read_where_it_is_without_a_copy", read_in_place),
    ("an_empty_region_is_empty_bytes", empty),
    ("a_region_that_comes_twice_is_mapped_once", mapped_once),
    (
        "what_is_no_sealed_memory_is_refused_and_closed_sh_1_sh_2",
        hostile,
    ),
    (
        "a_region_withstands_its_own_writer_sh_1",
        withstands_its_writer,
    ),
    (
        "the_memory_of_a_writer_that_died_stays_until_it_is_dropped",
        writer_dies,
    ),
    (
        "regions_of_a_receiver_that_died_are_given_back",
        receiver_dies,
    ),
    (
        "no_more_is_mapped_than_allowed_and_the_rest_is_copied_sh_4",
        quota,
    ),
    ("no_more_descriptors_are_taken_than_allowed", too_many),
    (
        "more_descriptors_than_anybody_sends_are_not_even_opened",
        far_too_many,
    ),
    ("descriptors_keep_their_order_among_bytes", order),
];

fn table() -> MappedRegions {
    MappedRegions::new(Quota::new(8, 1 << 24))
}

fn read_in_place() -> Result<()> {
    let mut peer = Peer::start("region")?;
    let length = peer.note()?.length;
    let region = table().map(peer.descriptor()?, length)?;
    let at = region.as_ptr().addr();
    let bytes = bytes::Bytes::from_owner(region);
    ensure!(bytes == pattern(LENGTH));
    ensure!(bytes.as_ptr().addr() == at && at.is_multiple_of(4096));
    // It is the file itself that is mapped there.
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let line = maps
        .lines()
        .find(|line| line.starts_with(&format!("{at:x}-")));
    let line = line.context("nothing is mapped there")?;
    ensure!(
        line.contains("/memfd:farref") && line.contains(" r--p "),
        "{line}"
    );
    Ok(())
}

fn empty() -> Result<()> {
    let mut peer = Peer::start("empty region")?;
    let length = peer.note()?.length;
    let region = table().map(peer.descriptor()?, length)?;
    ensure!(region.is_empty() && mappings()? == 0);
    ensure!(region.as_ptr().addr().is_multiple_of(4096));
    Ok(())
}

fn mapped_once() -> Result<()> {
    let quota = Quota::new(1, 1 << 24);
    let table = MappedRegions::new(quota.clone());
    let mut peer = Peer::start("region twice")?;
    let length = peer.note()?.length;
    let first = table.map(peer.descriptor()?, length)?;
    let length = peer.note()?.length;
    let again = table.map(peer.descriptor()?, length)?;
    ensure!(first.as_ptr() == again.as_ptr() && mappings()? == 1);
    drop(first);
    ensure!(again[..] == pattern(LENGTH));
    ensure!(quota.used() == (1, LENGTH as u64));
    drop(again);
    ensure!(quota.used() == (0, 0) && mappings()? == 0);
    Ok(())
}

fn hostile() -> Result<()> {
    type Expected = fn(&RefusedDescriptor) -> bool;
    let announced = LENGTH as u64;
    let is_unsealed: Expected = |error| matches!(error, RefusedDescriptor::Unsealed);
    let is_no_region: Expected = |error| matches!(error, RefusedDescriptor::NotARegion);
    let is_sparse: Expected = |error| matches!(error, RefusedDescriptor::Sparse { .. });
    let cases: [(&str, Expected); 12] = [
        ("no seals", is_unsealed),
        ("can shrink", is_unsealed),
        ("can write", is_unsealed),
        ("can grow", is_unsealed),
        ("too short", |error| {
            let short = LENGTH as u64 - 1;
            matches!(error, RefusedDescriptor::WrongLength { actual, .. } if *actual == short)
        }),
        ("too long", |error| {
            let long = LENGTH as u64 + 1;
            matches!(error, RefusedDescriptor::WrongLength { actual, .. } if *actual == long)
        }),
        ("cannot be read", |error| {
            matches!(error, RefusedDescriptor::Unreadable)
        }),
        ("sparse", |error| {
            matches!(error, RefusedDescriptor::Sparse { hole: 0, .. })
        }),
        ("sparse, with memory beyond", is_sparse),
        ("a hole at its end, with memory beyond", is_sparse),
        ("a file", is_no_region),
        ("a socket", is_no_region),
    ];
    let mut faults = Vec::new();
    for (role, is_expected) in cases {
        let mut peer = Peer::start(role)?;
        let length = peer.note()?.length;
        ensure!(length as u64 == announced);
        match table().map(peer.descriptor()?, length) {
            Err(error) if is_expected(&error) && error.is_peers_fault() => {}
            Err(error) => faults.push(format!("{role}: {error:?}")),
            Ok(_) => faults.push(format!("{role}: taken as a region")),
        }
    }
    ensure!(faults.is_empty(), "{faults:?}");
    Ok(())
}

fn withstands_its_writer() -> Result<()> {
    let mut peer = Peer::start("attacks its region")?;
    let length = peer.note()?.length;
    let region = table().map(peer.descriptor()?, length)?;
    peer.go_on()?;
    peer.socket
        .read_exact(&mut [0])
        .context("an attack worked")?;
    ensure!(region[..] == pattern(LENGTH));
    Ok(())
}

fn writer_dies() -> Result<()> {
    let mut peer = Peer::start("region")?;
    let length = peer.note()?.length;
    let sealed = SealedFile::new(peer.descriptor()?, length)?;
    peer.kill()?;
    // Also if it died before it was mapped.
    let region = table().map_sealed(&sealed)?;
    drop(sealed);
    ensure!(region[..] == pattern(LENGTH) && mappings()? == 1);
    Ok(())
}

fn receiver_dies() -> Result<()> {
    let quota = Quota::new(1, 1 << 24);
    let before = descriptors()?;
    {
        let mut writer = RegionWriter::create(LENGTH, &quota)?;
        writer.write_all(&pattern(LENGTH))?;
        let region = writer.seal()?;
        // It never receives anything.
        let mut peer = Peer::start("region")?;
        let descriptor = region.descriptor();
        send(&peer.socket, &[IoSlice::new(b"x")], &[descriptor])?;
        peer.kill()?;
        let another = RegionWriter::create(1, &quota);
        ensure!(matches!(another, Err(RegionError::Quota(_))));
    }
    ensure!(quota.used() == (0, 0) && descriptors()? == before);
    RegionWriter::create(1, &quota)?;
    Ok(())
}

fn quota() -> Result<()> {
    let table = MappedRegions::new(Quota::new(8, LENGTH as u64));
    let mut peer = Peer::start("two regions")?;
    let length = peer.note()?.length;
    let first = table.map(peer.descriptor()?, length)?;
    let length = peer.note()?.length;
    let second = SealedFile::new(peer.descriptor()?, length)?;
    let error = table
        .map_sealed(&second)
        .err()
        .context("beyond the quota")?;
    ensure!(matches!(error, RefusedDescriptor::Quota(_)) && !error.is_peers_fault());
    ensure!(mappings()? == 1);
    let mut copy = vec![0; LENGTH - 10];
    second.copy(10, &mut copy)?;
    ensure!(copy == pattern(LENGTH)[10..]);
    ensure!(second.copy(11, &mut copy).is_err(), "beyond its end");
    drop(first);
    ensure!(table.map_sealed(&second)?[..] == pattern(LENGTH));
    Ok(())
}

fn too_many() -> Result<()> {
    let mut peer = Peer::start("three at once")?;
    peer.queue = DescriptorQueue::new(2);
    let error = peer.note().err().context("three were taken")?;
    let error: &ReceiveError = error.downcast_ref().context("another error")?;
    ensure!(matches!(error, ReceiveError::TooMany { most: 2 }));
    Ok(())
}

fn far_too_many() -> Result<()> {
    use std::mem::MaybeUninit;

    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    let (here, there) = UnixStream::pair()?;
    let descriptors = [std::os::fd::AsFd::as_fd(&here); 4 * MAX_DESCRIPTORS];
    ensure!(
        send(&here, &[IoSlice::new(b"x")], &descriptors).is_err(),
        "nobody sends so many"
    );
    ensure!(
        send(&here, &[], &descriptors[..1]).is_err(),
        "it would go nowhere"
    );
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4 * MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    ensure!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    sendmsg(
        &here,
        &[IoSlice::new(b"x")],
        &mut ancillary,
        SendFlags::empty(),
    )?;
    let mut queue = DescriptorQueue::new(usize::MAX);
    let error = receive(&there, &mut [0], &mut queue)
        .err()
        .context("they were taken")?;
    ensure!(matches!(error, ReceiveError::TooMany { .. }));
    // What is left for alignment has room for one or two.
    ensure!(queue.len() <= MAX_DESCRIPTORS + 2);
    Ok(())
}

fn order() -> Result<()> {
    let (here, there) = UnixStream::pair()?;
    let quota = Quota::new(8, 1 << 20);
    let mut kept = Vec::new();
    for number in 0..4_u8 {
        let mut writer = RegionWriter::create(1, &quota)?;
        writer.write_all(&[number])?;
        kept.push(writer.seal()?);
    }
    // Bytes without descriptors between those with some; read in pieces that fit neither.
    for region in &kept {
        send(&here, &[IoSlice::new(b"abc")], &[])?;
        let descriptor = region.descriptor();
        send(&here, &[IoSlice::new(b"de")], &[descriptor])?;
    }
    let table = table();
    let mut queue = DescriptorQueue::new(8);
    let (mut bytes, mut numbers) = (Vec::new(), Vec::new());
    while bytes.len() < 20 {
        let mut buffer = [0; 7];
        let read = receive(&there, &mut buffer, &mut queue)?;
        bytes.extend_from_slice(&buffer[..read]);
        // Each one is there when its first byte is.
        let due = (bytes.len() + 1) / 5;
        while numbers.len() < due {
            let next = queue
                .next()
                .context("a descriptor came later than its bytes")?;
            numbers.extend_from_slice(&table.map(next, 1)?);
        }
    }
    ensure!(numbers == [0, 1, 2, 3] && bytes == b"abcde".repeat(4));
    Ok(())
}
