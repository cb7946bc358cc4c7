//! The event by which other processes know that the work is done which was given to a device before an export (CU-2).
//!
//! An event counts as it was recorded last, so an importer may wait for a later record than that of its own export. That must not mean
//! less: each record comes after all earlier ones. On one stream that is so by itself. Records of several streams are put in
//! order on a stream of the fence's own, on which nothing else is done; no stream of the program waits for another one.

use std::sync::{Mutex, PoisonError};

use crate::driver::{Device, Opaque};
use crate::error::Result;
use crate::owned::{OwnedEvent, OwnedStream};
use crate::sys::StreamHandle;

#[derive(Debug)]
pub(crate) struct Fence {
    device: Device,
    /// The one that others have.
    shared: OwnedEvent,
    /// Says on another stream how far that one was.
    local: OwnedEvent,
    own: OwnedStream,
    /// Whether records go by the own stream: from the first one on that is not for the default stream, which, unlike others,
    /// stays the same as long as the process runs.
    is_ordered: Mutex<bool>,
}

impl Fence {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        Ok(Self {
            device: device.clone(),
            shared: OwnedEvent::new(device, true)?,
            local: OwnedEvent::new(device, false)?,
            own: OwnedStream::new(device)?,
            is_ordered: Mutex::new(false),
        })
    }

    /// What another process opens the event with.
    pub(crate) fn export(&self) -> Result<Opaque> {
        let Device { driver, ordinal } = &self.device;
        Ok(driver.export_event(*ordinal, self.shared.handle)?)
    }

    /// From now on the event stands for all work, too, that was given to `stream` so far.
    pub(crate) fn record(&self, stream: StreamHandle) -> Result<()> {
        let Device { driver, ordinal } = &self.device;
        let (shared, local, own) = (self.shared.handle, self.local.handle, self.own.handle);
        let mut is_ordered = (self.is_ordered.lock()).unwrap_or_else(PoisonError::into_inner);
        if stream == StreamHandle::DEFAULT && !*is_ordered {
            return Ok(driver.record(*ordinal, shared, stream)?);
        }
        if !*is_ordered {
            driver.stream_wait(*ordinal, own, shared)?;
            *is_ordered = true;
        }
        driver.record(*ordinal, local, stream)?;
        driver.stream_wait(*ordinal, own, local)?;
        Ok(driver.record(*ordinal, shared, own)?)
    }
}
