//! The memory of the process at the other end of a Unix socket, where the system lets it be read.
//!
//! What makes that safe is in [`farref_shm`]; this is what the wire needs of it, and nothing where there is no such
//! thing.

use bytes::BufMut;
#[cfg(target_os = "linux")]
use farref_shm::PeerError;
#[cfg(target_os = "linux")]
use ring::rand::{SecureRandom, SystemRandom};
use serde::{Deserialize, Serialize};

use super::stream::WriteHalf;

/// What a process says of its memory, so that a peer can see that it reads the right one's.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct MemoryClaim {
    /// There are these bytes ..
    content: [u8; 32],
    /// .. at this address.
    address: u64,
}

/// Why the memory of a peer cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum MemoryError {
    /// The process or the connection has ended: what was read is worth nothing.
    #[error("the peer is gone")]
    Gone,
    /// It cannot be read that way, now or later.
    #[error("{0}")]
    Unreadable(String),
}

/// The memory of this process, as peers are offered it.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    #[cfg(target_os = "linux")]
    beacon: farref_shm::Beacon,
    #[cfg(not(target_os = "linux"))]
    never: std::convert::Infallible,
}

/// The memory of the process at the other end of a stream.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    #[cfg(target_os = "linux")]
    memory: farref_shm::PeerMemory,
    #[cfg(not(target_os = "linux"))]
    never: std::convert::Infallible,
}

#[cfg(target_os = "linux")]
impl OwnMemory {
    /// None where there is no such thing.
    pub(crate) fn new() -> Option<Self> {
        let mut random = [0; farref_shm::BEACON];
        SystemRandom::new().fill(&mut random).ok()?;
        let beacon = farref_shm::Beacon::new(random);
        Some(Self { beacon })
    }

    pub(crate) fn claim(&self) -> MemoryClaim {
        MemoryClaim {
            content: *self.beacon.content(),
            address: self.beacon.address(),
        }
    }
}

#[cfg(target_os = "linux")]
impl PeerMemory {
    /// The memory of the process at the other end, if it can be read and is as claimed. May take as long as the peer
    /// likes.
    pub(crate) fn confirm(stream: &WriteHalf, claim: &MemoryClaim) -> Result<Self, MemoryError> {
        let socket = stream.unix_socket().ok_or_else(no_socket)?;
        let memory = farref_shm::PeerMemory::confirm(socket, claim.address, &claim.content)?;
        Ok(Self { memory })
    }

    /// Appends so many bytes that the peer has at an address. `stream` is the one that this was made for. May take as
    /// long as the peer likes.
    pub(crate) fn read(
        &self,
        stream: &WriteHalf,
        address: u64,
        length: usize,
        mut into: &mut dyn BufMut,
    ) -> Result<(), MemoryError> {
        let socket = stream.unix_socket().ok_or_else(no_socket)?;
        Ok(self.memory.read(socket, address, length, &mut into)?)
    }
}

#[cfg(target_os = "linux")]
fn no_socket() -> MemoryError {
    MemoryError::Unreadable("only a Unix socket says whose it is".to_owned())
}

#[cfg(target_os = "linux")]
impl From<PeerError> for MemoryError {
    fn from(error: PeerError) -> Self {
        match error {
            PeerError::Gone => Self::Gone,
            other => Self::Unreadable(other.to_string()),
        }
    }
}

#[cfg(not(target_os = "linux"))]
impl OwnMemory {
    pub(crate) fn new() -> Option<Self> {
        None
    }

    pub(crate) fn claim(&self) -> MemoryClaim {
        match self.never {}
    }
}

#[cfg(not(target_os = "linux"))]
impl PeerMemory {
    pub(crate) fn confirm(_: &WriteHalf, _: &MemoryClaim) -> Result<Self, MemoryError> {
        Err(MemoryError::Unreadable("not on this system".to_owned()))
    }

    pub(crate) fn read(
        &self,
        _: &WriteHalf,
        _: u64,
        _: usize,
        _: &mut dyn BufMut,
    ) -> Result<(), MemoryError> {
        match self.never {}
    }
}
