//! What can go wrong, and whose fault it is.

use std::io;

/// As many regions, or bytes in them, as are allowed are there already.
///
/// Nothing is wrong: the value goes another way, or is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the quota of {regions} regions and {bytes} bytes of shared memory is used up")]
pub struct QuotaExceeded {
    pub(crate) regions: usize,
    pub(crate) bytes: u64,
}

/// A region that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RegionError {
    /// There are too many.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// It is to be sealed before all of it was written: the caller's fault.
    #[error("only {written} of {length} bytes of a region were written")]
    Incomplete {
        /// How many bytes were written.
        written: usize,
        /// How many it was to have.
        length: usize,
    },
    /// The system refuses: no memory, no descriptors, or no such files.
    #[error("shared memory cannot be had: {0}")]
    System(#[from] io::Error),
}

/// A descriptor of a peer's that is no region of the announced length. No correct peer sends one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RefusedDescriptor {
    /// It is something else: a file, a socket, memory in huge pages.
    #[error("a descriptor is not of a region of shared memory")]
    NotARegion,
    /// Somebody could still change it, or shrink it.
    #[error("a region of shared memory is not sealed")]
    Unsealed,
    /// It was not opened for reading.
    #[error("a region of shared memory is not open for reading")]
    Unreadable,
    /// It is shorter or longer than announced.
    #[error("a region of shared memory has {actual} bytes where {announced} were announced")]
    WrongLength {
        /// How many bytes it was said to have.
        announced: u64,
        /// How many it has.
        actual: u64,
    },
    /// Memory for it would be taken only when it is read, and from the reader.
    #[error("a region of shared memory has a hole at {hole} of its {length} bytes")]
    Sparse {
        /// Where the first hole is.
        hole: u64,
        /// How many bytes it has.
        length: u64,
    },
    /// There are too many regions here: not the peer's fault.
    #[error(transparent)]
    Quota(#[from] QuotaExceeded),
    /// The system refuses: not the peer's fault.
    #[error("shared memory cannot be mapped: {0}")]
    System(#[from] io::Error),
}

impl RefusedDescriptor {
    /// Whether the peer did what no correct peer does.
    pub fn is_peers_fault(&self) -> bool {
        match self {
            Self::NotARegion
            | Self::Unsealed
            | Self::Unreadable
            | Self::WrongLength { .. }
            | Self::Sparse { .. } => true,
            Self::Quota(_) | Self::System(_) => false,
        }
    }
}

/// Nothing could be received.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReceiveError {
    /// The peer sent more descriptors than may wait here. No correct peer does that.
    #[error("a peer sent more than {most} descriptors at once")]
    TooMany {
        /// How many may wait.
        most: usize,
    },
    /// This process cannot open those that have come: not the peer's fault.
    #[error("there are no descriptors left for those that a peer sent")]
    NoneLeft,
    /// The socket's error. `WouldBlock` means that nothing is there.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// The memory of a peer cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// It is in a container of its own, or another user's.
    #[error("the peer is not a process of the same user on the same system")]
    Foreign,
    /// This process may not: see [`permit_same_user`](crate::permit_same_user).
    #[error("this process is not permitted to read the peer's memory")]
    NotPermitted,
    /// The system cannot do it: it is old, or a sandbox forbids it.
    #[error("the system does not let processes read each other's memory: {0}")]
    Unsupported(io::Error),
    /// What is at the other end of the socket is not what answers to its process number.
    #[error("the peer's process is not the one whose memory can be read")]
    NotThePeer,
    /// The process has ended, or its connection has: what was read is worth nothing.
    #[error("the peer is gone")]
    Gone,
    /// There is no memory, or none that can be read by others.
    #[error("the peer has no readable memory at {address:#x}")]
    Unreadable {
        /// Where it should have been.
        address: u64,
    },
    /// The caller's buffer is full.
    #[error("a buffer has no room for {missing} more bytes of a peer's memory")]
    NoRoom {
        /// How many bytes had no room.
        missing: usize,
    },
}
