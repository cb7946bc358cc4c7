//! What can go wrong, and whose fault it is.

use std::io;

use crate::facts::DeviceUuid;

/// The result of most things here.
pub type Result<T, E = CudaError> = std::result::Result<T, E>;

/// A call of the driver that failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call} failed: {name} ({code})")]
pub struct DriverError {
    /// The function of the driver.
    pub call: &'static str,
    /// The driver's number for what happened.
    pub code: u32,
    /// The driver's name for it.
    pub name: String,
}

impl DriverError {
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: u32 = 1;
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: u32 = 2;
    /// `CUDA_ERROR_DEINITIALIZED`: the process is about to end.
    pub const DEINITIALIZED: u32 = 4;
}

/// What can go wrong with device memory.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CudaError {
    /// This machine has no driver, or one that is too old.
    #[error("no CUDA driver here: {0}")]
    NoDriver(String),
    /// The driver refuses.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// There is no such device in this process.
    #[error("there is no CUDA device {ordinal}: this process has {count}")]
    NoDevice {
        /// The number that was asked for.
        ordinal: u32,
        /// How many there are.
        count: u32,
    },
    /// The device cannot do what is needed.
    #[error("CUDA device {ordinal} cannot share its memory: {missing}")]
    Unsupported {
        /// Which device.
        ordinal: u32,
        /// What it lacks.
        missing: &'static str,
    },
    /// More memory is to be reserved than is free.
    #[error("{asked} bytes are to be reserved on a CUDA device where {free} are free")]
    NotEnoughMemory {
        /// How many bytes were asked for.
        asked: u64,
        /// How many are free.
        free: u64,
    },
    /// As many bytes as are allowed are out, or locked, already. Nothing is wrong: whoever asks copies instead.
    #[error("no {asked} bytes more: {used} of {limit} are used")]
    LimitReached {
        /// How many bytes were asked for.
        asked: u64,
        /// How many are used.
        used: u64,
        /// How many there may be.
        limit: u64,
    },
    /// The allocation is longer than what the driver can share. Nothing is wrong: whoever asks copies instead.
    #[error("an allocation of {bytes} bytes cannot be shared: {limit} can")]
    TooLarge {
        /// How long it is.
        bytes: u64,
        /// How long it may be.
        limit: u64,
    },
    /// The memory is not of the pool that is to export it: it was allocated before there was one, or by somebody else.
    #[error("device memory at {pointer:#x} is not of the shared pool")]
    NotOurs {
        /// Where it is.
        pointer: u64,
    },
    /// It is not the beginning of an allocation, or longer than the allocation is.
    #[error("there is no allocation of {bytes} bytes that begins at {pointer:#x}")]
    NotAnAllocation {
        /// Where it was said to begin.
        pointer: u64,
        /// How long it was said to be.
        bytes: u64,
    },
    /// The pool is on another host, or this host was started again since.
    #[error("a pool of another host")]
    OtherHost,
    /// The pool's GPU is none of those that this process sees.
    #[error("a pool on a GPU that this process does not see: {uuid}")]
    OtherDevice {
        /// That GPU.
        uuid: DeviceUuid,
    },
    /// Whoever answers for the pool is another user.
    #[error("a pool of another user")]
    OtherUser,
    /// Nobody answers for the pool: its process has ended, or is in another network namespace.
    #[error("the process that has the pool cannot be reached: {0}")]
    Unreachable(#[source] io::Error),
    /// Its process does not give the pool's descriptor: the pool is gone, or the ticket is not one of its own.
    #[error("the pool is not given")]
    Refused,
    /// A ticket that no correct peer gives.
    #[error("a wrong ticket: {0}")]
    BadTicket(&'static str),
    /// A message that no correct peer sends.
    #[error("a wrong message about device memory: {0}")]
    BadMessage(&'static str),
    /// The memory was imported here before and not given back yet. The driver has it once for all of a process: whoever asks uses
    /// what is there ([`ImportedPool::import_shared`](crate::ImportedPool::import_shared)), or copies it
    /// ([`ImportedPool::copy`](crate::ImportedPool::copy)).
    #[error("the device memory has been imported already")]
    AlreadyImported,
    /// Its exporter does not keep it any more: the message comes too late.
    #[error("the device memory is not shared any more")]
    NotShared,
    /// The process that had the memory has died, and it is not known whether its work on it was done.
    #[error(
        "the process that has the device memory died before its work on it was known to be done"
    )]
    ExporterGone,
    /// The stream is being captured for a graph: what it is given now would be done whenever the graph is run.
    #[error(
        "the stream is captured for a graph, and work of several processes cannot be put in order meanwhile"
    )]
    Captured,
    /// Bytes are asked for that are not there: the caller's fault.
    #[error("bytes {from} to {to} of {bytes}")]
    OutOfRange {
        /// The first one.
        from: u64,
        /// The first one that is not asked for any more.
        to: u64,
        /// How many there are.
        bytes: u64,
    },
    /// The system refuses.
    #[error("device memory cannot be shared: {0}")]
    System(#[from] io::Error),
}

impl CudaError {
    /// Whether the peer did what no correct peer does.
    pub fn is_peers_fault(&self) -> bool {
        matches!(self, Self::BadTicket(_) | Self::BadMessage(_))
    }
}
