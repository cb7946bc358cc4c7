//! Bytes in memory that other processes of the host can read where it is.
//!
//! What makes that safe is in [`farref_shm`]: the memory is sealed, so that nobody can change it any more, and the system
//! counts who has it. This is what values need of it, and nothing where there is no such thing.

#[cfg(target_os = "linux")]
use std::io::Write as _;
#[cfg(target_os = "linux")]
use std::os::fd::{BorrowedFd, OwnedFd};
#[cfg(target_os = "linux")]
use std::sync::{Arc, LazyLock};

#[cfg(target_os = "linux")]
use farref_shm::{
    MappedRegions, Quota, RefusedDescriptor, RegionError, RegionWriter, SealedFile, SharedRegion,
};

/// So many regions may be made in this process, and as many of others be mapped: each is an open descriptor, of which
/// programs often have no more than a thousand.
#[cfg(target_os = "linux")]
const MOST_REGIONS: usize = 256;
/// And so many bytes in them.
#[cfg(target_os = "linux")]
const MOST_BYTES: u64 = 64 << 30;

#[cfg(target_os = "linux")]
static MADE: LazyLock<Arc<Quota>> = LazyLock::new(|| Quota::new(MOST_REGIONS, MOST_BYTES));
#[cfg(target_os = "linux")]
static RECEIVED: LazyLock<MappedRegions> =
    LazyLock::new(|| MappedRegions::new(Quota::new(MOST_REGIONS, MOST_BYTES)));

/// Bytes that nobody can change, in memory that other processes can be handed. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SharedBytes {
    #[cfg(target_os = "linux")]
    region: SharedRegion,
    #[cfg(not(target_os = "linux"))]
    never: std::convert::Infallible,
}

/// What a descriptor that was received is good for.
#[cfg(target_os = "linux")]
#[derive(Debug)]
pub(crate) enum ReceivedRegion {
    /// It is read where it is.
    InPlace(SharedBytes),
    /// There are too many that are: it has to be copied.
    ToCopy(SealedFile),
}

#[cfg(target_os = "linux")]
impl SharedBytes {
    /// A copy of these bytes in such memory. None if there is none to be had.
    pub(crate) fn copy_of(bytes: &[u8]) -> Option<Self> {
        let copy = || -> Result<_, RegionError> {
            let mut writer = RegionWriter::create(bytes.len(), &MADE)?;
            writer.write_all(bytes)?;
            writer.seal()
        };
        let made = copy();
        if let Err(error) = &made {
            tracing::debug!(%error, "a value is not kept in shared memory");
        }
        let region = made.ok()?.into();
        Some(Self { region })
    }

    /// What a peer has sent the descriptor of, and said to have so many bytes.
    pub(crate) fn receive(
        file: OwnedFd,
        length: usize,
    ) -> Result<ReceivedRegion, RefusedDescriptor> {
        let file = SealedFile::new(file, length)?;
        match RECEIVED.map_sealed(&file) {
            Ok(region) => Ok(ReceivedRegion::InPlace(Self { region })),
            Err(refused) if refused.is_peers_fault() => Err(refused),
            Err(_) => Ok(ReceivedRegion::ToCopy(file)),
        }
    }

    /// What to send to another process.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.region.descriptor()
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.region
    }
}

#[cfg(not(target_os = "linux"))]
impl SharedBytes {
    pub(crate) fn copy_of(_: &[u8]) -> Option<Self> {
        None
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self.never {}
    }
}

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        self.bytes()
    }
}
