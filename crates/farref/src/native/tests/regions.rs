//! PM-5, FR-6, BA-4: parts that are kept in shared memory are read in place, and whatever descriptors a peer sends, it harms
//! only itself.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::Bytes;
use farref_proto::Lane;
use farref_shm::{DescriptorQueue, ReceiveError};
use farref_testkit::TEST_TIMEOUT;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::fixture::{Setup, with_parts};
use super::shared_memory::{Intruder, MIB, is_undisturbed, numbers, pair, parts, read_by, watched};
use super::*;
use crate::codec::{Part, SharedBytes, Width};
use crate::native::frame::MemoryFrame;
use crate::support::lock::lock;

/// Numbers in memory that others can read.
fn shared(count: usize, seed: u64) -> Part {
    let numbers = numbers(count, seed);
    let shared = SharedBytes::copy_of(bytemuck::cast_slice(&numbers)).expect("Linux");
    Part::from_shared(shared, Width::Eight)
}

/// How many bytes one reads where the other has put them.
fn in_place(reader: &Side, of: &Side) -> u64 {
    let link = reader.link_to(of);
    link.map_or(0, |link| link.bytes_in_place)
}

fn message(number: u64, parts: &[Part]) -> Message {
    with_parts(number, Bytes::from_static(b"body"), parts.to_vec())
}

/// Sends one until it is read in place: whether descriptors are taken is for the other end to say.
async fn acquaint(from: &Side, to: &Side) {
    let part = shared(MIB / 8, 1);
    let deadline = Instant::now() + TEST_TIMEOUT;
    while in_place(to, from) == 0 {
        assert!(Instant::now() < deadline, "nothing is read in place");
        let received = to.received_count();
        from.send(to, message(0, std::slice::from_ref(&part)));
        eventually("it arrives", || to.received_count() > received).await;
    }
}

/// Sends a message and waits until it has come. Returns its parts.
async fn deliver(from: &Side, to: &Side, sent: &[Part]) -> Vec<Part> {
    let received = to.received_count();
    from.send(to, message(received as u64, sent));
    eventually("it arrives", || to.received_count() > received).await;
    parts(to.received().pop().expect("it arrived"))
}

/// What is mapped at an address, as the system says.
fn mapped_at(address: u64) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").expect("Linux");
    let is_there = |line: &&str| {
        let range = line
            .split(' ')
            .next()
            .and_then(|range| range.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).expect("a number");
        range.is_some_and(|(from, to)| (number(from)..number(to)).contains(&address))
    };
    maps.lines().find(is_there).map(str::to_owned)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_in_shared_memory_is_read_where_it_is_and_never_copied() {
    let [left, right] = pair([true; 2]).await;
    acquaint(&left, &right).await;
    let part = shared(5 * MIB / 8, 7);
    let size = part.len() as u64;
    let (before, copied) = (in_place(&right, &left), read_by(&right, &left));
    let [first] = deliver(&left, &right, std::slice::from_ref(&part))
        .await
        .try_into()
        .expect("one part");
    assert_eq!(in_place(&right, &left) - before, size, "counted");
    assert_eq!(read_by(&right, &left), copied, "nothing was read");
    // It is the file itself that is mapped there, at another place than the sender's.
    let at = first.address().expect("it stays");
    let mapping = mapped_at(at).expect("something is there");
    assert!(mapping.contains("/memfd:farref"), "{mapping}");
    assert_ne!(Some(at), part.address());
    assert_eq!(first.width(), Width::Eight);
    // And once, however often it comes.
    let [again] = deliver(&left, &right, std::slice::from_ref(&part))
        .await
        .try_into()
        .expect("one part");
    assert_eq!(again.address(), Some(at));
    assert_eq!(in_place(&right, &left) - before, 2 * size);
    assert_eq!(first.into_vec::<u64>(), Ok(numbers(5 * MIB / 8, 7)));
    // Both ends count it as sent and received.
    assert!(left.link_to(&right).expect("a link").bytes_sent > 2 * size);
    assert!(right.link_to(&left).expect("a link").bytes_received > 2 * size);
    // It is given back with the last one who has it.
    drop(again);
    lock(&right.inbound.received).clear();
    eventually("it is unmapped", || {
        !mapped_at(at).is_some_and(|mapping| mapping.contains("/memfd:farref"))
    })
    .await;
    assert!(part.shared().is_some_and(|part| !part.bytes().is_empty()));
}

/// PM-6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_region_of_a_connection_is_read_in_place() {
    let [left, right] = pair([true; 2]).await;
    let part = shared(MIB / 8, 7);
    deliver(&left, &right, std::slice::from_ref(&part)).await;
    assert_eq!(in_place(&right, &left), MIB as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_received_a_region_hands_it_on_as_one() {
    let [left, right] = pair([true; 2]).await;
    acquaint(&left, &right).await;
    acquaint(&right, &left).await;
    let part = shared(3 * MIB / 8, 3);
    let there = deliver(&left, &right, std::slice::from_ref(&part)).await;
    let before = in_place(&left, &right);
    let back = deliver(&right, &left, &there).await;
    assert_eq!(in_place(&left, &right) - before, part.len() as u64);
    // Also when nobody else has it any more.
    drop((part, there));
    lock(&right.inbound.received).clear();
    let [back] = back.try_into().expect("one part");
    assert!(back.shared().is_some());
    assert_eq!(back.into_vec::<u64>(), Ok(numbers(3 * MIB / 8, 3)));
}

/// BA-4, FR-6: more than fit into one frame, among others, in many frames at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_among_other_parts_come_as_they_were_sent() {
    const COUNT: usize = 20;
    let [left, right] = pair([true; 2]).await;
    acquaint(&left, &right).await;
    let regions: Vec<Part> = (0..COUNT as u64).map(|seed| shared(10_000, seed)).collect();
    let mut mixed = Vec::new();
    for (seed, region) in (100..).zip(&regions) {
        mixed.push(Part::from_vec(numbers(1000 * (seed as usize - 90), seed)));
        mixed.push(region.clone());
        mixed.push(Part::from(vec![seed as u8; 10]));
    }
    let (before, received) = (in_place(&right, &left), right.received_count());
    // Again and again as many as may be on their way.
    for round in 1..=4 {
        for number in 0..3 {
            left.send(&right, message(number, &mixed));
            left.send(&right, call(number, 70_000));
        }
        eventually("all arrive", || {
            right.received_count() == received + 6 * round
        })
        .await;
        eventually("all are acknowledged", || {
            let link = left.link_to(&right).expect("a link");
            link.queued_messages == 0
        })
        .await;
    }
    let passed = 4 * 3 * 16 * 80_000;
    assert_eq!(in_place(&right, &left) - before, passed);
    for message in right.received().drain(received..) {
        let arrived = parts(message);
        assert!(arrived.is_empty() || arrived.len() == mixed.len());
        for (arrived, sent) in arrived.iter().zip(&mixed) {
            assert_eq!(arrived.width(), sent.width());
            let [arrived, sent] = [arrived, sent].map(|part| part.clone().into_bytes());
            assert!(arrived == sent);
        }
    }
    assert_eq!(left.link_to(&right).expect("a link").connections, 1);
    assert!(lock(&right.inbound.misbehaved).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_goes_as_bytes_where_descriptors_cannot() {
    let network = MemoryNetwork::new();
    for [left, right] in [
        pair([true, false]).await,
        pair([false, true]).await,
        Side::socket_pair(false).await,
        Side::memory_pair(&network).await,
    ] {
        let part = shared(MIB / 8, 5);
        for _ in 0..10 {
            for (from, to) in [(&left, &right), (&right, &left)] {
                let arrived = deliver(from, to, std::slice::from_ref(&part)).await;
                let [arrived] = arrived.try_into().expect("one part");
                assert_eq!(arrived.into_vec::<u64>(), Ok(numbers(MIB / 8, 5)));
            }
        }
        assert_eq!([in_place(&right, &left), in_place(&left, &right)], [0; 2]);
    }
}

/// D2: what was not acknowledged is sent again on another connection, as that one allows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_is_handed_over_again_on_another_connection() {
    let [left, right] = pair([true; 2]).await;
    acquaint(&left, &right).await;
    let link = left.agent.links.link(right.node).expect("a link");
    let regions: Vec<Part> = (0..10).map(|seed| shared(10_000, seed)).collect();
    let first = right.received_count();
    for number in 0..200 {
        let at = number as usize % 10;
        left.send(&right, message(number, &regions[at..=at]));
        if number % 10 == 5 {
            for stream in link.streams() {
                stream.send.write.hang_up();
            }
        }
        if number % 50 == 0 {
            eventually("it arrives", || {
                right.received_count() > first + number as usize
            })
            .await;
        }
    }
    eventually("all arrive", || right.received_count() == first + 200).await;
    for (number, message) in (0..200).zip(right.received().drain(first..)) {
        let [part] = parts(message).try_into().expect("one part");
        assert_eq!(
            part.into_vec(),
            Ok(numbers(10_000, number % 10)),
            "{number}"
        );
    }
    assert!(left.link_to(&right).expect("a link").connections > 1);
    assert!(lock(&right.inbound.misbehaved).is_empty());
}

const LENGTH: usize = 100_000;

fn sealed() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL
}

/// Memory of so many bytes with these seals.
fn memory(length: usize, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("farref", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
    let file = file.expect("Linux");
    let written = rustix::io::write(&file, &vec![1; length]);
    assert_eq!(written, Ok(length));
    fcntl_add_seals(&file, seals).expect("it is empty of mappings");
    file
}

/// A descriptor by which nobody can read, and nobody write any more.
fn write_only() -> OwnedFd {
    let file = memory(LENGTH, SealFlags::empty());
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let again = fs::File::options().write(true).open(path);
    fcntl_add_seals(&file, sealed()).expect("it is empty of mappings");
    again.expect("it is there").into()
}

fn sparse() -> OwnedFd {
    let file = memory(0, SealFlags::empty());
    ftruncate(&file, LENGTH as u64).expect("it is not sealed");
    fcntl_add_seals(&file, sealed()).expect("it is not sealed");
    file
}

/// FR-6
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_what_is_no_region_is_cut_off_and_harms_nobody() {
    let socket = || OwnedFd::from(UnixStream::pair().expect("a pair").0);
    let file = || OwnedFd::from(fs::File::open("/proc/self/exe").expect("a file"));
    let region = || memory(LENGTH, sealed());
    // What is sent, for so many parts that are said to be in regions.
    let faults: [(&str, Vec<OwnedFd>, usize); 12] = [
        ("not sealed", vec![memory(LENGTH, SealFlags::empty())], 1),
        (
            "not sealed",
            vec![memory(LENGTH, SealFlags::WRITE | SealFlags::GROW)],
            1,
        ),
        (
            "not sealed",
            vec![memory(LENGTH, SealFlags::WRITE | SealFlags::SHRINK)],
            1,
        ),
        ("bytes where", vec![memory(LENGTH - 1, sealed())], 1),
        ("bytes where", vec![memory(LENGTH + 1, sealed())], 1),
        ("has a hole", vec![sparse()], 1),
        ("not open for reading", vec![write_only()], 1),
        ("not of a region", vec![socket()], 1),
        ("not of a region", vec![file()], 1),
        ("without a descriptor", vec![], 1),
        ("without a descriptor", vec![region()], 2),
        ("belong to nothing", vec![region(), region()], 1),
    ];
    for (reason, descriptors, count) in faults {
        let [right, bystander] = watched().await;
        let mut intruder = Intruder::new();
        intruder.connect(&right, true).await;
        let part = SharedBytes::copy_of(&[1; LENGTH]).expect("Linux");
        let part = Part::from_shared(part, Width::One);
        let bytes = intruder.passed(1, vec![part; count], &right);
        pass(&mut intruder, &bytes, &descriptors);
        assert!(intruder.is_hung_up_on().await, "{reason}");
        eventually("it is blamed", || {
            let misbehaved = lock(&right.inbound.misbehaved);
            misbehaved
                .iter()
                .any(|(node, why)| *node == intruder.node && why.contains(reason))
        })
        .await;
        is_undisturbed(&bystander, &right).await;
    }
}

fn pass(intruder: &mut Intruder, bytes: &[u8], descriptors: &[OwnedFd]) {
    let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
    let socket = intruder.bulk().write.socket().expect("a socket");
    let sent = farref_shm::send(socket, &[IoSlice::new(bytes)], &borrowed);
    assert_eq!(sent.expect("there is room"), bytes.len());
}

/// FR-5: over TCP, and from one who does not want any itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_region_where_none_is_taken_is_a_fault() {
    for (unix, willing) in [(false, true), (true, false)] {
        let [right, bystander] = pair([willing, true]).await;
        bystander.meet(&right).await;
        let mut intruder = Intruder::new();
        intruder.connect(&right, unix).await;
        let part = SharedBytes::copy_of(&[1; LENGTH]).expect("Linux");
        let part = Part::from_shared(part, Width::One);
        let bytes = intruder.passed(1, vec![part], &right);
        let _ = intruder.bulk().write.write_all(&bytes).await;
        assert!(intruder.is_hung_up_on().await);
        eventually("it is blamed", || {
            let misbehaved = lock(&right.inbound.misbehaved);
            let is_blamed = |why: &str| why.contains("was not told that it may");
            misbehaved.iter().any(|(_, why)| is_blamed(why))
        })
        .await;
    }
}

/// PM-5: what cannot be opened is missing, so the connection is of no use; whose fault it is cannot be seen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_more_descriptors_than_anybody_takes_loses_its_connection() {
    let [right, bystander] = watched().await;
    let mut intruder = Intruder::new();
    intruder.connect(&right, true).await;
    // Bytes that are no frame yet, and with each of them as many as one write can have.
    let region = || memory(LENGTH, sealed());
    for byte in [1, 0, 0] {
        let some: Vec<OwnedFd> = (0..16).map(|_| region()).collect();
        let borrowed: Vec<_> = some.iter().map(AsFd::as_fd).collect();
        let socket = intruder.bulk().write.socket().expect("a socket");
        // It may be hung up on before the last.
        let _ = farref_shm::send(socket, &[IoSlice::new(&[byte])], &borrowed);
    }
    assert!(intruder.is_hung_up_on().await);
    is_undisturbed(&bystander, &right).await;
}

/// SE-7: who takes regions may have to copy one, also where it cannot read the sender's memory, and says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_takes_regions_and_reads_no_memory_may_say_that_it_reads() {
    let [right, bystander] = watched().await;
    let mut intruder = Intruder::new();
    intruder.connect(&right, true).await;
    intruder.say(MemoryFrame::TakesRegions).await;
    intruder.say(MemoryFrame::Reading).await;
    let received = right.received_on(Lane::Bulk).len();
    let part = Part::from(vec![1; MIB]);
    intruder.call(1, part, false, &right).await;
    eventually("it is heard, or blamed", || {
        let heard = right.received_on(Lane::Bulk).len() > received;
        heard || !lock(&right.inbound.misbehaved).is_empty()
    })
    .await;
    assert_eq!(*lock(&right.inbound.misbehaved), []);
    is_undisturbed(&bystander, &right).await;
}

/// PM-5: that there are too many on their way passes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_cannot_send_a_region_sends_bytes_for_a_while() {
    for (rest, is_short) in [
        (Duration::from_millis(1), true),
        (Duration::from_secs(3600), false),
    ] {
        let book = Arc::default();
        let [left, right] = [1, 2].map(|worker| {
            let mut setup = Setup::new(worker, BindOptions::default(), &book);
            setup.config.memory_rest = rest;
            setup.start()
        });
        let (left, right) = (left.await, right.await);
        acquaint(&left, &right).await;
        let part = shared(MIB / 8, 9);
        let before = in_place(&right, &left);
        let link = left.agent.links.link(right.node).expect("a link");
        link.fail_passing();
        let [arrived] = deliver(&left, &right, std::slice::from_ref(&part))
            .await
            .try_into()
            .expect("one part");
        assert_eq!(arrived.into_vec::<u64>(), Ok(numbers(MIB / 8, 9)));
        assert_eq!(left.link_to(&right).expect("a link").connections, 2);
        for _ in 0..5 {
            deliver(&left, &right, std::slice::from_ref(&part)).await;
        }
        if is_short {
            let deadline = Instant::now() + TEST_TIMEOUT;
            while in_place(&right, &left) == before {
                assert!(Instant::now() < deadline, "it never passes");
                deliver(&left, &right, std::slice::from_ref(&part)).await;
            }
        } else {
            assert_eq!(in_place(&right, &left), before);
        }
        assert_eq!(left.link_to(&right).expect("a link").connections, 2);
    }
}

/// BA-5: the system counts them for all programs of a user together, so whoever does not read must not have them all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_more_descriptors_are_on_their_way_to_a_peer_than_it_may_keep_from_others() {
    let mut setup = Setup::new(1, BindOptions::default(), &Arc::default());
    // It never acknowledges anything.
    setup.config.ack_timeout = Duration::from_secs(600);
    let left = setup.start().await;
    let mut intruder = Intruder::new();
    intruder.connect(&left, true).await;
    intruder.say(MemoryFrame::TakesRegions).await;
    let received = left.received_count();
    intruder
        .call(1, Part::from(vec![1; MIB]), false, &left)
        .await;
    eventually("it is heard", || left.received_count() > received).await;

    let regions: Vec<Part> = (0..16).map(|seed| shared(10, seed)).collect();
    let last = vec![0xA5; 100_000];
    for number in 0..10 {
        let mut parts = regions.clone();
        let body = if number < 9 {
            vec![1; 100_000]
        } else {
            last.clone()
        };
        parts.push(Part::from(body));
        left.agent.enqueue(intruder.node, message(number, &parts));
    }
    left.agent.flush(intruder.node);
    let mut queue = DescriptorQueue::new(1000);
    let mut bytes = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    while !bytes.ends_with(&last) {
        let socket = intruder.bulk().write.socket().expect("a socket");
        match farref_shm::receive(socket, &mut buffer, &mut queue) {
            Ok(read) => bytes.extend_from_slice(&buffer[..read]),
            Err(ReceiveError::Socket(error)) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert_eq!(queue.len(), 64);
    // The others came as bytes.
    let is_there = |part: &Part| {
        let part = part.clone().into_bytes().expect("bytes");
        bytes.windows(part.len()).any(|some| some == part)
    };
    assert!(regions.iter().all(is_there));
}

/// FR-6: more than one write of anybody's can have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_sends_more_descriptors_at_once_than_fit_into_a_frame_is_cut_off() {
    let [right, bystander] = watched().await;
    let mut intruder = Intruder::new();
    intruder.connect(&right, true).await;
    let region = memory(LENGTH, sealed());
    let descriptors = [region.as_fd(); 40];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(40))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let socket = intruder.bulk().write.socket().expect("a socket");
    let bytes = [IoSlice::new(&[1])];
    let sent = sendmsg(socket, &bytes, &mut ancillary, SendFlags::empty());
    assert_eq!(sent, Ok(1));
    assert!(intruder.is_hung_up_on().await);
    eventually("it is blamed", || {
        lock(&right.inbound.misbehaved).len() == 1
    })
    .await;
    is_undisturbed(&bystander, &right).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn regions_are_taken_on_streams_for_bulk_data_only() {
    let [right, bystander] = watched().await;
    let mut intruder = Intruder::new();
    intruder.connect(&right, true).await;
    // Where they belong it may be said again.
    for _ in 0..2 {
        intruder.say(MemoryFrame::TakesRegions).await;
    }
    let part = Part::from(vec![1; MIB]);
    let received = right.received_on(Lane::Bulk).len();
    intruder.call(1, part, false, &right).await;
    eventually("it is heard", || {
        right.received_on(Lane::Bulk).len() > received
    })
    .await;
    intruder.say_on_main(MemoryFrame::TakesRegions).await;
    eventually("it is blamed", || {
        lock(&right.inbound.misbehaved).len() == 1
    })
    .await;
    is_undisturbed(&bystander, &right).await;
}
