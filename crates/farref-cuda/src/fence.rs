//! Numbers by which other processes know that the work is done which was given to a device before an export (CU-2).
//!
//! An importer waits for the last number, which may be a later one than that of its own export. That must not mean less: each is reached after all
//! earlier ones (PG-1). On one stream that is so by itself. Numbers of several streams are put in order on a stream of the fence's
//! own, on which nothing else is done; no stream of the program waits for another one.

use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::after_work::AfterWork;
use crate::driver::Device;
use crate::error::{CudaError, Result};
use crate::owned::{OwnedEvent, OwnedStream};
use crate::progress::Progress;
use crate::sys::StreamHandle;

#[derive(Debug)]
pub(crate) struct Fence {
    device: Device,
    progress: Arc<Progress>,
    /// Says on another stream how far that one was.
    local: Arc<OwnedEvent>,
    own: Arc<OwnedStream>,
    numbers: Mutex<Numbers>,
    /// Keeps the page when this goes before its numbers were reached.
    after: AfterWork,
}

#[derive(Debug, Default)]
struct Numbers {
    /// The last one that was given. Not that of the page, to which others can write.
    last: u32,
    given: GivenTo,
}

/// Which stream has the last number: when that one has done what it was given, all numbers were written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum GivenTo {
    #[default]
    Nobody,
    /// The default stream, which, unlike others, stays the same as long as the process runs.
    Default,
    /// The own one: from the first number on that is not for the default stream.
    Own,
}

impl Fence {
    /// One whose numbers others find in this file.
    pub(crate) fn new(device: &Device, file: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            progress: Arc::new(Progress::open(device, file)?),
            local: Arc::new(OwnedEvent::new(device)?),
            own: Arc::new(OwnedStream::new(device)?),
            numbers: Mutex::default(),
            after: AfterWork::with(&device.driver),
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
        if stream == StreamHandle::DEFAULT && numbers.given != GivenTo::Own {
            numbers.given = GivenTo::Default;
            self.progress.give(stream, number)?;
        } else {
            if numbers.given == GivenTo::Default {
                self.own_waits_for(StreamHandle::DEFAULT)?;
            }
            numbers.given = GivenTo::Own;
            self.own_waits_for(stream)?;
            self.progress.give(own, number)?;
        }
        numbers.last = number;
        Ok(true)
    }

    /// By an event: what is written in the page is not only this process's word.
    fn own_waits_for(&self, stream: StreamHandle) -> Result<()> {
        let Device { driver, ordinal } = &self.device;
        driver.record(*ordinal, self.local.handle, stream)?;
        Ok(driver.stream_wait(*ordinal, self.own.handle, self.local.handle)?)
    }

    #[cfg(test)]
    pub(crate) fn start_from(&self, number: u32) {
        self.numbers.lock().unwrap().last = number;
        self.progress.numbers().start_from(number);
    }
}

impl Drop for Fence {
    fn drop(&mut self) {
        let numbers = self.numbers.get_mut();
        let stream = match numbers.unwrap_or_else(PoisonError::into_inner).given {
            GivenTo::Nobody => return,
            GivenTo::Default => StreamHandle::DEFAULT,
            GivenTo::Own => self.own.handle,
        };
        // PG-3: what the job has stays until it is run. There is an error only if there are no devices any more.
        let (progress, streams) = (Arc::clone(&self.progress), Arc::clone(&self.own));
        let kept = (progress, streams, Arc::clone(&self.local));
        let job = Box::new(move || drop(kept));
        let _ = self.after.run(self.device.ordinal, stream, job);
    }
}
