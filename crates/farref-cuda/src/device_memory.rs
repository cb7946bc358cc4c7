//! Device memory of this process.

use crate::driver::Device;
use crate::error::Result;
use crate::sys::StreamHandle;

/// Device memory that was allocated here. Freed when dropped, after what its stream was given until then.
#[derive(Debug)]
pub struct DeviceMemory {
    device: Device,
    pointer: u64,
    bytes: u64,
    stream: StreamHandle,
    /// Whether somebody else frees it.
    is_taken: bool,
}

impl DeviceMemory {
    /// Of the device's current pool.
    pub(crate) fn allocate(device: &Device, bytes: u64, stream: StreamHandle) -> Result<Self> {
        let Device { driver, ordinal } = device;
        let pointer = driver.allocate(*ordinal, None, bytes, stream)?;
        Ok(Self {
            device: device.clone(),
            pointer,
            bytes,
            stream,
            is_taken: false,
        })
    }

    /// Where it begins.
    pub fn pointer(&self) -> u64 {
        self.pointer
    }

    /// How long it is.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The device's number in this process.
    pub fn ordinal(&self) -> u32 {
        self.device.ordinal
    }

    /// Where it begins. It is not freed any more: whoever calls this does that, once, with `cuMemFreeAsync`, as candle's
    /// `CudaSlice` does.
    pub fn into_raw(mut self) -> u64 {
        self.is_taken = true;
        self.pointer
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if !self.is_taken {
            let Device { driver, ordinal } = &self.device;
            let _ = driver.free(*ordinal, self.pointer, self.stream);
        }
    }
}
