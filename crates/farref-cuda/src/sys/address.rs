//! Memory of the host that a device reads and writes by itself: where it is, and the part of it that one copy is about.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

/// Where memory of the host begins.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HostAddress(NonNull<u8>);

// SAFETY: it is only a number until somebody says why it may be used.
unsafe impl Send for HostAddress {}
// SAFETY: the same.
unsafe impl Sync for HostAddress {}

/// Memory of the host that one copy reads or writes.
#[derive(Debug)]
pub(crate) struct HostPart {
    address: HostAddress,
    bytes: usize,
}

/// The length of a page, at least.
const PAGE: usize = 4 << 10;

impl HostAddress {
    pub(super) fn new(address: *mut u8) -> Option<Self> {
        NonNull::new(address).map(Self)
    }

    pub(super) fn pointer(self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// # Safety
    ///
    /// So many bytes must be there.
    pub(super) unsafe fn add(self, bytes: usize) -> Self {
        // SAFETY: the promise of the caller.
        Self(unsafe { self.0.add(bytes) })
    }
}

/// Whole pages of this process, all zero at first.
#[derive(Debug)]
pub(crate) struct Pages {
    address: HostAddress,
    bytes: usize,
}

impl Pages {
    /// None if the system has no so many.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE)?;
        let (read_write, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: the system says where they are, which is nowhere where something else is.
        let address = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, read_write, private) };
        let address = HostAddress::new(address.ok()?.cast())?;
        Some(Self { address, bytes })
    }

    pub(crate) fn address(&self) -> HostAddress {
        self.address
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: they were mapped with this length, and those who use their address do so only as long as they have this.
        let _ = unsafe { munmap(self.address.pointer().cast(), self.bytes) };
    }
}

/// The number at the beginning of a page that is locked and that others have, too, as streams are given it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SharedNumber {
    page: HostAddress,
    at_device: u64,
}

impl SharedNumber {
    /// Of a page that is locked, and not unmapped before it is unlocked.
    pub(super) fn new(page: HostAddress, at_device: u64) -> Self {
        Self { page, at_device }
    }

    /// Where the page is in this process.
    pub(crate) fn page(self) -> HostAddress {
        self.page
    }

    /// Where the device has the number.
    pub(super) fn at_device(self) -> u64 {
        self.at_device
    }

    /// The number itself, for a driver that does by itself what streams are given: as long as the page is locked, which it knows.
    pub(crate) fn with<T>(self, look: impl FnOnce(&AtomicU32) -> T) -> T {
        // SAFETY: the page is mapped, by the promise of `new`; only whole numbers of it are read and written.
        look(unsafe { AtomicU32::from_ptr(self.page.pointer().cast()) })
    }
}

impl HostPart {
    /// # Safety
    ///
    /// The memory must stay there until the copy is done that this is made for; until then nobody may write to it, nor read it
    /// if the copy writes.
    pub(super) unsafe fn new(address: HostAddress, bytes: usize) -> Self {
        Self { address, bytes }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.address.pointer()
    }

    /// What the copy reads, for a driver that copies by itself.
    pub(crate) fn read(&self) -> Vec<u8> {
        // SAFETY: the promise of `new`, and all memory that is given out was written to.
        unsafe { std::slice::from_raw_parts(self.pointer(), self.bytes) }.to_vec()
    }

    /// Writes what the copy writes, as far as there is room.
    pub(crate) fn write(&self, bytes: &[u8]) {
        let bytes = &bytes[..bytes.len().min(self.bytes)];
        // SAFETY: the promise of `new`; the two do not overlap, since nobody has a slice of this memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(), bytes.len()) }
    }
}
