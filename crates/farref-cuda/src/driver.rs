//! What is needed of a driver, real or stand-in.
//!
//! Devices are named by their ordinals in this process. Each call makes the device's primary context current as far as it
//! needs one, and leaves the thread's own as it was.

use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::{CudaError, DriverError};
use crate::facts::{DeviceUuid, MemoryInfo};
use crate::sys::{HostAddress, HostPart, SharedNumber, StreamHandle};

pub(crate) type DriverResult<T> = Result<T, DriverError>;

/// A memory pool of the driver's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PoolHandle(pub(crate) u64);

/// An event of the driver's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct EventHandle(pub(crate) u64);

/// A device, by its number in this process, and its driver.
#[derive(Clone, Debug)]
pub(crate) struct Device {
    pub(crate) driver: Arc<dyn Driver>,
    pub(crate) ordinal: u32,
}

impl Device {
    /// The one with this number, if there is one.
    pub(crate) fn of(driver: &Arc<dyn Driver>, ordinal: u32) -> Result<Self, CudaError> {
        let count = driver.device_count()?;
        if ordinal >= count {
            return Err(CudaError::NoDevice { ordinal, count });
        }
        let driver = Arc::clone(driver);
        Ok(Self { driver, ordinal })
    }
}

/// What the driver gives so that another process can have an allocation.
pub(crate) type Opaque = [u8; 64];

/// What a device can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Abilities {
    pub(crate) pools: bool,
    pub(crate) pool_descriptors: bool,
}

/// The driver. Whoever calls it sees to it that handles are those that it gave.
pub(crate) trait Driver: Send + Sync + Debug {
    fn device_count(&self) -> DriverResult<u32>;
    fn uuid(&self, ordinal: u32) -> DriverResult<DeviceUuid>;
    fn abilities(&self, ordinal: u32) -> DriverResult<Abilities>;
    fn memory(&self, ordinal: u32) -> DriverResult<MemoryInfo>;

    /// A pool that can be exported as a descriptor and keeps what it once had.
    fn create_pool(&self, ordinal: u32) -> DriverResult<PoolHandle>;
    /// From now on what is allocated on the device without saying of which pool is of this one.
    fn make_current(&self, ordinal: u32, pool: PoolHandle) -> DriverResult<()>;
    /// The pool goes when all of its memory has been freed. The device has its default pool again if this was its current
    /// one.
    fn destroy_pool(&self, ordinal: u32, pool: PoolHandle) -> DriverResult<()>;
    fn export_pool(&self, ordinal: u32, pool: PoolHandle) -> DriverResult<OwnedFd>;
    fn import_pool(&self, ordinal: u32, descriptor: BorrowedFd<'_>) -> DriverResult<PoolHandle>;

    /// Of the given pool, or of the device's current one.
    fn allocate(
        &self,
        ordinal: u32,
        pool: Option<PoolHandle>,
        bytes: u64,
        stream: StreamHandle,
    ) -> DriverResult<u64>;
    fn free(&self, ordinal: u32, pointer: u64, stream: StreamHandle) -> DriverResult<()>;
    /// Which pool memory is of, if of any.
    fn pool_of(&self, ordinal: u32, pointer: u64) -> DriverResult<Option<PoolHandle>>;
    /// Where the allocation that an address lies in begins, and how long it is.
    fn range(&self, ordinal: u32, pointer: u64) -> DriverResult<(u64, u64)>;
    /// Tells the allocation that an address lies in, or the import of it, from all that this process ever had there.
    fn allocation_id(&self, ordinal: u32, pointer: u64) -> DriverResult<u64>;
    fn export_pointer(&self, ordinal: u32, pointer: u64) -> DriverResult<Opaque>;
    /// Memory that is here already has the same address again, and is gone when it is freed once.
    fn import_pointer(&self, ordinal: u32, pool: PoolHandle, data: &Opaque) -> DriverResult<u64>;

    /// Between two places of one device.
    fn copy_within(
        &self,
        ordinal: u32,
        from: u64,
        to: u64,
        bytes: u64,
        stream: StreamHandle,
    ) -> DriverResult<()>;

    fn create_stream(&self, ordinal: u32) -> DriverResult<StreamHandle>;
    fn destroy_stream(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<()>;
    fn synchronize(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<()>;
    /// Whether the stream has done all that it was given.
    fn is_idle(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<bool>;

    /// Whether what the stream is given is not done but captured, for a graph. An error if that cannot be said because of another capture.
    fn is_capturing(&self, ordinal: u32, stream: StreamHandle) -> DriverResult<bool>;
    /// From now on no capture of another thread is spoiled by what this thread asks, nor does it fail because of one.
    fn relax_captures(&self) -> DriverResult<()>;

    fn create_event(&self, ordinal: u32) -> DriverResult<EventHandle>;
    fn destroy_event(&self, ordinal: u32, event: EventHandle) -> DriverResult<()>;
    fn record(&self, ordinal: u32, event: EventHandle, stream: StreamHandle) -> DriverResult<()>;
    fn is_done(&self, ordinal: u32, event: EventHandle) -> DriverResult<bool>;
    /// Blocks until the event is done.
    fn wait(&self, ordinal: u32, event: EventHandle) -> DriverResult<()>;
    /// What the stream is given from now on waits for the event.
    fn stream_wait(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        event: EventHandle,
    ) -> DriverResult<()>;

    /// Locks a page of the host that other processes have, too, and says where the device has it. [`unlock_host`](Self::unlock_host) unlocks it.
    fn lock_shared(&self, ordinal: u32, address: HostAddress, bytes: usize) -> DriverResult<u64>;
    /// When the stream gets there, and all is done and can be seen that it was given before, the number becomes `value`.
    fn write_number(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        number: SharedNumber,
        value: u32,
    ) -> DriverResult<()>;
    /// What the stream is given from now on waits until the number is `value`, or one of the 2³¹ that come after it: numbers go round.
    fn wait_number(
        &self,
        ordinal: u32,
        stream: StreamHandle,
        number: SharedNumber,
        value: u32,
    ) -> DriverResult<()>;

    /// Locks whole pages of the host, for copies from and to any device. They stay allocated until they are unlocked.
    fn lock_host(&self, ordinal: u32, address: HostAddress, bytes: usize) -> DriverResult<()>;
    fn unlock_host(&self, ordinal: u32, address: HostAddress) -> DriverResult<()>;
    /// Whoever makes a [`HostPart`] has promised that it stays there, and is left alone, until the copy is done.
    fn copy_down(
        &self,
        ordinal: u32,
        from: u64,
        to: HostPart,
        stream: StreamHandle,
    ) -> DriverResult<()>;
    fn copy_up(
        &self,
        ordinal: u32,
        from: HostPart,
        to: u64,
        stream: StreamHandle,
    ) -> DriverResult<()>;
}
