//! Sealed memory as a slice of bytes (SH-1).

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::{fmt, io, slice};

use rustix::fs::{OFlags, SealFlags, SeekFrom, fcntl_get_seals, fcntl_getfl, fstat, fstatfs, seek};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::error::RefusedDescriptor;

/// The kind of file system that memory in ordinary pages is in.
const TMPFS: u64 = 0x0102_1994;
/// The smallest page of any system.
const PAGE: usize = 4096;

/// Refuses whatever is not sealed memory of this length that can be read here. Whether all of it is there is not asked.
///
/// SH-2: the seals come first, which only memory has; the system answers that itself. What else a file may be,
/// in a file system of a peer's own say, would be asked for the rest.
pub(crate) fn check(file: BorrowedFd<'_>, length: usize) -> Result<(), RefusedDescriptor> {
    let seals = match fcntl_get_seals(file) {
        Ok(seals) => seals,
        Err(Errno::INVAL | Errno::BADF) => return Err(RefusedDescriptor::NotARegion),
        Err(error) => return Err(RefusedDescriptor::System(error.into())),
    };
    // What could grow would be more than is counted.
    if !seals.contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE) {
        return Err(RefusedDescriptor::Unsealed);
    }
    // Huge pages are a scarce thing of their own, with rules of their own.
    #[allow(clippy::unnecessary_cast, reason = "it differs between architectures")]
    if fstatfs(file).map_err(io::Error::from)?.f_type as u64 != TMPFS {
        return Err(RefusedDescriptor::NotARegion);
    }
    let mode = fcntl_getfl(file).map_err(io::Error::from)? & OFlags::RWMODE;
    if mode == OFlags::WRONLY {
        return Err(RefusedDescriptor::Unreadable);
    }
    let stat = fstat(file).map_err(io::Error::from)?;
    let announced = length as u64;
    let actual = u64::try_from(stat.st_size).unwrap_or(0);
    if actual != announced {
        return Err(RefusedDescriptor::WrongLength { announced, actual });
    }
    Ok(())
}

/// Refuses memory that is not all there, of a file that was [checked](check). No holes can be made in what is sealed, so
/// what is there stays.
///
/// How much memory the file has does not say it: some of that may be beyond its end, and go. The system looks at
/// each page, which takes some 10 ms per GiB.
pub(crate) fn check_holes(file: BorrowedFd<'_>, length: usize) -> Result<(), RefusedDescriptor> {
    let length = length as u64;
    if length == 0 {
        return Ok(());
    }
    // It moves the place where the file is read next, which means nothing to anybody here: all say where they read.
    let hole = seek(file, SeekFrom::Hole(0)).map_err(io::Error::from)?;
    // There is always one at the end.
    if hole < length {
        return Err(RefusedDescriptor::Sparse { hole, length });
    }
    Ok(())
}

/// Sealed memory that is mapped here. Unmapped when dropped.
pub(crate) struct Mapping {
    start: NonNull<c_void>,
    length: usize,
}

impl Mapping {
    /// Maps a file, if it is sealed memory of this length. Whether it has holes is the caller's to know.
    pub(crate) fn new(file: BorrowedFd<'_>, length: usize) -> Result<Self, RefusedDescriptor> {
        check(file, length)?;
        if length == 0 {
            // Nothing can be mapped, and nothing is to be unmapped. Aligned as what is mapped, for elements of any kind.
            let nowhere = NonNull::new(without_provenance_mut(PAGE));
            return Ok(Self {
                start: nowhere.unwrap_or(NonNull::dangling()),
                length,
            });
        }
        // Private, because older systems do not share even for reading what is sealed against writing. The
        // pages are the file's all the same: nobody writes to them here.
        let (protection, flags) = (ProtFlags::READ, MapFlags::PRIVATE);
        // SAFETY: no address is asked for, so no memory that is in use is replaced.
        let start = unsafe { mmap(null_mut(), length, protection, flags, file, 0) };
        let start = start.map_err(io::Error::from)?;
        let start =
            NonNull::new(start).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))?;
        Ok(Self { start, length })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is the beginning of `length` readable bytes, or there are none and it is not null; one
        // mapping is never longer than `isize::MAX`. They live as long as `self`. Nothing changes them: `check`
        // has seen the seal against writing, which the system gives only when nobody can write any more, which
        // lets nobody begin to, and which cannot be taken off; and the mapping is private and not writable.
        // Nothing takes them away: the seal against shrinking is there too, and the mapping keeps the file.
        unsafe { slice::from_raw_parts(self.start.as_ptr().cast(), self.length) }
    }
}

// SAFETY: it is memory that nobody changes, and it may be unmapped by any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing is changed through a shared reference.
unsafe impl Sync for Mapping {}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.length > 0 {
            // SAFETY: it was mapped by `new` with this length, and nobody has a slice of it any more: each one
            // borrows from `self`.
            let unmapped = unsafe { munmap(self.start.as_ptr(), self.length) };
            debug_assert!(unmapped.is_ok(), "{unmapped:?}");
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.length)
    }
}
