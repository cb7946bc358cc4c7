//! Memory of the host for copies, which knows whether one is under way.
//!
//! As long as one is, nobody sees the bytes of a [`HostBlock`], nobody writes to it, and it is not freed.

use std::alloc::{Layout, handle_alloc_error};
use std::sync::atomic::{AtomicUsize, Ordering};

use super::address::{HostAddress, HostPart, Pages};
use super::stream::StreamHandle;
use crate::driver::{Device, DriverResult, EventHandle};
use crate::error::DriverError;

/// Memory of the host for copies from and to one device: page-locked, or plain where that is not to be had.
///
/// A copy has parts, each of them followed by an event on the same stream: so parts are done in order, from the block's beginning on.
#[derive(Debug)]
pub(crate) struct HostBlock {
    device: Device,
    /// `None` only while it is dropped.
    pages: Option<Pages>,
    address: HostAddress,
    capacity: usize,
    is_locked: bool,
    /// One for each part that a copy had so far.
    events: Vec<EventHandle>,
    /// Where the parts of the last copy end.
    parts: Vec<usize>,
    /// How many of them are known to be done.
    done: AtomicUsize,
    /// Whether nobody can say any more when the last copy is done. Then the memory is never used, nor freed, again.
    is_lost: bool,
}

impl HostBlock {
    /// Page-locked memory.
    pub(crate) fn locked(device: &Device, capacity: usize) -> DriverResult<Self> {
        let pages = Pages::new(capacity).ok_or_else(|| DriverError {
            call: "mmap",
            code: DriverError::OUT_OF_MEMORY,
            name: "no memory of the host".to_owned(),
        })?;
        let (address, bytes) = (pages.address(), pages.bytes());
        device.driver.lock_host(device.ordinal, address, bytes)?;
        Ok(Self::new(device, pages, capacity, true))
    }

    /// Plain memory, with which copies take longer.
    pub(crate) fn plain(device: &Device, capacity: usize) -> Self {
        match Pages::new(capacity) {
            Some(pages) => Self::new(device, pages, capacity, false),
            None => {
                handle_alloc_error(Layout::array::<u8>(capacity).unwrap_or(Layout::new::<u8>()))
            }
        }
    }

    fn new(device: &Device, pages: Pages, capacity: usize, is_locked: bool) -> Self {
        Self {
            device: device.clone(),
            address: pages.address(),
            pages: Some(pages),
            capacity: capacity.max(1),
            is_locked,
            events: Vec::new(),
            parts: Vec::new(),
            done: AtomicUsize::new(0),
            is_lost: false,
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.is_locked
    }

    /// Where it begins.
    pub(crate) fn address(&self) -> usize {
        self.address.pointer().addr()
    }

    /// Up to which of its bytes no copy is under way, as far as is known here.
    fn known(&self) -> usize {
        match self.done.load(Ordering::Acquire) {
            _ if self.is_lost => 0,
            done if done >= self.parts.len() => self.capacity,
            0 => 0,
            done => self.parts[done - 1],
        }
    }

    /// The part of the copy after which so many bytes are complete, if there is one that is not known to be done.
    fn part_for(&self, bytes: usize) -> Option<usize> {
        if bytes <= self.known() {
            return None;
        }
        let part = self.parts.iter().position(|&end| end >= bytes);
        Some(part.unwrap_or_else(|| self.parts.len().saturating_sub(1)))
    }

    /// Whether a copy of the first so many bytes is still under way. Asks the driver.
    pub(crate) fn is_busy(&self, bytes: usize) -> bool {
        let Some(part) = self.part_for(bytes) else {
            return false;
        };
        let Some(&event) = self.events.get(part).filter(|_| !self.is_lost) else {
            return true;
        };
        let done = self.device.driver.is_done(self.device.ordinal, event);
        if done == Ok(true) {
            self.done.fetch_max(part + 1, Ordering::AcqRel);
        }
        done != Ok(true)
    }

    /// Waits until no copy of the first so many bytes is under way.
    pub(crate) fn wait(&self, bytes: usize) -> DriverResult<()> {
        if let Some(part) = self.part_for(bytes)
            && let Some(&event) = self.events.get(part).filter(|_| !self.is_lost)
        {
            self.device.driver.wait(self.device.ordinal, event)?;
            self.done.fetch_max(part + 1, Ordering::AcqRel);
        }
        Ok(())
    }

    /// Its first so many bytes, if no copy of them is under way as far as is known here: see [`wait`](Self::wait).
    pub(crate) fn bytes(&self, bytes: usize) -> Option<&[u8]> {
        if bytes > self.known() {
            return None;
        }
        // SAFETY: it is this block's own memory, which is there as long as the block is; no copy writes to these bytes, since
        // none is under way and a new one needs `&mut`. It comes from the system, which has cleared it.
        Some(unsafe { std::slice::from_raw_parts(self.address.pointer(), bytes) })
    }

    /// The same, to be written to, if no copy of anything is under way.
    pub(crate) fn bytes_mut(&mut self, bytes: usize) -> Option<&mut [u8]> {
        if bytes > self.capacity || self.known() < self.capacity {
            return None;
        }
        // SAFETY: as in `bytes`, and nobody else has the block.
        Some(unsafe { std::slice::from_raw_parts_mut(self.address.pointer(), bytes) })
    }

    /// Begins a copy of device memory into the first `bytes` of this block, in parts of so many.
    pub(crate) fn begin_download(
        &mut self,
        from: u64,
        bytes: usize,
        part: usize,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        self.begin(bytes, part, stream, |device, at, part| {
            let from = from + at as u64;
            (device.driver).copy_down(device.ordinal, from, part, stream)
        })
    }

    /// Begins a copy of its first `bytes` into device memory.
    pub(crate) fn begin_upload(
        &mut self,
        bytes: usize,
        to: u64,
        stream: StreamHandle,
    ) -> DriverResult<()> {
        self.begin(bytes, bytes, stream, |device, _, part| {
            device.driver.copy_up(device.ordinal, part, to, stream)
        })
    }

    fn begin(
        &mut self,
        bytes: usize,
        part: usize,
        stream: StreamHandle,
        copy: impl Fn(&Device, usize, HostPart) -> DriverResult<()>,
    ) -> DriverResult<()> {
        self.wait(self.capacity)?;
        self.parts.clear();
        *self.done.get_mut() = 0;
        let (driver, ordinal) = (&self.device.driver, self.device.ordinal);
        let bytes = bytes.min(self.capacity);
        for from in (0..bytes).step_by(part.max(1)) {
            let to = bytes.min(from + part);
            if self.events.len() == self.parts.len() {
                self.events.push(driver.create_event(ordinal)?);
            }
            let event = self.events[self.parts.len()];
            // SAFETY: it lies within the block, whose memory stays and is left alone until the event is done: `known` and `drop` see to
            // that.
            let part = unsafe {
                let begin = self.address.add(from);
                HostPart::new(begin, to - from)
            };
            let begun = copy(&self.device, from, part);
            self.parts.push(to);
            // Also after an error: the driver may have begun.
            if let Err(error) = driver.record(ordinal, event, stream) {
                // Without the event the stream itself says when it is done.
                self.is_lost = driver.synchronize(ordinal, stream).is_err();
                *self.done.get_mut() = self.parts.len();
                return Err(error);
            }
            begun?;
        }
        Ok(())
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        if self.is_lost || self.wait(self.capacity).is_err() {
            // The device may still write to it.
            std::mem::forget(self.pages.take());
            return;
        }
        let (driver, ordinal) = (&self.device.driver, self.device.ordinal);
        for event in self.events.drain(..) {
            let _ = driver.destroy_event(ordinal, event);
        }
        if self.is_locked {
            let _ = driver.unlock_host(ordinal, self.address);
        }
    }
}
