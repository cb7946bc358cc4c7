//! The driver of this process, and its devices.

use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use crate::after_work::AfterWork;
use crate::device_memory::DeviceMemory;
use crate::driver::{Device, Driver};
use crate::error::{CudaError, Result};
use crate::exchange::Exchange;
use crate::facts::{DeviceUuid, MemoryInfo};
use crate::imported_pool::{ImportedMemory, ImportedPool};
use crate::leaving_pools::LeavingPools;
use crate::open_pools::OpenPools;
use crate::sys::{Real, StreamHandle};
use crate::watch::Watch;

/// How often it is looked whether memory that is not out any more is used all the same ..
const LINGERS: Duration = Duration::from_millis(20);
/// .. and whether a process lives whose work is waited for.
const WAITS: Duration = Duration::from_millis(5);
/// The thread that does. It must not call the driver (PW-2).
pub(crate) const WAITS_THREAD: &str = "farref-waits";

/// The CUDA driver of this process. Cheap to clone.
///
/// ```
/// use farref_cuda::Cuda;
///
/// match Cuda::open() {
///     Ok(cuda) => println!("{} devices", cuda.device_count()?),
///     Err(error) => println!("{error}"), // no CUDA driver here: ..
/// }
/// # Ok::<(), farref_cuda::CudaError>(())
/// ```
#[derive(Clone)]
pub struct Cuda(Arc<Inner>);

struct Inner {
    driver: Arc<dyn Driver>,
    /// Gives pools' descriptors to other processes. There is one as long as there is a pool.
    exchange: Mutex<Weak<Exchange>>,
    /// Imported pools that could not go yet, since memory of theirs is still being freed.
    leaving: Arc<LeavingPools>,
    /// The pools of others.
    open_pools: OpenPools<ImportedPool, ImportedMemory>,
    /// Memory of this process that others may use though it is not out.
    lingering: Arc<Watch>,
    /// Work of other processes that streams of this one wait for.
    waits: Arc<Watch>,
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cuda").field(&self.0.driver).finish()
    }
}

impl Cuda {
    /// Opens the driver, the first time it is asked. Fails with [`CudaError::NoDriver`] where there is none, or no GPU for it.
    pub fn open() -> Result<Self> {
        static OPENED: OnceLock<Cuda> = OnceLock::new();
        // Two threads must not start the driver at once.
        static OPENING: Mutex<()> = Mutex::new(());
        let _opening = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = OPENED.get() {
            return Ok(opened.clone());
        }
        let opened = Self::new(Arc::new(Real::open()?));
        Ok(OPENED.get_or_init(|| opened).clone())
    }

    pub(crate) fn new(driver: Arc<dyn Driver>) -> Self {
        Self(Arc::new(Inner {
            leaving: LeavingPools::new(&driver),
            driver,
            exchange: Mutex::default(),
            open_pools: OpenPools::default(),
            lingering: Watch::new("farref-lingering", LINGERS),
            waits: Watch::new(WAITS_THREAD, WAITS),
        }))
    }

    /// How many devices this process sees.
    pub fn device_count(&self) -> Result<u32> {
        Ok(self.0.driver.device_count()?)
    }

    /// Which GPU a device is.
    pub fn uuid(&self, ordinal: u32) -> Result<DeviceUuid> {
        self.device(ordinal)?;
        Ok(self.0.driver.uuid(ordinal)?)
    }

    /// How much memory a device has, and how much of it is free. Begins to use the device if nobody has.
    pub fn memory(&self, ordinal: u32) -> Result<MemoryInfo> {
        self.device(ordinal)?;
        Ok(self.0.driver.memory(ordinal)?)
    }

    /// Waits until all work is done that a stream was given so far.
    pub fn synchronize(&self, ordinal: u32, stream: StreamHandle) -> Result<()> {
        self.device(ordinal)?;
        Ok(self.0.driver.synchronize(ordinal, stream)?)
    }

    /// Allocates memory of the device's current pool, as candle does: of a [`SharedPool`](crate::SharedPool) once there is one.
    pub fn allocate(&self, ordinal: u32, bytes: u64, stream: StreamHandle) -> Result<DeviceMemory> {
        DeviceMemory::allocate(&self.device(ordinal)?, bytes, stream)
    }

    /// Tells the allocation that an address lies in from all others that this process has or ever had there.
    pub fn allocation_id(&self, ordinal: u32, pointer: u64) -> Result<u64> {
        self.device(ordinal)?;
        Ok(self.0.driver.allocation_id(ordinal, pointer)?)
    }

    /// The pools of others that are open in this process.
    pub(crate) fn open_pools(&self) -> &OpenPools<ImportedPool, ImportedMemory> {
        &self.0.open_pools
    }

    /// Memory of this process that others may use though it is not out.
    pub(crate) fn lingering(&self) -> &Arc<Watch> {
        &self.0.lingering
    }

    /// Waits for the work of others.
    pub(crate) fn waits(&self) -> &Arc<Watch> {
        &self.0.waits
    }

    /// A device of this process.
    pub(crate) fn device(&self, ordinal: u32) -> Result<Device> {
        Device::of(&self.0.driver, ordinal)
    }

    /// The device that is this GPU.
    pub(crate) fn find(&self, uuid: DeviceUuid) -> Result<Device> {
        for ordinal in 0..self.device_count()? {
            if self.0.driver.uuid(ordinal)? == uuid {
                return self.device(ordinal);
            }
        }
        Err(CudaError::OtherDevice { uuid })
    }

    /// What gives pools' descriptors to other processes; started if there is none.
    pub(crate) fn exchange(&self) -> Result<Arc<Exchange>> {
        let mut exchange = (self.0.exchange.lock()).unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = exchange.upgrade() {
            return Ok(running);
        }
        let started = Exchange::start()?;
        *exchange = Arc::downgrade(&started);
        Ok(started)
    }

    /// Imported pools that could not go yet.
    pub(crate) fn leaving(&self) -> &Arc<LeavingPools> {
        &self.0.leaving
    }
}

impl AfterWork {
    /// One for all devices of this process.
    pub fn new(cuda: &Cuda) -> Self {
        Self::with(&cuda.0.driver)
    }
}
