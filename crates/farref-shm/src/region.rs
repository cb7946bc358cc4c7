//! Memory that is written once, sealed, and read where it is by whoever gets its descriptor.

use std::io::{self, Write};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;

use crate::error::{RefusedDescriptor, RegionError};
use crate::quota::{Quota, Share};
use crate::sys::Mapping;

/// What people see of it in `/proc`.
const NAME: &str = "farref";

/// Memory that nobody can change any more, mapped into this process.
///
/// It is bytes, and may be the owner of some: `Bytes::from_owner(region)`. Page-aligned, so elements of any kind
/// can be read in place. The memory is given back when all processes have dropped theirs or have died.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
    /// By it others get it.
    descriptor: Arc<OwnedFd>,
    _share: Share,
}

impl Region {
    /// What to send to another process, be it made by this one or received.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Maps what another process has made.
    pub(crate) fn received(
        file: &Arc<OwnedFd>,
        length: usize,
        share: Share,
    ) -> Result<Self, RefusedDescriptor> {
        Ok(Self {
            mapping: Mapping::new(file.as_fd(), length)?,
            descriptor: Arc::clone(file),
            _share: share,
        })
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mapping.bytes()
    }
}

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self.mapping.bytes()
    }
}

/// A region that is being written. Nobody else sees it yet.
///
/// ```
/// use std::io::Write;
///
/// use farref_shm::{Quota, RegionWriter};
///
/// let mut writer = RegionWriter::create(5, &Quota::new(64, 1 << 30))?;
/// writer.write_all(b"bytes")?;
/// assert!(writer.write_all(b"beyond").is_err());
/// assert_eq!(&*writer.seal()?, b"bytes");
/// # Ok::<(), farref_shm::RegionError>(())
/// ```
#[derive(Debug)]
pub struct RegionWriter {
    file: OwnedFd,
    written: usize,
    length: usize,
    share: Share,
}

impl RegionWriter {
    /// A region of this length, within a quota. No memory is taken before it is written.
    pub fn create(length: usize, quota: &Arc<Quota>) -> Result<Self, RegionError> {
        let share = quota.take(length as u64)?;
        Ok(Self {
            file: create_file()?,
            written: 0,
            length,
            share,
        })
    }

    /// Makes it unchangeable. All of it must have been written.
    pub fn seal(self) -> Result<Region, RegionError> {
        if self.written < self.length {
            return Err(RegionError::Incomplete {
                written: self.written,
                length: self.length,
            });
        }
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&self.file, seals).map_err(io::Error::from)?;
        let mapping = Mapping::new(self.file.as_fd(), self.length).map_err(io::Error::other)?;
        Ok(Region {
            mapping,
            descriptor: Arc::new(self.file),
            _share: self.share,
        })
    }
}

impl Write for RegionWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = self.length - self.written;
        let bytes = bytes.get(..room).unwrap_or(bytes);
        // Not through a mapping: that would have the system write zeros first.
        let written = rustix::io::write(&self.file, bytes)?;
        self.written += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Memory as a file without a name, which can be sealed.
fn create_file() -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    match memfd_create(NAME, flags | MemfdFlags::NOEXEC_SEAL) {
        // Before Linux 6.3.
        Err(Errno::INVAL) => Ok(memfd_create(NAME, flags)?),
        created => Ok(created?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota() -> Arc<Quota> {
        Quota::new(8, 1 << 24)
    }

    #[test]
    fn what_was_written_is_what_is_there_and_nobody_can_write_it_any_more() {
        for length in [0, 1, 4096, 300_001] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8).collect();
            let mut writer = RegionWriter::create(length, &quota()).unwrap();
            writer.write_all(&bytes).unwrap();
            let region = writer.seal().unwrap();
            assert_eq!(&*region, bytes);
            let file = region.descriptor();
            assert_eq!(rustix::io::pwrite(file, b"x", 0), Err(Errno::PERM));
            assert_eq!(rustix::fs::ftruncate(file, 0).is_err(), length > 0);
        }
    }

    #[test]
    fn half_a_region_is_none() {
        let mut writer = RegionWriter::create(10, &quota()).unwrap();
        writer.write_all(b"half").unwrap();
        let error = writer.seal().unwrap_err();
        assert!(matches!(
            error,
            RegionError::Incomplete {
                written: 4,
                length: 10
            }
        ));
    }

    #[test]
    fn no_more_is_written_than_was_announced() {
        let quota = quota();
        let mut writer = RegionWriter::create(3, &quota).unwrap();
        let error = writer.write_all(b"four").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WriteZero);
        assert_eq!(&*writer.seal().unwrap(), b"fou");
        assert_eq!(quota.used(), (0, 0));
    }
}
