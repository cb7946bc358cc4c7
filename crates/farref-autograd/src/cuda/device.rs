//! The CUDA devices of this process: each is opened once, with a pool of memory that other processes can open.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use candle_core::{CudaDevice, Device};
use farref_cuda::{
    AfterWork, Cuda, PinnedOptions, PinnedPool, PoolOptions, SharedPool, StreamHandle,
};

use super::memory;
use crate::dropping;
use crate::error::Result;

/// How devices are opened. To be said before the first is used.
///
/// ```no_run
/// use farref_autograd::cuda;
///
/// # fn example() -> farref_autograd::Result<()> {
/// // Others may use up to 8 GiB of this process; what is more is copied.
/// cuda::Options::new().exported(8 << 30).set()?;
/// let gpu = cuda::device(0)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    reserve: Option<u64>,
    exported: Option<u64>,
    pinned: PinnedOptions,
    shared_from: usize,
}

/// Taken at once unless something else is said.
const RESERVE: u64 = 1 << 30;

impl Options {
    /// What is used if nothing is said.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many bytes of each device are taken when it is opened, for tensors. If nothing is said it is 1 GiB, or a quarter of what is free if that is
    /// less. If there are not as many as were said, nothing is shared. What is made later comes out of them, as far as there is room, and need not
    /// be taken of the device then.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = Some(bytes);
        self
    }

    /// Others use at most so many bytes of each device at a time; beyond that tensors are copied. By default half of
    /// the device's memory.
    pub fn exported(mut self, bytes: u64) -> Self {
        self.exported = Some(bytes);
        self
    }

    /// At most so many bytes of the host are page-locked for copies from and to each device. 1 GiB by default.
    pub fn locked(mut self, bytes: u64) -> Self {
        self.pinned.limit = bytes;
        self
    }

    /// Tensors of fewer bytes are copied, also where they could be shared. By default none are: processes take turns on a GPU, and an
    /// answer that is copied has to wait for two of them, several hundred microseconds.
    pub fn shared_from(mut self, bytes: usize) -> Self {
        self.shared_from = bytes;
        self
    }

    /// Opens devices this way from now on. An error if one is open already.
    pub fn set(self) -> Result<()> {
        let mut devices = lock();
        if !devices.open.is_empty() {
            let reason =
                "CUDA devices are open already: set their options before the first is used";
            return Err(candle_core::Error::Msg(reason.to_owned()).into());
        }
        devices.options = Some(self);
        Ok(())
    }
}

/// One device of this process.
#[derive(Debug)]
pub(super) struct OpenDevice {
    pub(super) ordinal: u32,
    pub(super) candle: CudaDevice,
    /// None, with the reason, where memory cannot be shared.
    pub(super) pool: std::result::Result<Arc<SharedPool>, String>,
    pub(super) pinned: PinnedPool,
    /// Below that many bytes tensors are copied.
    pub(super) shared_from: usize,
}

impl OpenDevice {
    /// The stream that candle works on.
    pub(super) fn stream(&self) -> StreamHandle {
        memory::stream_of(&self.candle)
    }
}

#[derive(Default)]
struct Devices {
    options: Option<Options>,
    open: HashMap<u32, Arc<OpenDevice>>,
}

fn lock() -> std::sync::MutexGuard<'static, Devices> {
    static DEVICES: OnceLock<Mutex<Devices>> = OnceLock::new();
    let devices = DEVICES.get_or_init(Mutex::default);
    devices.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The CUDA device with this number, as candle has it. Tensors arrive on it, and those that are made on it can be shared with other
/// processes. (Those of a device that candle was asked for directly are copied.)
pub fn device(ordinal: u32) -> Result<Device> {
    Ok(Device::Cuda(
        open(ordinal)
            .map_err(candle_core::Error::Msg)?
            .candle
            .clone(),
    ))
}

/// Whether this process has a CUDA device.
pub fn is_available() -> bool {
    Cuda::open()
        .and_then(|cuda| cuda.device_count())
        .is_ok_and(|count| count > 0)
}

/// How much device memory this process shares with others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Usage {
    /// Bytes of its own that others use, or may still use.
    pub exported: u64,
    /// Tensors whose memory is another process's, and was not released yet.
    pub imported: usize,
    /// Bytes of the host that are locked for copies.
    pub locked: u64,
}

/// How much device memory this process shares with others right now.
///
/// ```no_run
/// let used = farref_autograd::cuda::usage();
/// println!("{} bytes of this process are used by others", used.exported);
/// ```
pub fn usage() -> Usage {
    let mut usage = Usage {
        imported: dropping::SHARED.load(Ordering::Relaxed),
        ..Usage::default()
    };
    for device in all_open() {
        usage.exported += device.pool.as_ref().map_or(0, |pool| pool.exported_bytes());
        usage.locked += device.pinned.locked_bytes();
    }
    usage
}

/// How many there are; none without a driver.
pub(super) fn count() -> u32 {
    Cuda::open()
        .and_then(|cuda| cuda.device_count())
        .unwrap_or(0)
}

/// Those that are open.
pub(super) fn all_open() -> Vec<Arc<OpenDevice>> {
    lock().open.values().map(Arc::clone).collect()
}

/// The device with this number, if it is open.
pub(super) fn find_open(ordinal: u32) -> Option<Arc<OpenDevice>> {
    lock().open.get(&ordinal).map(Arc::clone)
}

/// The device with this number, which is opened if it is not.
pub(super) fn open(ordinal: u32) -> std::result::Result<Arc<OpenDevice>, String> {
    let mut devices = lock();
    if let Some(device) = devices.open.get(&ordinal) {
        return Ok(Arc::clone(device));
    }
    let options = *devices.options.get_or_insert_default();
    let text = |error: farref_cuda::CudaError| error.to_string();
    let cuda = Cuda::open().map_err(text)?;
    let count = cuda.device_count().map_err(text)?;
    if ordinal >= count {
        return Err(format!(
            "there is no cuda:{ordinal}: this process sees {count} CUDA devices (CUDA_VISIBLE_DEVICES says which)"
        ));
    }
    let pinned = PinnedPool::new(&cuda, ordinal, options.pinned).map_err(text)?;
    // Before candle opens it: what candle allocates comes out of this pool.
    let pool = share(&cuda, ordinal, &options);
    if let Err(error) = &pool {
        tracing::info!(
            ordinal,
            error,
            "tensors of a CUDA device cannot be shared with other processes: they are copied"
        );
    }
    let candle = open_candle(ordinal).map_err(|error| error.to_string())?;
    let device = Arc::new(OpenDevice {
        ordinal,
        candle,
        pool,
        pinned,
        shared_from: options.shared_from,
    });
    devices.open.insert(ordinal, Arc::clone(&device));
    Ok(device)
}

/// By default no more is reserved than a quarter of what is free, and no more is out than half of what there is.
fn share(
    cuda: &Cuda,
    ordinal: u32,
    options: &Options,
) -> std::result::Result<Arc<SharedPool>, String> {
    let text = |error: farref_cuda::CudaError| error.to_string();
    let memory = cuda.memory(ordinal).map_err(text)?;
    let pool = PoolOptions {
        reserve: options
            .reserve
            .unwrap_or_else(|| RESERVE.min(memory.free / 4)),
        limit: options.exported.unwrap_or(memory.total / 2),
    };
    SharedPool::create(cuda, ordinal, pool).map_err(text)
}

/// Runs what is to be run when a stream has done its work.
pub(super) fn after_work() -> Option<&'static AfterWork> {
    static AFTER: OnceLock<Option<AfterWork>> = OnceLock::new();
    let after = AFTER.get_or_init(|| Cuda::open().ok().map(|cuda| AfterWork::new(&cuda)));
    after.as_ref()
}

/// With one stream for all threads (CT-6): by default candle works on that of the calling thread, and nothing orders what one
/// thread computes before what another one reads of it, sends, or gives back.
fn open_candle(ordinal: u32) -> candle_core::Result<CudaDevice> {
    let device = Device::new_cuda_with_stream(ordinal as usize)?;
    let device = device.as_cuda_device()?.clone();
    memory::without_event_tracking(&device);
    Ok(device)
}
