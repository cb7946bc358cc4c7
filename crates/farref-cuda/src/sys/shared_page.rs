//! A page of numbers that several processes have, and that their devices read and write by themselves.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::address::{HostAddress, SharedNumber};
use crate::driver::Device;
use crate::error::{CudaError, Result};

/// How much of the file it is.
pub(crate) const SHARED_PAGE: u64 = 4 << 10;
/// How far apart its numbers are: two that change at the same time are not on one line of a cache.
const APART: usize = 64;

/// The first page of a file in memory, mapped here. No driver is needed to read it, to write to it, or to drop it.
#[derive(Debug)]
pub(crate) struct MappedPage(HostAddress);

impl MappedPage {
    /// Maps the page of a file that never becomes shorter: what lies beyond a file's end must not be touched.
    fn map(file: BorrowedFd<'_>) -> Result<Self> {
        let size = fstat(file).map_err(io::Error::from)?.st_size;
        let seals = fcntl_get_seals(file).map_err(io::Error::from)?;
        let is_there = u64::try_from(size).is_ok_and(|size| size >= SHARED_PAGE);
        if !is_there || !seals.contains(SealFlags::SHRINK | SealFlags::SEAL) {
            return Err(CudaError::BadTicket(
                "its ledger can become shorter, or be sealed by others",
            ));
        }
        let (length, both) = (SHARED_PAGE as usize, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the system says where it is, which is nowhere where something else is; and the file is as long, and stays so.
        let address = unsafe {
            mmap(
                std::ptr::null_mut(),
                length,
                both,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        let address = HostAddress::new(address.map_err(io::Error::from)?.cast());
        let address = address.ok_or(io::ErrorKind::OutOfMemory);
        Ok(Self(address.map_err(io::Error::from)?))
    }

    /// One of its numbers.
    pub(crate) fn number(&self, which: usize) -> &AtomicU32 {
        let which = which % (SHARED_PAGE as usize / APART);
        // SAFETY: it lies within the page, which is mapped as long as this is there, and of which only whole numbers are read and written.
        unsafe { AtomicU32::from_ptr(self.0.add(which * APART).pointer().cast()) }
    }
}

impl Drop for MappedPage {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and nobody else has it: whoever has locked it has this.
        let _ = unsafe { munmap(self.0.pointer().cast(), SHARED_PAGE as usize) };
    }
}

/// Such a page, locked for a device.
#[derive(Debug)]
pub(crate) struct SharedPage {
    device: Device,
    page: Arc<MappedPage>,
    at_device: u64,
}

impl SharedPage {
    /// Maps the first page of a file, and locks it.
    pub(crate) fn map(device: &Device, file: BorrowedFd<'_>) -> Result<Self> {
        let page = Arc::new(MappedPage::map(file)?);
        let Device { driver, ordinal } = device;
        let at_device = driver.lock_shared(*ordinal, page.0, SHARED_PAGE as usize)?;
        Ok(Self {
            device: device.clone(),
            page,
            at_device,
        })
    }

    /// The page, which stays mapped as long as somebody has it.
    pub(crate) fn page(&self) -> &Arc<MappedPage> {
        &self.page
    }

    /// The first number, for a stream. Whoever gives it to one keeps this until the stream has done that.
    pub(crate) fn first(&self) -> SharedNumber {
        SharedNumber::new(self.page.0, self.at_device)
    }
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        let Device { driver, ordinal } = &self.device;
        let _ = driver.unlock_host(*ordinal, self.page.0);
    }
}
