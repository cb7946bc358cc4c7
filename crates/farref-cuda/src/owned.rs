//! Streams, events and pools of the driver's that are given back when they are dropped.

use crate::driver::{Device, EventHandle, PoolHandle};
use crate::error::Result;
use crate::sys::StreamHandle;

/// A stream of this crate's own, which waits for no other one.
#[derive(Debug)]
pub(crate) struct OwnedStream {
    device: Device,
    pub(crate) handle: StreamHandle,
}

impl OwnedStream {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let handle = device.driver.create_stream(device.ordinal)?;
        let device = device.clone();
        Ok(Self { device, handle })
    }

    /// Waits until all it was given is done.
    pub(crate) fn synchronize(&self) -> Result<()> {
        let Device { driver, ordinal } = &self.device;
        Ok(driver.synchronize(*ordinal, self.handle)?)
    }
}

impl Drop for OwnedStream {
    fn drop(&mut self) {
        let Device { driver, ordinal } = &self.device;
        let _ = driver.destroy_stream(*ordinal, self.handle);
    }
}

/// An event of this process.
#[derive(Debug)]
pub(crate) struct OwnedEvent {
    device: Device,
    pub(crate) handle: EventHandle,
}

impl OwnedEvent {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let handle = device.driver.create_event(device.ordinal)?;
        let device = device.clone();
        Ok(Self { device, handle })
    }
}

impl Drop for OwnedEvent {
    fn drop(&mut self) {
        let Device { driver, ordinal } = &self.device;
        let _ = driver.destroy_event(*ordinal, self.handle);
    }
}

/// A pool of this process.
#[derive(Debug)]
pub(crate) struct OwnedPool {
    device: Device,
    pub(crate) handle: PoolHandle,
}

impl OwnedPool {
    pub(crate) fn new(device: &Device) -> Result<Self> {
        let handle = device.driver.create_pool(device.ordinal)?;
        let device = device.clone();
        Ok(Self { device, handle })
    }
}

impl Drop for OwnedPool {
    fn drop(&mut self) {
        let Device { driver, ordinal } = &self.device;
        // Memory that somebody still has stays; the driver lets the pool go after it.
        let _ = driver.destroy_pool(*ordinal, self.handle);
    }
}
