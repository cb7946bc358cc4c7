//! The memory of other processes.

use std::os::unix::net::UnixStream;

use anyhow::{Context as _, Result, ensure};
use bytes::BufMut as _;
use farref_shm::{BEACON, Beacon, PeerError, PeerMemory, permit_same_user};

use crate::peer::{LENGTH, Note, Peer, pattern};

type Tests = &'static [(&'static str, fn() -> Result<()>)];

pub(crate) const TESTS: Tests = &[
    ("a_value_is_read_out_of_a_peers_memory", value),
    ("an_address_that_is_none_is_an_error", wrong_address),
    ("no_more_is_read_than_there_is_room_for", no_room),
    ("a_peer_has_to_have_what_it_says_sh_3", wrong_beacon),
    (
        "whoever_only_has_the_socket_is_not_the_peer_sh_3",
        inherited_socket,
    ),
    ("a_peer_of_another_user_is_not_read_sh_3", another_user),
    ("what_a_dead_peer_had_is_worth_nothing_sh_3", dead),
    (
        "a_peer_that_became_another_program_is_gone_sh_3",
        another_program,
    ),
    ("a_peer_that_hung_up_is_gone_sh_3", hung_up),
    ("a_process_can_say_that_others_may_read_it", permission),
];

fn confirm(peer: &Peer, note: &Note) -> Result<PeerMemory, PeerError> {
    PeerMemory::confirm(&peer.socket, note.beacon_address, &note.beacon)
}

fn start() -> Result<(Peer, Note, PeerMemory)> {
    let mut peer = Peer::start("memory")?;
    let note = peer.note()?;
    let memory = confirm(&peer, &note)?;
    Ok((peer, note, memory))
}

fn value() -> Result<()> {
    let (peer, note, memory) = start()?;
    // Into memory that nothing was written to before.
    let mut copy = Vec::with_capacity(LENGTH + 3);
    copy.extend_from_slice(b"...");
    memory.read(&peer.socket, note.address, LENGTH, &mut copy)?;
    ensure!(copy[..3] == *b"..." && copy[3..] == pattern(LENGTH));
    // And into a slice, from the middle.
    let mut part = [0; 1000];
    memory.read(&peer.socket, note.address + 5000, 1000, &mut &mut part[..])?;
    ensure!(part[..] == pattern(LENGTH)[5000..6000]);
    // Nothing is nothing.
    memory.read(&peer.socket, 0, 0, &mut copy)?;
    ensure!(copy.len() == LENGTH + 3);
    Ok(())
}

fn wrong_address() -> Result<()> {
    let (peer, note, memory) = start()?;
    for address in [0, 1 << 46, u64::MAX - 3, u64::MAX] {
        let mut copy = Vec::with_capacity(8);
        let error = memory.read(&peer.socket, address, 8, &mut copy).err();
        let error = error.context("there is nothing")?;
        ensure!(matches!(error, PeerError::Unreadable { .. }), "{error:?}");
    }
    // Where the memory ends at last. As much as that is more than the peer has anywhere.
    let mut copy = Vec::new();
    let error = memory
        .read(&peer.socket, note.address, 1 << 32, &mut copy)
        .err();
    ensure!(matches!(error, Some(PeerError::Unreadable { address }) if address > note.address));
    Ok(())
}

fn no_room() -> Result<()> {
    let (peer, note, memory) = start()?;
    let mut copy = Vec::with_capacity(100);
    let mut room = (&mut copy).limit(100);
    let error = memory
        .read(&peer.socket, note.address, LENGTH, &mut room)
        .err();
    let missing = LENGTH - 100;
    ensure!(matches!(error, Some(PeerError::NoRoom { missing: left }) if left == missing));
    ensure!(copy == pattern(LENGTH)[..100]);
    Ok(())
}

fn wrong_beacon() -> Result<()> {
    let mut peer = Peer::start("wrong beacon")?;
    let mut note = peer.note()?;
    let error = confirm(&peer, &note).err();
    ensure!(matches!(error, Some(PeerError::NotThePeer)), "{error:?}");
    note.beacon_address = 0;
    let error = confirm(&peer, &note).err();
    ensure!(
        matches!(error, Some(PeerError::Unreadable { .. })),
        "{error:?}"
    );
    Ok(())
}

fn inherited_socket() -> Result<()> {
    // Both ends were made by this process, whoever has them now. What another one says of its memory is not here.
    let (here, _there) = UnixStream::pair()?;
    let mine = Beacon::new([1; BEACON]);
    let error = PeerMemory::confirm(&here, mine.address(), &[2; BEACON]).err();
    ensure!(matches!(error, Some(PeerError::NotThePeer)), "{error:?}");
    Ok(())
}

fn another_user() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only a superuser can start a process of another user");
        return Ok(());
    }
    // Not even by a superuser, who may.
    let mut peer = Peer::start_as("memory", Some(65534))?;
    let note = peer.note()?;
    let error = confirm(&peer, &note).err();
    ensure!(matches!(error, Some(PeerError::Foreign)), "{error:?}");
    Ok(())
}

fn expect_gone(peer: &Peer, note: &Note, memory: &PeerMemory) -> Result<()> {
    let mut copy = Vec::with_capacity(LENGTH);
    let error = memory
        .read(&peer.socket, note.address, LENGTH, &mut copy)
        .err();
    ensure!(matches!(error, Some(PeerError::Gone)), "{error:?}");
    let error = confirm(peer, note).err();
    ensure!(matches!(error, Some(PeerError::Gone)), "{error:?}");
    Ok(())
}

fn dead() -> Result<()> {
    let (mut peer, note, memory) = start()?;
    peer.kill()?;
    expect_gone(&peer, &note, &memory)
}

fn another_program() -> Result<()> {
    let mut peer = Peer::start("memory of another program")?;
    let note = peer.note()?;
    let memory = confirm(&peer, &note)?;
    peer.go_on()?;
    peer.hung_up()?;
    expect_gone(&peer, &note, &memory)
}

fn hung_up() -> Result<()> {
    // The process is there, and so is its memory, but who says that it is the same value?
    let (here, there) = UnixStream::pair()?;
    let beacon = Beacon::new([3; BEACON]);
    let memory = PeerMemory::confirm(&here, beacon.address(), beacon.content())?;
    drop(there);
    let mut copy = Vec::with_capacity(BEACON);
    let error = memory
        .read(&here, beacon.address(), BEACON, &mut copy)
        .err();
    ensure!(matches!(error, Some(PeerError::Gone)), "{error:?}");
    Ok(())
}

fn permission() -> Result<()> {
    Ok(permit_same_user()?)
}
