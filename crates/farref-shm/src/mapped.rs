//! Regions of others that are mapped here, each one once.
//!
//! The system says which file a descriptor is of. Neither of the two processes has to give it a name, nor to say when it
//! is done: as long as a region is mapped its file exists, so its number is no other file's.

use std::collections::HashMap;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::RefusedDescriptor;
use crate::quota::Quota;
use crate::region::Region;
use crate::sealed::SealedFile;

/// The least number of entries at which those are looked for that nobody uses.
const SWEEP: usize = 16;

/// Maps regions of others, each one once however often it is received, within a [`Quota`].
///
/// A region is unmapped when the last one who uses it has dropped it.
#[derive(Debug)]
pub struct MappedRegions {
    quota: Arc<Quota>,
    regions: Mutex<Regions>,
}

#[derive(Debug, Default)]
struct Regions {
    /// By the number of their file.
    mapped: HashMap<(u64, u64), Weak<Region>>,
    /// The number of entries at which to sweep next.
    sweep_at: usize,
}

/// A region, unmapped when all clones of it are dropped. It is bytes, and may be the owner of some:
/// `Bytes::from_owner(region)`.
#[derive(Clone, Debug)]
pub struct SharedRegion(Arc<Region>);

impl SharedRegion {
    /// What to send to another process.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.descriptor()
    }
}

impl From<Region> for SharedRegion {
    fn from(region: Region) -> Self {
        Self(Arc::new(region))
    }
}

impl MappedRegions {
    /// None yet, and at most as many as the quota says.
    pub fn new(quota: Arc<Quota>) -> Self {
        Self {
            quota,
            regions: Mutex::default(),
        }
    }

    /// The region of a descriptor that was received, and that was said to have so many bytes. Of a region that is mapped
    /// already, and of what is none, the descriptor is closed.
    pub fn map(&self, file: OwnedFd, length: usize) -> Result<SharedRegion, RefusedDescriptor> {
        self.map_sealed(&SealedFile::new(file, length)?)
    }

    /// The same for one that was found to be a region. If there is no room for it, it can still be
    /// [copied](SealedFile::copy).
    pub fn map_sealed(&self, file: &SealedFile) -> Result<SharedRegion, RefusedDescriptor> {
        let identity = file.identity()?;
        // Dropped, if it is of another length, without the lock: it may be the last.
        let is_it = |region: &Arc<Region>| region.len() == file.len();
        let earlier = self.lock().find(identity);
        if let Some(region) = earlier.filter(is_it) {
            return Ok(SharedRegion(region));
        }
        // Not under the lock; so two may do it at once, and one in vain.
        let region = Arc::new(file.map(&self.quota)?);
        let earlier = {
            let mut regions = self.lock();
            let earlier = regions.find(identity);
            if earlier.is_none() {
                regions.insert(identity, &region);
            }
            earlier
        };
        Ok(SharedRegion(earlier.filter(is_it).unwrap_or(region)))
    }

    fn lock(&self) -> MutexGuard<'_, Regions> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Regions {
    /// The region of this file, if it is mapped.
    fn find(&self, identity: (u64, u64)) -> Option<Arc<Region>> {
        self.mapped.get(&identity)?.upgrade()
    }

    fn insert(&mut self, identity: (u64, u64), region: &Arc<Region>) {
        if self.mapped.len() >= self.sweep_at {
            self.mapped.retain(|_, region| region.strong_count() > 0);
            self.sweep_at = SWEEP.max(2 * self.mapped.len());
        }
        self.mapped.insert(identity, Arc::downgrade(region));
    }
}

impl Deref for SharedRegion {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl AsRef<[u8]> for SharedRegion {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;
    use crate::region::RegionWriter;

    /// SH-4: nothing is left of regions that nobody has any more.
    #[test]
    fn regions_that_are_gone_are_forgotten() {
        let made = Quota::new(1, 1 << 20);
        let mapped = MappedRegions::new(Quota::new(1, 1 << 20));
        for _ in 0..10 * SWEEP {
            let mut writer = RegionWriter::create(3, &made).unwrap();
            writer.write_all(b"abc").unwrap();
            let region = writer.seal().unwrap();
            let file = region.descriptor().try_clone_to_owned().unwrap();
            assert_eq!(&*mapped.map(file, 3).unwrap(), b"abc");
        }
        assert_eq!(mapped.quota.used(), (0, 0));
        assert!(mapped.lock().mapped.len() <= 2 * SWEEP);
    }
}
