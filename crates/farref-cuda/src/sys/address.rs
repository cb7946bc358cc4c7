//! Memory of the host that a device reads and writes by itself: where it is, and the part of it that one copy is about.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;

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

/// The alignment of memory that is not the driver's.
const ALIGNMENT: usize = 64;

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

/// Memory that is not the driver's, all zero at first.
#[derive(Debug)]
pub(crate) struct PlainMemory {
    address: HostAddress,
    bytes: usize,
}

impl PlainMemory {
    pub(crate) fn new(bytes: usize) -> Self {
        let layout = layout(bytes);
        // SAFETY: the layout has at least one byte.
        match HostAddress::new(unsafe { alloc_zeroed(layout) }) {
            Some(address) => Self { address, bytes },
            None => handle_alloc_error(layout),
        }
    }

    pub(crate) fn address(&self) -> HostAddress {
        self.address
    }
}

impl Drop for PlainMemory {
    fn drop(&mut self) {
        // SAFETY: it was allocated with this layout, and those who use its address do so only as long as they have this.
        unsafe { dealloc(self.address.pointer(), layout(self.bytes)) }
    }
}

fn layout(bytes: usize) -> Layout {
    // A length that no memory can have fails when it is allocated.
    let most = isize::MAX as usize - ALIGNMENT;
    Layout::from_size_align(bytes.clamp(1, most), ALIGNMENT).expect("it was made to fit")
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
