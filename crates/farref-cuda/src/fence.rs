//! Numbers by which other processes know that the work is done which was given to a device before an export (CU-2).
//!
//! An importer waits for the last number, which may be a later one than that of its own export. That must not mean less: each is reached after all
//! earlier ones (PG-1). On one stream that is so by itself. Numbers of several streams are put in order on a stream of the fence's
//! own, on which nothing else is done; no stream of the program waits for another one.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::owned::{OwnedEvent, OwnedStream};
use crate::progress::Progress;
use crate::sys::StreamHandle;
use crate::watch::{Watch, Watched};

#[derive(Debug)]
pub(crate) struct Fence {
    device: Device,
    progress: Arc<Progress>,
    /// Says on another stream how far that one was.
    local: OwnedEvent,
    own: OwnedStream,
    numbers: Mutex<Numbers>,
    /// Keeps the page when this goes before its numbers were reached.
    watch: Arc<Watch>,
}

#[derive(Debug, Default)]
struct Numbers {
    /// The last one that was given. Not that of the page, to which others can write.
    last: u32,
    /// Whether they go by the own stream: from the first one on that is not for the default stream, which, unlike others,
    /// stays the same as long as the process runs.
    are_ordered: bool,
}

impl Fence {
    /// One whose numbers others find in this file.
    pub(crate) fn new(device: &Device, file: BorrowedFd<'_>, watch: &Arc<Watch>) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            progress: Arc::new(Progress::open(device, file)?),
            local: OwnedEvent::new(device)?,
            own: OwnedStream::new(device)?,
            numbers: Mutex::default(),
            watch: Arc::clone(watch),
        })
    }

    /// Whoever waits from now on waits for all work, too, that was given to `stream` so far. Says whether there is any.
    pub(crate) fn record(&self, stream: StreamHandle) -> Result<bool> {
        let Device { driver, ordinal } = &self.device;
        // A number would be given to the graph, and never be reached.
        if driver.is_capturing(*ordinal, stream)? {
            return Err(CudaError::Captured);
        }
        // Whoever waited for nothing all the same would have the GPU switched from one process to another.
        if driver.is_idle(*ordinal, stream) == Ok(true) {
            return Ok(false);
        }
        let mut numbers = self.numbers.lock().unwrap_or_else(PoisonError::into_inner);
        let (number, own) = (numbers.last.wrapping_add(1), self.own.handle);
        if stream == StreamHandle::DEFAULT && !numbers.are_ordered {
            self.progress.give(stream, number)?;
        } else {
            if !numbers.are_ordered {
                self.progress.wait(own, numbers.last)?;
                numbers.are_ordered = true;
            }
            driver.record(*ordinal, self.local.handle, stream)?;
            driver.stream_wait(*ordinal, own, self.local.handle)?;
            self.progress.give(own, number)?;
        }
        numbers.last = number;
        Ok(true)
    }

    #[cfg(test)]
    pub(crate) fn start_from(&self, number: u32) {
        self.numbers.lock().unwrap().last = number;
        self.progress.start_from(number);
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        let numbers = self.numbers.get_mut();
        let last = numbers.unwrap_or_else(PoisonError::into_inner).last;
        // PG-3
        if !self.progress.has_reached(last) {
            let progress = Arc::clone(&self.progress);
            self.watch.add(Box::new(Unfinished { progress, last }));
        }
    }
}

/// Numbers that a device was given and has not reached.
#[derive(Debug)]
struct Unfinished {
    progress: Arc<Progress>,
    last: u32,
}

impl Watched for Unfinished {
    fn is_over(&self) -> bool {
        self.progress.has_reached(self.last) || self.progress.has_failed()
    }
}
