//! Descriptors of regions that come beside the bytes of a Unix socket, and what to do with each.
//!
//! What makes that safe is in [`farref_shm`]; this is what the wire needs of it, and nothing where there is no such
//! thing.

#[cfg(target_os = "linux")]
use farref_shm::{DescriptorQueue, SealedFile};

#[cfg(target_os = "linux")]
use crate::codec::ReceivedRegion;
use crate::codec::SharedBytes;

/// The most descriptors that leave with one frame.
#[cfg(target_os = "linux")]
pub(crate) const MOST_PASSED: usize = farref_shm::MAX_DESCRIPTORS;
#[cfg(not(target_os = "linux"))]
pub(crate) const MOST_PASSED: usize = 0;

/// Descriptors that have come, and that no frame has asked for yet.
#[derive(Debug)]
pub(crate) struct Descriptors {
    #[cfg(target_os = "linux")]
    queue: DescriptorQueue,
}

/// A region that has come.
#[derive(Debug)]
pub(crate) enum PassedRegion {
    /// It is read where it is.
    InPlace(SharedBytes),
    /// There are too many that are.
    ToCopy(SealedRegion),
}

/// Memory of a peer's that nobody can change, to be copied.
#[derive(Debug)]
pub(crate) struct SealedRegion {
    #[cfg(target_os = "linux")]
    file: SealedFile,
    #[cfg(not(target_os = "linux"))]
    never: std::convert::Infallible,
}

/// Why a region cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegionFault {
    /// No correct peer sends that.
    #[error("{0}")]
    Peers(String),
    /// The system's, or this process'.
    #[error("{0}")]
    Ours(String),
}

#[cfg(target_os = "linux")]
impl Descriptors {
    /// Before each read at most those of one frame are left, and one read brings at most those of another.
    pub(crate) fn new() -> Self {
        Self {
            queue: DescriptorQueue::new(2 * MOST_PASSED),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes all that others are. Says whether there was room.
    pub(crate) fn append(&mut self, others: &mut Self) -> bool {
        self.queue.append(&mut others.queue)
    }

    pub(super) fn queue(&mut self) -> &mut DescriptorQueue {
        &mut self.queue
    }

    /// The region whose descriptor came first, which is to have so many bytes.
    pub(crate) fn next_region(&mut self, length: usize) -> Result<PassedRegion, RegionFault> {
        let missing = || RegionFault::Peers("a region comes without a descriptor".to_owned());
        let file = self.queue.next().ok_or_else(missing)?;
        match SharedBytes::receive(file, length) {
            Ok(ReceivedRegion::InPlace(shared)) => Ok(PassedRegion::InPlace(shared)),
            Ok(ReceivedRegion::ToCopy(file)) => Ok(PassedRegion::ToCopy(SealedRegion { file })),
            Err(refused) if refused.is_peers_fault() => {
                Err(RegionFault::Peers(refused.to_string()))
            }
            Err(error) => Err(RegionFault::Ours(error.to_string())),
        }
    }
}

#[cfg(target_os = "linux")]
impl SealedRegion {
    /// Copies as many of its bytes as there is room for, from one on.
    pub(crate) fn copy(&self, from: usize, into: &mut [u8]) -> std::io::Result<()> {
        self.file.copy(from, into)
    }
}

#[cfg(not(target_os = "linux"))]
impl Descriptors {
    pub(crate) fn new() -> Self {
        Self {}
    }

    pub(crate) fn is_empty(&self) -> bool {
        true
    }

    pub(crate) fn append(&mut self, _: &mut Self) -> bool {
        true
    }

    pub(crate) fn next_region(&mut self, _: usize) -> Result<PassedRegion, RegionFault> {
        Err(RegionFault::Peers("not on this system".to_owned()))
    }
}

#[cfg(not(target_os = "linux"))]
impl SealedRegion {
    pub(crate) fn copy(&self, _: usize, _: &mut [u8]) -> std::io::Result<()> {
        match self.never {}
    }
}

/// Whether something could not be read because of descriptors that came with it, and whose fault that is.
pub(crate) fn descriptor_fault(error: &std::io::Error) -> Option<RegionFault> {
    #[cfg(target_os = "linux")]
    if let Some(inner) = error.get_ref()
        && let Some(fault) = inner.downcast_ref::<farref_shm::ReceiveError>()
    {
        return match fault {
            farref_shm::ReceiveError::TooMany { .. } => Some(RegionFault::Peers(fault.to_string())),
            _ => Some(RegionFault::Ours(fault.to_string())),
        };
    }
    let _ = error;
    None
}
