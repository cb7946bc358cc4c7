//! A page of numbers that several processes have, and that their devices read and write by themselves.

use std::io;
use std::os::fd::BorrowedFd;
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

/// The first page of a file in memory, mapped here and locked for a device.
#[derive(Debug)]
pub(crate) struct SharedPage {
    device: Device,
    address: HostAddress,
    at_device: u64,
}

impl SharedPage {
    /// Maps the page of a file that never becomes shorter: what lies beyond a file's end must not be touched.
    pub(crate) fn map(device: &Device, file: BorrowedFd<'_>) -> Result<Self> {
        let size = fstat(file).map_err(io::Error::from)?.st_size;
        let seals = fcntl_get_seals(file).map_err(io::Error::from)?;
        let is_there = u64::try_from(size).is_ok_and(|size| size >= SHARED_PAGE);
        if !is_there || !seals.contains(SealFlags::SHRINK) {
            return Err(CudaError::BadTicket("its ledger can become shorter"));
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
        let address = address
            .ok_or(io::ErrorKind::OutOfMemory)
            .map_err(io::Error::from)?;
        let locked = (device.driver).lock_shared(device.ordinal, address, length);
        let at_device = match locked {
            Ok(at_device) => at_device,
            Err(error) => {
                unmap(address);
                return Err(error.into());
            }
        };
        Ok(Self {
            device: device.clone(),
            address,
            at_device,
        })
    }

    /// The first number, for a stream. Whoever gives it to one keeps the page until the stream has done that.
    pub(crate) fn first(&self) -> SharedNumber {
        SharedNumber::new(self.address, self.at_device)
    }

    /// One of its numbers.
    pub(crate) fn number(&self, which: usize) -> &AtomicU32 {
        let which = which % (SHARED_PAGE as usize / APART);
        // SAFETY: it lies within the page, which is mapped as long as this is there, and of which only whole numbers are read and written.
        unsafe { AtomicU32::from_ptr(self.address.add(which * APART).pointer().cast()) }
    }
}

fn unmap(address: HostAddress) {
    // SAFETY: it was mapped with this length, and nobody else has it.
    let _ = unsafe { munmap(address.pointer().cast(), SHARED_PAGE as usize) };
}

impl Drop for SharedPage {
    fn drop(&mut self) {
        let Device { driver, ordinal } = &self.device;
        let _ = driver.unlock_host(*ordinal, self.address);
        unmap(self.address);
    }
}
