//! The memory of the process at the other end of a Unix socket.
//!
//! The peer says where in its memory something is, and keeps it there until it hears that it was read. The system copies it
//! once, and checks every address; a peer that names a wrong one, or changes what is there meanwhile, makes itself
//! sent something else, no more.
//!
//! A process number says little: the process may have ended, and the number be another's. So (SH-3) the process is held by
//! a descriptor of its own, has to show that it has in its memory what it says over the socket ([`Beacon`]), and after
//! everything that was read it is asked whether it still runs and still has its end of the socket. A process that
//! becomes another program loses that end before its new memory can be read.

use std::io;
use std::os::fd::AsFd;

use bytes::BufMut;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::process::{PTracer, geteuid, getuid, set_ptracer};

use crate::error::PeerError;
use crate::process_memory::{ProcessMemory, is_quiet};
use crate::sys::peer_credentials;

/// How many bytes a [`Beacon`] has.
pub const BEACON: usize = 32;

/// Something in the memory of this process by which a peer knows that it reads the right one's.
///
/// It is made of random bytes. The peer is told where they are and what they are, over the socket.
#[derive(Debug)]
pub struct Beacon(Box<[u8; BEACON]>);

impl Beacon {
    /// Puts random bytes where they stay.
    pub fn new(random: [u8; BEACON]) -> Self {
        Self(Box::new(random))
    }

    /// Where they are.
    pub fn address(&self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    /// What they are.
    pub fn content(&self) -> &[u8; BEACON] {
        &self.0
    }
}

/// The memory of the process at the other end of a Unix socket.
///
/// ```
/// use std::os::unix::net::UnixStream;
///
/// use farref_shm::{Beacon, PeerMemory};
///
/// let (here, there) = UnixStream::pair()?;
/// // The other process says where its beacon is, what it is, and where a value is.
/// let beacon = Beacon::new([7; 32]);
/// let value = b"a value in the memory of the other process";
///
/// let memory = PeerMemory::confirm(&here, beacon.address(), beacon.content())?;
/// let mut copy = Vec::with_capacity(value.len());
/// memory.read(&here, value.as_ptr().addr() as u64, value.len(), &mut copy)?;
/// assert_eq!(copy, value);
/// # drop(there);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct PeerMemory {
    memory: ProcessMemory,
}

impl PeerMemory {
    /// The memory of the process at the other end of a connected Unix socket, if it can be read, and if it has what that
    /// process says of its [`Beacon`].
    ///
    /// May fail where all else works, on many systems: then values go over the socket.
    pub fn confirm(
        socket: impl AsFd,
        address: u64,
        content: &[u8; BEACON],
    ) -> Result<Self, PeerError> {
        let socket = socket.as_fd();
        let peer = peer_credentials(socket).map_err(PeerError::Unsupported)?;
        let pid = peer.pid.ok_or(PeerError::Foreign)?;
        // Not even a superuser reads what is another's: memory can be made that takes for ever to read.
        if peer.uid != getuid() || peer.uid != geteuid() {
            return Err(PeerError::Foreign);
        }
        let memory = Self {
            memory: ProcessMemory::of(pid)?,
        };
        let mut found = [0; BEACON];
        memory.read(socket, address, BEACON, &mut &mut found[..])?;
        if found != *content {
            return Err(PeerError::NotThePeer);
        }
        Ok(memory)
    }

    /// Appends to `into` the `length` bytes that the peer has at an address. `socket` is the one that this was
    /// made for.
    ///
    /// If it fails, `into` may have some of them, which are worth nothing. It takes as long as a copy does; but a
    /// peer can make memory that the system has to ask it for, so this is to be called where it may take long.
    pub fn read(
        &self,
        socket: impl AsFd,
        address: u64,
        length: usize,
        into: &mut impl BufMut,
    ) -> Result<(), PeerError> {
        let copied = self.memory.copy(address, length, into);
        match self.has_connection(socket) {
            true => copied,
            false => Err(PeerError::Gone),
        }
    }

    /// Whether the process runs, and has its end of the socket.
    fn has_connection(&self, socket: impl AsFd) -> bool {
        let socket = socket.as_fd();
        // That the other end was closed is said unasked.
        is_quiet(&mut [
            PollFd::new(self.memory.process(), PollFlags::IN),
            PollFd::new(&socket, PollFlags::empty()),
        ])
    }
}

/// Lets all processes of the same user read this one's memory, where the system would let only its ancestors (Yama, the
/// default of some distributions). That includes debugging it, so this is the program's decision.
pub fn permit_same_user() -> io::Result<()> {
    match set_ptracer(PTracer::Any) {
        // There is no such restriction.
        Err(Errno::INVAL) | Ok(()) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
