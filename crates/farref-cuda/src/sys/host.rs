//! Memory of the host that a device reads and writes by itself.
//!
//! A [`HostBlock`] knows whether a copy is under way: as long as one is, nobody sees its bytes, nobody writes to it, and it is not
//! freed.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

use super::stream::StreamHandle;
use crate::driver::{Device, DriverResult, EventHandle};

/// Where memory of the host begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
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

    /// Plain memory, all zero. Freed with [`free_plain`](Self::free_plain) only.
    pub(crate) fn plain(bytes: usize) -> Self {
        let layout = layout(bytes);
        // SAFETY: the layout has at least one byte.
        match Self::new(unsafe { alloc_zeroed(layout) }) {
            Some(address) => address,
            None => handle_alloc_error(layout),
        }
    }

    /// # Safety
    ///
    /// It must be from [`plain`](Self::plain) with as many bytes, and nobody may use it any more.
    pub(crate) unsafe fn free_plain(self, bytes: usize) {
        // SAFETY: the caller's promise.
        unsafe { dealloc(self.pointer(), layout(bytes)) }
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
    unsafe fn new(address: HostAddress, bytes: usize) -> Self {
        Self { address, bytes }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn pointer(&self) -> *mut u8 {
        self.address.pointer()
    }
}

/// Memory of the host for copies from and to one device: page-locked, or plain where that is not to be had.
#[derive(Debug)]
pub(crate) struct HostBlock {
    device: Device,
    address: HostAddress,
    capacity: usize,
    is_locked: bool,
    /// Recorded after each copy. Made for the first one.
    event: Option<EventHandle>,
    /// Whether a copy was begun that is not known to be done.
    is_busy: AtomicBool,
    /// Whether nobody can say any more when the last copy is done. Then the memory is never used, nor freed, again.
    is_lost: bool,
}

impl HostBlock {
    /// Page-locked memory.
    pub(crate) fn locked(device: &Device, capacity: usize) -> DriverResult<Self> {
        let capacity = capacity.max(1);
        let address = device.driver.allocate_host(device.ordinal, capacity)?;
        Ok(Self::new(device, address, capacity, true))
    }

    /// Plain memory, with which copies take longer.
    pub(crate) fn plain(device: &Device, capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self::new(device, HostAddress::plain(capacity), capacity, false)
    }

    fn new(device: &Device, address: HostAddress, capacity: usize, is_locked: bool) -> Self {
        Self {
            device: device.clone(),
            address,
            capacity,
            is_locked,
            event: None,
            is_busy: AtomicBool::new(false),
            is_lost: false,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Whether a copy is still under way. Asks the driver.
    pub(crate) fn is_busy(&self) -> bool {
        if self.is_lost {
            return true;
        }
        if !self.is_busy.load(Ordering::Acquire) {
            return false;
        }
        let Some(event) = self.event else { return true };
        let done = self.device.driver.is_done(self.device.ordinal, event);
        if done == Ok(true) {
            self.is_busy.store(false, Ordering::Release);
        }
        done != Ok(true)
    }

    /// Waits until no copy is under way.
    pub(crate) fn wait(&self) -> DriverResult<()> {
        if let Some(event) = self.event
            && self.is_busy.load(Ordering::Acquire)
        {
            self.device.driver.wait(self.device.ordinal, event)?;
            self.is_busy.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Its bytes, if no copy is under way as far as is known here: see [`wait`](Self::wait).
    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if self.is_lost || self.is_busy.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: it is this block's own memory, which is there as long as the block is; no copy writes to it, since none is
        // under way and a new one needs `&mut`. The driver's memory comes from the system, which has cleared it.
        Some(unsafe { std::slice::from_raw_parts(self.address.pointer(), self.capacity) })
    }

    /// The same, to be written to.
    pub(crate) fn bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.is_lost || *self.is_busy.get_mut() {
            return None;
        }
        // SAFETY: as in `bytes`, and nobody else has the block.
        Some(unsafe { std::slice::from_raw_parts_mut(self.address.pointer(), self.capacity) })
    }

    /// Begins a copy of device memory into the first `bytes` of this block.
    pub(crate) fn begin_download(
        &mut self,
        from: u64,
        bytes: usize,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        let bytes = bytes.min(self.capacity);
        self.begin(0..bytes, stream, |device, part| {
            (device.driver).copy_down(device.ordinal, from, part, stream)
        })
    }

    /// Begins a copy of some of its bytes into device memory.
    pub(crate) fn begin_upload(
        &mut self,
        range: Range<usize>,
        to: u64,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        let end = range.end.min(self.capacity);
        self.begin(range.start.min(end)..end, stream, |device, part| {
            device.driver.copy_up(device.ordinal, part, to, stream)
        })
    }

    fn begin(
        &mut self,
        range: Range<usize>,
        stream: StreamHandle,
        copy: impl FnOnce(&Device, HostPart) -> DriverResult<()>,
    ) -> DriverResult<()> {
        self.wait()?;
        let (driver, ordinal) = (&self.device.driver, self.device.ordinal);
        let event = match self.event {
            Some(event) => event,
            None => *self.event.insert(driver.create_event(ordinal, false)?),
        };
        // SAFETY: the range lies within the block, whose memory stays and is left alone until the event is done: `bytes` and
        // `drop` see to that.
        let part = unsafe {
            let begin = HostAddress(self.address.0.add(range.start));
            HostPart::new(begin, range.len())
        };
        let begun = copy(&self.device, part);
        // Also after an error: the driver may have begun.
        match driver.record(ordinal, event, stream) {
            Ok(()) => *self.is_busy.get_mut() = true,
            // Without the event the stream itself says when it is done.
            Err(error) => {
                self.is_lost = driver.synchronize(ordinal, stream).is_err();
                return Err(error);
            }
        }
        begun
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if self.is_lost || self.wait().is_err() {
            // The device may still write to it.
            return;
        }
        let (driver, ordinal) = (&self.device.driver, self.device.ordinal);
        if let Some(event) = self.event {
            let _ = driver.destroy_event(ordinal, event);
        }
        if self.is_locked {
            let _ = driver.free_host(ordinal, self.address);
        } else {
            // SAFETY: it was made by `plain` with this capacity, and no copy is under way.
            unsafe { self.address.free_plain(self.capacity) }
        }
    }
}
