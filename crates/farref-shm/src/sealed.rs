//! A descriptor of a peer's that was found to be a region.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use crate::error::RefusedDescriptor;
use crate::quota::Quota;
use crate::region::Region;
use crate::sys::{check, check_holes};

/// Sealed memory of a peer's, not mapped yet. Whether all of it is there is found when it is mapped.
///
/// For whoever wants a copy rather than a mapping: because there are too many of those, or because the program
/// wants a vector of its own.
#[derive(Debug)]
pub struct SealedFile {
    file: Arc<OwnedFd>,
    length: usize,
}

impl SealedFile {
    /// Takes a descriptor as sealed memory of `length` bytes, if it is that. Otherwise it is closed.
    pub fn new(file: OwnedFd, length: usize) -> Result<Self, RefusedDescriptor> {
        match check(file.as_fd(), length) {
            Ok(()) => Ok(Self {
                file: Arc::new(file),
                length,
            }),
            Err(refused) => {
                close(file);
                Err(refused)
            }
        }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Maps it, within a quota, if it has no holes: memory for those would be the reader's to pay. If there is no room
    /// for it, it can still be copied.
    pub fn map(&self, quota: &Arc<Quota>) -> Result<Region, RefusedDescriptor> {
        check_holes(self.file.as_fd(), self.length)?;
        let share = quota.take(self.length as u64)?;
        Region::received(&self.file, self.length, share)
    }

    /// Copies its bytes from `offset` on, which must be as many as `into` has.
    pub fn copy(&self, offset: usize, into: &mut [u8]) -> io::Result<()> {
        let end = offset.checked_add(into.len());
        if end.is_none_or(|end| end > self.length) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while let Some(rest @ [_, ..]) = into.get_mut(done..) {
            match rustix::io::pread(&self.file, rest, (offset + done) as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// What tells it from all other files that are open somewhere.
    pub(crate) fn identity(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.file)?;
        #[allow(
            clippy::useless_conversion,
            reason = "they differ between architectures"
        )]
        Ok((stat.st_dev.into(), stat.st_ino.into()))
    }
}

/// Closes a descriptor of a peer's that is not memory, where nobody waits for it: in a file system of the peer's own
/// that may take as long as the peer likes (SH-2).
pub(crate) fn close(file: OwnedFd) {
    // Without a thread it is closed here.
    let _ = std::thread::Builder::new()
        .name("farref-close".to_owned())
        .spawn(move || drop(file));
}
