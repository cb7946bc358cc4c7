//! How many regions there may be, and of how many bytes (SH-4).

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::QuotaExceeded;

/// How many regions there may be at a time, and of how many bytes.
///
/// Whoever makes regions and whoever maps those of others each have one. What is dropped is given back.
///
/// ```
/// use farref_shm::{Quota, RegionWriter};
///
/// let quota = Quota::new(1, 1 << 20);
/// let writer = RegionWriter::create(0, &quota)?;
/// assert!(RegionWriter::create(0, &quota).is_err());
/// drop(writer);
/// assert!(RegionWriter::create(0, &quota).is_ok());
/// # Ok::<(), farref_shm::RegionError>(())
/// ```
#[derive(Debug)]
pub struct Quota {
    regions: usize,
    bytes: u64,
    used: Mutex<(usize, u64)>,
}

/// One region's share of a quota. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    quota: Arc<Quota>,
    bytes: u64,
}

impl Quota {
    /// So many regions, and so many bytes in all of them together. Each region is an open descriptor and a mapping.
    pub fn new(regions: usize, bytes: u64) -> Arc<Self> {
        Arc::new(Self {
            regions,
            bytes,
            used: Mutex::default(),
        })
    }

    /// How many regions there are, and of how many bytes.
    pub fn used(&self) -> (usize, u64) {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn take(self: &Arc<Self>, bytes: u64) -> Result<Share, QuotaExceeded> {
        let exceeded = QuotaExceeded {
            regions: self.regions,
            bytes: self.bytes,
        };
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let regions = used.0 + 1;
        let total = used.1.checked_add(bytes).ok_or(exceeded)?;
        if regions > self.regions || total > self.bytes {
            return Err(exceeded);
        }
        *used = (regions, total);
        Ok(Share {
            quota: Arc::clone(self),
            bytes,
        })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = (self.quota.used.lock()).unwrap_or_else(PoisonError::into_inner);
        used.0 -= 1;
        used.1 -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_holds_in_regions_and_in_bytes_and_gets_all_back() {
        let quota = Quota::new(2, 100);
        let a = quota.take(60).unwrap();
        assert!(quota.take(41).is_err(), "too many bytes");
        assert!(quota.take(u64::MAX).is_err());
        let b = quota.take(40).unwrap();
        assert!(quota.take(0).is_err(), "too many regions");
        assert_eq!(quota.used(), (2, 100));
        drop(a);
        assert!(quota.take(60).is_ok());
        drop(b);
        assert_eq!(quota.used(), (0, 0));
    }
}
